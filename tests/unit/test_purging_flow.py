"""The flow that purges marks, driven by hand: which marks go, and what it reads in which order."""

from typing import Any

import pytest

from fencelock import Mark, SourceInfo
from fencelock._flows import purging
from fencelock.protocol import guard_requests as ask
from fencelock.protocol.generators import run_generator
from fencelock.protocol.mark_requests import MAX_PURGED_MARKS

LAST_TOKEN = 1000
SOURCE = SourceInfo("source", 1, "history", LAST_TOKEN, LAST_TOKEN)
RUNNING = 5


class Store:
    """Old marks, found page by page. The lease with the token RUNNING is granted, and seals, before the first page."""

    def __init__(self, *tokens: int) -> None:
        self._marks = [Mark(f"r{token:04}", "lock", token, "source", "history", "0" * 32) for token in sorted(tokens)]
        self._held: frozenset[int] = frozenset()
        self.readings = 0
        self.purged: list[int] = []

    def read_held(self) -> frozenset[int]:
        self.readings += 1
        return self._held

    def perform(self, request: Any) -> Any:
        match request:
            case ask.FindOldMarks(after=after, limit=limit):
                self._held = frozenset({RUNNING})
                return tuple([mark for mark in self._marks if mark.resource > after][:limit])
            case ask.PurgeMarks(marks=marks, floor=floor):
                assert len(marks) <= MAX_PURGED_MARKS
                assert floor.token == max(mark.token for mark in marks)
                self.purged += [mark.token for mark in marks]
                return len(marks)
        return None

    def purge(self) -> int:
        return run_generator(purging.purge_marks(SOURCE, self.read_held, 0, "me"), self.perform)


def test_g15_the_mark_of_a_lease_that_was_granted_after_the_purge_began_stays() -> None:
    """Its token may be below the counter that the purge has read: a waiter at etcd and ZooKeeper has it before."""
    store = Store(RUNNING, RUNNING - 1)
    assert (store.purge(), store.purged) == (1, [RUNNING - 1])


def test_g15_a_mark_above_the_counter_stays() -> None:
    store = Store(LAST_TOKEN, LAST_TOKEN + 1)
    assert (store.purge(), store.purged) == (1, [LAST_TOKEN])


@pytest.mark.parametrize(("limit", "readings"), [(MAX_PURGED_MARKS, 3), (10 * MAX_PURGED_MARKS, 1)])
def test_g15_running_leases_are_read_once_for_many_marks(
    monkeypatch: pytest.MonkeyPatch, limit: int, readings: int
) -> None:
    monkeypatch.setattr(purging, "MARKS_PER_READING", limit)
    tokens = list(range(RUNNING + 1, RUNNING + 2 + 2 * MAX_PURGED_MARKS))
    store = Store(*tokens)
    assert (store.purge(), store.purged, store.readings) == (len(tokens), tokens, readings)


def test_g15_where_no_mark_is_old_the_source_is_not_asked_for_its_leases() -> None:
    store = Store()
    assert (store.purge(), store.readings) == (0, 0)
