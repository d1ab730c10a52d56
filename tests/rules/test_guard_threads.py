"""Guards among threads and event loops: connections are never shared, and no thread waits for itself."""

import asyncio
import gc
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fencelock.aio
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, plain, sequencer, url_of, value_in
from tests.support.helpers import DEADLINE_S, wait_until

THREADS = 4
TIMES = 20
BLOCK_OPEN_S = 0.3
"""How long a block stays open while a release has to wait for it: one that did not wait would take milliseconds."""


def in_threads(work: Callable[[], Any]) -> None:
    """Run the same work in several threads at once."""
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def add(guard: fencelock.aio.AsyncGuard, lease: Any) -> None:
    async with guard.transaction(lease) as connection:
        connection.execute("UPDATE reports SET value = value + 1")


def test_threads_of_one_tenure_write_one_after_the_other(file: Path) -> None:
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)

    def work() -> None:
        for _ in range(TIMES):
            with guard.transaction(sequencer(5)) as connection:
                (value,) = connection.execute("SELECT value FROM reports").fetchone()
                connection.execute("UPDATE reports SET value = ?", (value + 1,))

    in_threads(work)
    assert value_in(file) == THREADS * TIMES


def test_loops_in_several_threads_use_one_file_at_once(file: Path) -> None:
    async def work() -> None:
        guard = fencelock.aio.guard(url_of(file), resource=RESOURCE, lock=LOCK)
        for _ in range(TIMES):
            await add(guard, sequencer(5))

    in_threads(lambda: asyncio.run(work()))
    assert value_in(file) == THREADS * TIMES


def test_a_guard_outlives_the_loop_that_used_it_first(file: Path) -> None:
    guard = fencelock.aio.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    for times in (1, 2):
        asyncio.run(add(guard, HandmadeLease(4 + times)))
        assert value_in(file) == times


def test_a_connection_in_use_is_given_to_no_other_block(file: Path) -> None:
    store = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)._core.store
    taken = [store.connect() for _ in range(6)]
    assert len({id(connection.native) for connection in taken}) == 6
    for connection in taken:
        connection.close()
    again = [store.connect() for _ in range(6)]
    assert len({id(connection.native) for connection in again}) == 6
    for connection in again:
        connection.close()


