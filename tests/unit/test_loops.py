"""What is kept for each loop, while the loops of other threads come and go."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fencelock._drivers.aio_pool import AsyncPool, _Connections
from fencelock.protocol.source_requests import Inspect
from fencelock.stores.aws.clients import _NativeClients
from fencelock.stores.aws.url import parse_dynamodb_url
from tests.support.documents import Documents, MemoryDocumentSource


class ClosedLoop:
    """A loop of another thread. Right before it says that it is closed, something happens in a third thread."""

    def __init__(self, before: Callable[[], object] = lambda: None) -> None:
        self._before = before

    def is_closed(self) -> bool:
        self._before()
        return True


def with_busy_threads(of_loop: dict[Any, Any], kept: Any) -> tuple[ClosedLoop, ClosedLoop]:
    """Put two closed loops there: another one comes when the first is looked at, and the first goes at the second."""
    first = ClosedLoop(before=lambda: of_loop.setdefault(ClosedLoop(), kept))
    second = ClosedLoop(before=lambda: of_loop.pop(first))
    of_loop |= {first: kept, second: kept}
    return first, second


def test_a_pool_forgets_closed_loops_while_other_threads_do_too() -> None:
    store = MemoryDocumentSource(Documents())
    store.install()
    pool = AsyncPool(store, 5.0)
    closed = with_busy_threads(pool._of_loop, _Connections(1))
    assert asyncio.run(pool.perform(Inspect("lock"))).holder is None  # type: ignore[union-attr]
    assert not {*closed} & {*pool._of_loop}


class NativeClient:
    """A client that has nothing open."""

    async def close(self) -> None:
        """Do nothing."""


def test_clients_of_closed_loops_are_forgotten_while_other_threads_do_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def make(_: Any) -> NativeClient:
        return NativeClient()

    monkeypatch.setattr(_NativeClients, "_make_async", make)
    natives = _NativeClients(parse_dynamodb_url("dynamodb://eu-central-1/locks"))
    closed = with_busy_threads(natives._of_loop, None)
    assert isinstance(asyncio.run(natives.of_running_loop()), NativeClient)
    assert not {*closed} & {*natives._of_loop}
