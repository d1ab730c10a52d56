"""A request that only reads: sent again after a connection that had ended, and not to a server that hangs."""

import threading

import pytest
from botocore.exceptions import ReadTimeoutError

from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.stores.aws.documents import read_only
from fencelock.stores.helper_threads import in_helper_thread


def sent_until_it_fails(cause: Exception | None) -> int:
    """Return how many requests there were, if all fail for this cause."""
    calls, sent = read_only("get_object", {}), 1
    next(calls)
    while True:
        lost = OutcomeUnknownError("on purpose")
        lost.__cause__ = cause
        try:
            calls.throw(lost)
            sent += 1
        except SourceUnavailableError:  # Definite, because it only reads.
            return sent


@pytest.mark.parametrize("cause", [None, ConnectionResetError()])
def test_a_connection_that_had_ended_is_replaced_once(cause: Exception | None) -> None:
    assert sent_until_it_fails(cause) == 2


@pytest.mark.parametrize("cause", [TimeoutError(), ReadTimeoutError(endpoint_url="http://host")])
def test_h2_a_server_that_hangs_is_not_asked_again(cause: Exception) -> None:
    """The keeper's other leases wait meanwhile."""
    assert sent_until_it_fails(cause) == 1


def test_h2_a_server_whose_reply_drips_is_not_asked_again() -> None:
    is_over = threading.Event()
    with pytest.raises(OutcomeUnknownError) as dripping:
        in_helper_thread(is_over.wait, 0.01)
    is_over.set()
    assert sent_until_it_fails(dripping.value.__cause__) == 1