def test_a_transaction_in_another_thread_waits_for_its_turn(file: Path) -> None:
    guard, lease = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK), HandmadeLease(5)
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
    guard, lease = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK), HandmadeLease(5)
    block = guard.transaction(lease)
    block.__enter__().execute("UPDATE reports SET value = 'handed over'")
    thread = threading.Thread(target=block.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert value_in(file) == "handed over"
    with guard.transaction(lease):
        pass


def in_thread(function: Callable[..., Any], *arguments: Any) -> None:
    """Run the function in a thread of its own, to its end; what it raises is raised here."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(function, *arguments).result()


def test_a_lease_counts_a_block_out_for_the_thread_that_began_it(file: Path, source: fencelock.Source) -> None:
    """Frameworks end a generator in another thread than they began it in; `release` waits for open blocks."""
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    lease = source.lock(LOCK).acquire()
    assert lease is not None
    block = guard.transaction(lease)
    block.__enter__()
    with pytest.raises(fencelock.LeaseError, match="leave that block first"):
        lease.release()
    in_thread(block.__exit__, None, None, None)
    assert lease.release()


def test_a_check_may_end_in_another_thread_than_it_began(file: Path, source: fencelock.Source) -> None:
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    lease = source.lock(LOCK).acquire()
    assert lease is not None
    guard.seal(lease)
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("BEGIN IMMEDIATE")
    block = guard.check(lease, connection=connection)
    block.__enter__()
    in_thread(block.__exit__, None, None, None)
    connection.execute("COMMIT")
    connection.close()
    assert lease.release()


def test_a_block_may_end_in_another_task_than_it_began(file: Path, tmp_path: Path) -> None:
    async def work() -> bool:
        async with fencelock.aio.connect(f"sqlite:///{tmp_path / 'locks.db'}") as source:
            guard = fencelock.aio.guard(url_of(file), resource=RESOURCE, lock=LOCK)
            lease = await source.lock(LOCK).acquire()
            assert lease is not None
            block = guard.transaction(lease)
            (await block.__aenter__()).execute("UPDATE reports SET value = 'handed over'")
            await asyncio.create_task(block.__aexit__(None, None, None))
            return await lease.release()

    assert asyncio.run(work())
    assert value_in(file) == "handed over"


@pytest.mark.parametrize("times", [1, 3])
def test_a_collected_guard_leaves_no_connection_open(file: Path, times: int) -> None:
    for _ in range(times):
        guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
        with guard.transaction(HandmadeLease(5)) as connection:
            pass
        del guard
        with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
            connection.execute("SELECT 1")
    with plain(file, timeout=0) as other:
        assert other.execute("PRAGMA journal_mode = delete").fetchone() == ("delete",)


def test_a_release_waits_for_the_blocks_that_other_threads_have_open(file: Path, source: fencelock.Source) -> None:
    """Else a successor would be granted the lock, and could seal, in the middle of the block."""
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    lock = source.lock(LOCK, ttl=60)
    lease = lock.acquire()
    assert lease is not None
    is_open, may_end = threading.Event(), threading.Event()

    def write() -> None:
        with guard.transaction(lease) as connection:
            connection.execute("UPDATE reports SET value = 'written'")
            is_open.set()
            assert may_end.wait(DEADLINE_S)

    with ThreadPoolExecutor(2) as threads:
        writing = threads.submit(write)
        assert is_open.wait(DEADLINE_S)
        releasing = threads.submit(lease.release)
        try:
            wait_until(lambda: not lease.is_valid)  # The release has begun.
            with pytest.raises(TimeoutError):
                releasing.result(BLOCK_OPEN_S)
            assert lock.locked()
        finally:
            may_end.set()
        writing.result(DEADLINE_S)
        assert releasing.result(DEADLINE_S)
    assert not lock.locked()
    assert value_in(file) == "written"


class Shot(BaseException):
    """What a signal handler raises."""


def shot_at(call: int, act: Callable[[], Any]) -> bool:
    """Have the call of one function of fencelock's, so many after the first, end before its first line, which is where
    Python runs signal handlers; return whether it came to that.
    """
    calls = iter(range(10**6))
    was_shot = False

    def trace(frame: Any, event: str, argument: Any) -> None:
        nonlocal was_shot
        if "fencelock" in frame.f_code.co_filename and next(calls) == call:
            was_shot = True
            raise Shot

    tracer = sys.gettrace()  # That of a measurement of coverage, for one.
    try:
        sys.settrace(trace)
        act()
    except (Shot, fencelock.FencelockError, sqlite3.Error):
        pass
    finally:
        sys.settrace(tracer)
    return was_shot


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # What is raised in a finalizer.
def test_a_block_interrupted_by_a_signal_handler_anywhere_blocks_no_other(file: Path, source: fencelock.Source) -> None:
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    with source.lock(LOCK, ttl=60) as lease:

        def act() -> None:
            with guard.transaction(lease) as connection:
                connection.execute("UPDATE reports SET value = value + 1")

        act()
        call = 0
        while shot_at(call, act):
            call += 1
            act()
        assert call > 20
        assert lease.release()


SHOTS = 12
TEXTS = 60
"""More than are prepared before the signal arrives."""
COLUMNS = 1000
"""So many columns are authorized one by one: preparing a statement is mostly the authorizer's work."""


@pytest.mark.parametrize("is_caught", [False, True])
def test_what_a_signal_handler_raises_inside_the_authorizer_stays_that(file: Path, is_caught: bool) -> None:
    """sqlite3 drops what its authorizer raises, and says "not authorized" instead."""
    guard, lease = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK), HandmadeLease(5)
    statement = f"SELECT {', '.join(['value'] * COLUMNS)} FROM reports -- "

    def strike(*_: object) -> None:
        raise Shot

    def act(delay_s: float) -> None:
        with guard.transaction(lease) as connection:
            connection.execute("UPDATE reports SET value = value + 1")
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            try:
                for number in range(TEXTS):
                    connection.execute(f"{statement}{number}")  # A new text, which is prepared anew.
            except sqlite3.Error:
                if not is_caught:
                    raise

    former = signal.signal(signal.SIGALRM, strike)
    gc.disable()  # Python itself drops what is raised in a finalizer.
    try:
        for number in range(SHOTS):
            with pytest.raises(Shot):
                act(0.003 + number * 0.000_05)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.enable()
        signal.signal(signal.SIGALRM, former)
    assert value_in(file) == 0
    with guard.transaction(lease) as connection:
        connection.execute("UPDATE reports SET value = 1")
    assert value_in(file) == 1
