"""The ways between the members of a cluster that verify starts: nothing of a history that is gone reaches a new one.

A member that was brought back from a backup and heard a leader from before it would take that one's word for what has
been agreed on: etcd gives up ("tocommit is out of range"), or worse, goes on.
"""

import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from fencelock_lab.servers.network import Network
from fencelock_lab.servers.server import HOST
from tests.support.helpers import DEADLINE_S, wait_until

LONG_S = 0.3
"""Longer than a proxy takes to ask a server again that has refused a connection."""
SAID = b"what an old leader says"


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network()
    yield made
    made.close()


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port that is taken, and on which nobody listens."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        yield reserved.getsockname()[1]


def say_to_nobody(network: Network, port: int) -> socket.socket:
    """Say something to a member that is down, and wait until the link has it."""
    heard = []

    def introduce(first: bytes) -> tuple[str, bytes]:
        heard.append(first)
        return "caller", first

    caller = socket.create_connection((HOST, network.lead_to("member", port, introduce)), DEADLINE_S)
    caller.sendall(SAID)
    wait_until(lambda: heard)
    return caller


def start_member(port: int) -> socket.socket:
    member = socket.socket()
    member.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    member.bind((HOST, port))
    member.listen()
    member.settimeout(DEADLINE_S)
    return member


def test_a_member_that_starts_hears_who_called_a_moment_before(network: Network, port: int):
    with say_to_nobody(network, port), start_member(port) as member:
        connection, _ = member.accept()
        with connection:
            assert connection.recv(100) == SAID


def test_a_member_that_was_brought_back_hears_nothing_from_before(network: Network, port: int):
    with say_to_nobody(network, port) as caller:
        network.forget()
        with start_member(port) as member:
            with suppress(ConnectionResetError):
                assert caller.recv(100) == b""
            member.settimeout(LONG_S)
            with pytest.raises(TimeoutError):
                member.accept()
