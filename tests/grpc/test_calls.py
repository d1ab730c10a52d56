"""Every kind of call carries the token to the guard in its handler, which admits or refuses it."""

from collections.abc import Callable
from pathlib import Path

import pytest

import fencelock
from fencelock.errors import StaleTokenError
from tests.grpc.services import LOCK, RESOURCE, Caller, bodies

KINDS: dict[str, Callable[[Caller], object]] = {
    "unary": lambda caller: caller.call("Put", b"late"),
    "client-stream": lambda caller: caller.upload("PutAll", b"late", b"later"),
    "server-stream": lambda caller: caller.download("Rows"),
    "both-streams": lambda caller: caller.chat("Chat", b"late"),
}


def outranked(source: fencelock.Source, lease: fencelock.Lease, data: Path) -> int:
    """Have another holder seal the resource; return its token."""
    source.break_lock(LOCK, reason="the holder is frozen")
    newer = source.lock(LOCK).acquire()
    assert newer is not None
    fencelock.guard(f"sqlite:///{data}", resource=RESOURCE, lock=LOCK).seal(newer)
    assert newer.token > lease.token
    return newer.token


def test_each_kind_of_call_is_admitted(caller: Caller, data: Path):
    assert caller.call("Put", b"1") == b"done"
    assert caller.upload("PutAll", b"2", b"3") == b"2"
    assert caller.chat("Chat", b"4", b"5") == [b"4", b"5"]
    assert caller.download("Rows") == [b"1", b"2", b"3", b"4", b"5"]
    assert bodies(data) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_stale_token_is_refused(
    caller: Caller, kind: str, source: fencelock.Source, lease: fencelock.Lease, data: Path
):
    caller.call("Put", b"in time")
    mark = outranked(source, lease, data)
    with pytest.raises(StaleTokenError) as caught:
        KINDS[kind](caller)
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (lease.token, mark, RESOURCE)
    assert bodies(data) == ["in time"]
