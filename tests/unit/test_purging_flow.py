"""The flow that purges marks, driven by hand: which marks go, and what it reads in which order."""

from typing import Any

import pytest

from fencelock import GuardError, Mark, SourceInfo
from fencelock._flows import purging
from fencelock.protocol import guard_requests as ask
from fencelock.protocol.generators import run_generator
from fencelock.protocol.mark_requests import MAX_PURGED_MARKS
from fencelock.stores.errors import floor_changed

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


# --- a floor by hand ------------------------------------------------------------------------------------------------
class OperatorsStore:
    """A store that compares only at the commit: the first one meets what another operator has just written."""

    def __init__(self, floor: int, others: int) -> None:
        self.floor = floor
        self._others = others
        self._seen: int | None = None
        self._asked: ask.SetFloor | None = None

    def perform(self, request: Any) -> Any:
        match request:
            case ask.InspectResources():
                return ask.ResourceReport((), (), (), floors=(ask.Floor("source", self.floor),))
            case ask.SetFloor():
                if self.floor != request.entry.from_token:
                    raise floor_changed(ask.Floor("source", self.floor), request.entry.from_token)
                self._asked, self._seen = request, self.floor
                self.floor = self._others
            case ask.Commit():
                assert self._asked is not None
                if self.floor != self._seen:
                    raise ask.ConflictError("the floors have changed")
                self.floor = self._asked.floor.token
        return None

    def set_floor(self, token: int, expected: int | None = None) -> None:
        run_generator(purging.set_floor(ask.Floor("source", token), "me", "a test", expected), self.perform)


def test_g15_of_two_operators_at_one_moment_the_second_is_told() -> None:
    store = OperatorsStore(5, others=7)
    with pytest.raises(GuardError, match="the floor of source source is 7 now, not 5: look again"):
        store.set_floor(3)
    assert store.floor == 7


def test_g15_a_conflict_over_another_floor_is_none() -> None:
    store = OperatorsStore(5, others=5)
    store.set_floor(3)
    assert store.floor == 3


def test_g15_an_operator_may_say_which_floor_was_seen() -> None:
    store = OperatorsStore(5, others=5)
    with pytest.raises(GuardError, match="is 5 now, not 4"):
        store.set_floor(3, expected=4)
    store.set_floor(3, expected=5)
    assert store.floor == 3
