"""Connections that fail in their TLS handshake: nothing was sent, and the error says what to write instead."""

from typing import NoReturn

import pytest
from botocore.exceptions import ConnectionClosedError

from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.stores.aws.clients import Call
from fencelock.stores.aws.errors import map_error
from tests.aws.service import answer, service_without_tls
from tests.aws.test_clients import (
    PUT,
    READ,
    WRITE,
    Send,
    ask,
    clients,
    credentials,
    info_at,
    send,
)

__all__ = ["ask", "clients", "credentials"]

PLAIN = answer("400 Bad Request")
"""What a server of plain HTTP says to the first bytes of a TLS handshake."""


@pytest.mark.parametrize("call", [READ, WRITE, PUT], ids=lambda call: call.operation)
def test_a_server_without_tls_is_named_as_the_cause(ask: Send, call: Call) -> None:
    with service_without_tls(PLAIN) as port, pytest.raises(SourceUnavailableError) as caught:
        ask(info_at(f"https://127.0.0.1:{port}", call), call)
    assert caught.value.definite
    assert "the TLS handshake failed" in str(caught.value)
    assert f"does not speak TLS: write endpoint=http://127.0.0.1:{port}, or check the port" in str(caught.value)
    assert "ry again" not in str(caught.value)


def test_a_server_that_ends_a_handshake_may_not_speak_tls() -> None:
    with service_without_tls(b"") as port, pytest.raises(SourceUnavailableError, match="may not speak TLS") as caught:
        send(info_at(f"https://127.0.0.1:{port}", WRITE), WRITE)
    assert caught.value.definite


def raise_reset() -> NoReturn:
    raise ConnectionResetError


def test_a_later_loss_is_in_doubt_while_the_error_of_a_handshake_is_handled() -> None:
    """The caller may try again in its `except` block: the old error is the context of the new one."""
    with service_without_tls(PLAIN) as port:
        info = info_at(f"https://127.0.0.1:{port}", WRITE)
        try:
            send(info, WRITE)
        except SourceUnavailableError:
            with pytest.raises(ConnectionResetError) as reset:
                raise_reset()
            later = ConnectionClosedError(endpoint_url="https://127.0.0.1", error=reset.value)
    assert isinstance(map_error(later, info), OutcomeUnknownError)
