"""A clock that moves only on demand, and a source that answers as a test says."""

from collections.abc import Callable
from typing import Any

import pytest

from fencelock._drivers.sync import SyncDriver
from fencelock._flows.acquire import Grant, margin_ms
from fencelock._keeper.record import LeaseRecord, Listeners
from fencelock.hooks import NO_HOOKS, Hooks
from fencelock.protocol.source_requests import Granted, Release, Released, Renew, Renewed
from fencelock.protocol.stores import Capabilities

START_MS = 1_000_000
FULL_MS = 10**9


class Clock:
    """The time of a test, for the keeper and for the leases."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = START_MS
        monkeypatch.setattr("fencelock._keeper.record.boottime_ms", self.now_ms)

    def now_ms(self) -> int:
        return self.ms

    def now_us(self) -> int:
        return self.ms * 1000

    def pass_ms(self, duration_ms: int) -> None:
        self.ms += duration_ms


class FakeSource:
    """A store whose one behaviour is `answer`: it returns the reply to a request, or raises."""

    capabilities = Capabilities(ttl_min_ms=100, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=True)
    url = "fake:///"

    def __init__(self, answer: Callable[[Any], Any] | None = None) -> None:
        self.answer = answer or agree
        self.asked: list[Any] = []
        self.connections: list[FakeConnection] = []

    def connect(self, *, request_timeout_s: float) -> "FakeConnection":
        self.connections.append(FakeConnection(self, request_timeout_s))
        return self.connections[-1]

    def listen(self, lock: str, claim: str) -> Any:
        raise NotImplementedError

    def install(self) -> None:
        return None

    def examine(self) -> list[Any]:
        return []

    def requests(self, kind: type) -> list[Any]:
        """Return the requests of this kind."""
        return [request for request in self.asked if isinstance(request, kind)]


class FakeConnection:
    def __init__(self, source: FakeSource, request_timeout_s: float) -> None:
        self.source = source
        self.request_timeout_s = request_timeout_s
        self.is_closed = False

    def perform(self, request: Any) -> Any:
        assert not self.is_closed
        self.source.asked.append(request)
        return self.source.answer(request)

    def close(self) -> None:
        self.is_closed = True


def agree(request: Any) -> Any:
    """Answer like a source that grants every request."""
    match request:
        case Renew():
            return Renewed({claim: FULL_MS for _, claim in request.leases}, {})
        case Release():
            return Released(was_held=True)
    return Granted(1, FULL_MS, "source", "history")


class Holding:
    """A lease as its holder has it: the record and its listeners."""

    def __init__(
        self,
        clock: Clock,
        driver: SyncDriver,
        claim: str = "c1",
        *,
        ttl_ms: int = 30_000,
        left_ms: int | None = None,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self.told: list[str] = []
        self.listeners = Listeners(hooks, self.told.append)
        until_ms = clock.ms + (ttl_ms if left_ms is None else left_ms) - (margin_ms(ttl_ms) if left_ms is None else 0)
        grant = Grant(7, until_ms, "source", "history", None)
        self.record = LeaseRecord(driver, "the-lock", claim, "me", ttl_ms, grant, self.listeners)
