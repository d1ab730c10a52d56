"""The exact number of SQLite statements and transactions of each operation, so that neither grows unnoticed."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

import pytest

from fencelock.clock import boottime_us
from fencelock.model import draw_claim
from fencelock.protocol.source_requests import Acquire, Granted, Inspect, Poll, Queued, Release, Renew, ReserveBlock
from fencelock.stores.sqlite.source.store import SQLiteSource, SQLiteSourceConnection


class Counted:
    """A connection whose statements are written down; a trigger is reported as its statement once more."""

    def __init__(self, path: Path) -> None:
        self.connection: SQLiteSourceConnection = SQLiteSource(f"sqlite:///{path}").connect()
        self.acquire("warm-up")
        self.connection.perform(ReserveBlock())

    def acquire(self, lock: str, *, may_wait: bool = False) -> tuple[str, object]:
        claim = draw_claim()
        while True:
            request = Acquire(lock, claim, "a:1:test", 10_000, boottime_us(), may_wait)
            reply = self.connection.perform(request)
            if isinstance(reply, Granted | Queued):
                return claim, reply
            self.connection.perform(ReserveBlock())

    @contextmanager
    def counting(self) -> Iterator[list[str]]:
        texts: list[str] = []
        statements: list[str] = []
        self.connection.database.native.set_trace_callback(texts.append)
        yield statements
        self.connection.database.native.set_trace_callback(None)
        statements += [text.split()[0] for text, _ in groupby(texts)]


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[Counted]:
    counted = Counted(tmp_path / "locks.db")
    yield counted
    counted.connection.close()


def test_acquire_of_a_known_free_lock_is_one_statement(counted: Counted) -> None:
    claim, _ = counted.acquire("lock")
    counted.connection.perform(Release("lock", claim))
    with counted.counting() as statements:
        counted.acquire("lock")
    assert statements == ["UPDATE"]


def test_acquire_of_a_new_lock_is_one_attempt_and_one_transaction(counted: Counted) -> None:
    with counted.counting() as statements:
        counted.acquire("new")
    assert statements == ["UPDATE", "BEGIN", "SELECT", "INSERT", "COMMIT"]


def test_release_is_one_statement(counted: Counted) -> None:
    claim, _ = counted.acquire("lock")
    with counted.counting() as statements:
        counted.connection.perform(Release("lock", claim))
    assert statements == ["UPDATE"]


@pytest.mark.parametrize("count", [1, 100])
def test_a_beat_is_one_transaction_however_many_leases_it_renews(counted: Counted, count: int) -> None:
    leases = [(f"lock-{number}", counted.acquire(f"lock-{number}")[0]) for number in range(count)]
    with counted.counting() as statements:
        reply = counted.connection.perform(Renew(tuple(leases)))
    assert len(reply.remaining_ms) == count
    assert statements == ["BEGIN", "SELECT", "UPDATE", "COMMIT"]


@pytest.mark.parametrize("waiters", [1, 50])
def test_a_hand_off_costs_the_same_however_long_the_queue_is(counted: Counted, waiters: int) -> None:
    holder, _ = counted.acquire("lock")
    queue = [counted.acquire("lock", may_wait=True)[0] for _ in range(waiters)]
    with counted.counting() as statements:
        counted.connection.perform(Release("lock", holder))
        reply = counted.connection.perform(Poll("lock", queue[0]))
    assert isinstance(reply, Granted)
    assert statements == ["UPDATE", "BEGIN", "SELECT", "SELECT", "DELETE", "INSERT", "DELETE", "COMMIT"]


def test_inspection_takes_no_write_lock(counted: Counted) -> None:
    with counted.counting() as statements:
        counted.connection.perform(Inspect("warm-up"))
    assert statements == ["SELECT"]
