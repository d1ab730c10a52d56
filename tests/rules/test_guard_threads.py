"""Guards among threads and event loops: connections are never shared, and nobody waits for itself."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fenceline.aio
from tests.guards import LOCK, RESOURCE, HandmadeLease, plain, sequencer, url_of, value_in

THREADS = 4
TIMES = 20


def in_threads(work: Callable[[], Any]) -> None:
    """Run the same work in several threads at once."""
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def add(guard: fenceline.aio.AsyncGuard, lease: Any) -> None:
    async with guard.transaction(lease) as connection:
        connection.execute("UPDATE reports SET value = value + 1")


def test_threads_of_one_tenure_write_one_after_the_other(file: Path) -> None:
    guard = fenceline.guard(url_of(file), resource=RESOURCE, lock=LOCK)

    def work() -> None:
        for _ in range(TIMES):
            with guard.transaction(sequencer(5)) as connection:
                (value,) = connection.execute("SELECT value FROM reports").fetchone()
                connection.execute("UPDATE reports SET value = ?", (value + 1,))

    in_threads(work)
    assert value_in(file) == THREADS * TIMES


def test_loops_in_several_threads_use_one_file_at_once(file: Path) -> None:
    async def work() -> None:
        guard = fenceline.aio.guard(url_of(file), resource=RESOURCE, lock=LOCK)
        for _ in range(TIMES):
            await add(guard, sequencer(5))

    in_threads(lambda: asyncio.run(work()))
    assert value_in(file) == THREADS * TIMES


def test_a_guard_outlives_the_loop_that_used_it_first(file: Path) -> None:
    guard = fenceline.aio.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    for times in (1, 2):
        asyncio.run(add(guard, HandmadeLease(4 + times)))
        assert value_in(file) == times


def test_a_connection_that_is_in_use_is_nobody_elses(file: Path) -> None:
    store = fenceline.guard(url_of(file), resource=RESOURCE, lock=LOCK)._core.store
    taken = [store.connect() for _ in range(6)]
    assert len({id(connection.native) for connection in taken}) == 6
    for connection in taken:
        connection.close()
    again = [store.connect() for _ in range(6)]
    assert len({id(connection.native) for connection in again}) == 6
    for connection in again:
        connection.close()


def test_a_transaction_in_another_thread_waits_for_its_turn(file: Path) -> None:
    guard, lease = fenceline.guard(url_of(file), resource=RESOURCE, lock=LOCK), HandmadeLease(5)
    guard.seal(lease)
    written = threading.Event()

    def work() -> None:
        with guard.transaction(sequencer(5)) as connection:
            connection.execute("UPDATE reports SET value = 'second'")
        written.set()

    with guard.transaction(lease) as connection:
        thread = threading.Thread(target=work)
        thread.start()
        connection.execute("UPDATE reports SET value = 'first'")
        assert not written.wait(0.02)
    thread.join()
    assert value_in(file) == "second"


def test_a_block_may_end_in_another_thread_than_it_began(file: Path) -> None:
    guard, lease = fenceline.guard(url_of(file), resource=RESOURCE, lock=LOCK), HandmadeLease(5)
    block = guard.transaction(lease)
    block.__enter__().execute("UPDATE reports SET value = 'handed over'")
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert value_in(file) == "handed over"
    with guard.transaction(lease):
        pass


@pytest.mark.parametrize("times", [1, 3])
def test_a_guard_that_nobody_holds_any_more_leaves_no_connection_open(file: Path, times: int) -> None:
    for _ in range(times):
        guard = fenceline.guard(url_of(file), resource=RESOURCE, lock=LOCK)
        with guard.transaction(HandmadeLease(5)) as connection:
            pass
        del guard
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            connection.execute("SELECT 1")
    with plain(file, timeout=0) as other:
        assert other.execute("PRAGMA journal_mode = delete").fetchone() == ("delete",)
