"""The async guard among tasks: cancellation at every await, self-deadlock, many tasks and few threads."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fencelock.aio
from fencelock import GuardError, SourceUnavailableError, StaleTokenError
from fencelock.stores.sqlite.guard.block import SQLiteBlockConnection
from fencelock.stores.sqlite.guard.connection import SQLiteGuardConnection
from fencelock.testing.conformance.faults import failing_starts
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, plain, url_of, value_in
from tests.support.helpers import DEADLINE_S, wait_until_async

pytestmark = [pytest.mark.asyncio, pytest.mark.reduced]

LEAST_MOMENTS = 10
"""A write that seals has more requests than half of it."""
BLOCK_OPEN_S = 0.3
"""How long a block stays open while a release has to wait for it: one that did not wait would take milliseconds."""


@pytest.fixture
def guard(file: Path) -> fencelock.aio.AsyncGuard:
    return fencelock.aio.guard(url_of(file), resource=RESOURCE, lock=LOCK)


async def write(guard: fencelock.aio.AsyncGuard, lease: Any, value: Any = 1) -> None:
    async with guard.transaction(lease) as connection:
        connection.execute("UPDATE reports SET value = ?", (value,))


async def is_set(event: threading.Event) -> None:
    """Wait for a thread's event without blocking the loop."""
    assert await asyncio.to_thread(event.wait, DEADLINE_S)


class Gate:
    """Holds threads back at one place of the store until it is opened."""

    def __init__(self) -> None:
        self.is_reached = threading.Event()
        self.is_open = threading.Event()

    def __call__(self) -> None:
        self.is_reached.set()
        assert self.is_open.wait(DEADLINE_S)


def gated(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, is_after: bool) -> Gate:
    """Put a gate before or after a method."""
    gate = Gate()
    method = getattr(owner, name)

    def through(self: Any, *arguments: Any) -> Any:
        if not is_after:
            gate()
        result = method(self, *arguments)
        if is_after:
            gate()
        return result

    monkeypatch.setattr(owner, name, through)
    return gate


class Moments:
    """The moments of one guarded write at which its task may be cancelled: before and after each request to the store,
    which threads make, and around the statement in its body. At the one chosen, it is.
    """

    def __init__(self, chosen: int | None = None) -> None:
        self.count = 0
        self._chosen = chosen
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    async def write(self, guard: fencelock.aio.AsyncGuard, lease: Any) -> bool:
        """Write, and return whether the task was cancelled."""
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(SQLiteGuardConnection, "perform", self._around(SQLiteGuardConnection.perform))
            self._task = asyncio.create_task(self._write(guard, lease))
            await asyncio.wait([self._task])
        if not self._task.cancelled():
            await self._task
        return self._task.cancelled()

    async def _write(self, guard: fencelock.aio.AsyncGuard, lease: Any) -> None:
        async with guard.transaction(lease) as connection:
            await asyncio.to_thread(self._pass)
            connection.execute("UPDATE reports SET value = 'perhaps'")
            await asyncio.to_thread(self._pass)

    def _around(self, perform: Callable[..., Any]) -> Callable[..., Any]:
        def counted(connection: Any, request: Any) -> Any:
            self._pass()
            reply = perform(connection, request)
            self._pass()
            return reply

        return counted

    def _pass(self) -> None:
        """Count a moment, in a thread. At the chosen one go on when the loop has cancelled the task."""
        if self.count == self._chosen:
            assert self._task is not None
            is_cancelled = threading.Event()
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._loop.call_soon_threadsafe(is_cancelled.set)
            assert is_cancelled.wait(DEADLINE_S)
        self.count += 1


@pytest.mark.parametrize("is_after", [False, True])
async def test_a_task_cancelled_while_it_opens_leaves_at_once_and_no_transaction_stays(
    guard: fencelock.aio.AsyncGuard, file: Path, monkeypatch: pytest.MonkeyPatch, is_after: bool
) -> None:
    lease = HandmadeLease(5)
    await guard.seal(lease)
    gate = gated(monkeypatch, SQLiteBlockConnection, "begin", is_after=is_after)
    task = asyncio.create_task(write(guard, lease, "never"))
    await is_set(gate.is_reached)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert lease.open_transactions == 0
    gate.is_open.set()
    await write(guard, lease, "next")
    assert value_in(file) == "next"


async def test_a_task_cancelled_while_it_commits_is_cancelled_after_the_commit(
    guard: fencelock.aio.AsyncGuard, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = HandmadeLease(5)
    await guard.seal(lease)
    gate = gated(monkeypatch, SQLiteBlockConnection, "commit", is_after=False)
    task = asyncio.create_task(write(guard, lease, "committed"))
    await is_set(gate.is_reached)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert lease.open_transactions == 1
    gate.is_open.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert lease.open_transactions == 0
    assert value_in(file) == "committed"


async def test_a_task_cancelled_inside_its_block_writes_nothing(guard: fencelock.aio.AsyncGuard, file: Path) -> None:
    lease, is_inside = HandmadeLease(5), asyncio.Event()

    async def hang() -> None:
        async with guard.transaction(lease) as connection:
            connection.execute("UPDATE reports SET value = 'never'")
            is_inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await is_inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert value_in(file) == 0
    await write(guard, lease, "next")


async def test_the_guard_survives_cancellation_at_every_point(guard: fencelock.aio.AsyncGuard, file: Path) -> None:
    whole = Moments()
    assert not await whole.write(guard, HandmadeLease(5))
    assert whole.count > LEAST_MOMENTS
    for chosen in range(whole.count):
        lease = HandmadeLease(chosen + 6)  # A higher one each time, so that each write seals first.
        assert await Moments(chosen).write(guard, lease), f"not cancelled at moment {chosen} of {whole.count}"
        assert lease.open_transactions == 0
        await write(guard, lease, f"next {chosen}")
        assert value_in(file) == f"next {chosen}"


async def test_a_release_waits_for_the_blocks_that_other_tasks_have_open(
    guard: fencelock.aio.AsyncGuard, file: Path, tmp_path: Path
) -> None:
    """Else a successor would be granted the lock, and could seal, in the middle of the block."""
    async with fencelock.aio.connect(url_of(tmp_path / "locks.db")) as source:
        lock = source.lock(LOCK, ttl=60)
        lease = await lock.acquire()
        assert lease is not None
        is_open, may_end = asyncio.Event(), asyncio.Event()

        async def hang() -> None:
            async with guard.transaction(lease) as connection:
                connection.execute("UPDATE reports SET value = 'written'")
                is_open.set()
                await may_end.wait()

        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            writing = group.create_task(hang())
            await is_open.wait()
            releasing = group.create_task(lease.release())
            await wait_until_async(lambda: not lease.is_valid)  # The release has begun.
            await asyncio.wait([releasing], timeout=BLOCK_OPEN_S)
            assert not releasing.done()
            assert await lock.locked()
            may_end.set()
            await writing
            assert await releasing
        assert not await lock.locked()
    assert value_in(file) == "written"


async def test_many_tasks_write_one_after_the_other(guard: fencelock.aio.AsyncGuard, file: Path) -> None:
    """More tasks than threads: tasks that wait for the write lock must not keep its holder from committing."""
    lease = HandmadeLease(5)
    await guard.seal(lease)

    async def add() -> None:
        async with guard.transaction(lease) as connection:
            (value,) = connection.execute("SELECT value FROM reports").fetchone()
            await asyncio.sleep(0)
            connection.execute("UPDATE reports SET value = ?", (value + 1,))

    async with asyncio.TaskGroup() as group:
        for _ in range(40):
            group.create_task(add())
    assert value_in(file) == 40


async def test_a_task_that_would_wait_for_itself_is_an_error_at_once(
    guard: fencelock.aio.AsyncGuard, file: Path
) -> None:
    other = fencelock.aio.guard(url_of(file), resource="other", lock=LOCK)
    blocking = fencelock.guard(url_of(file), resource="other", lock=LOCK)
    lease = HandmadeLease(5)
    await guard.seal(lease)
    await other.seal(lease)
    async with guard.transaction(lease):
        with pytest.raises(GuardError, match="this task has a guarded transaction open"):
            await write(other, lease)
        with pytest.raises(GuardError, match="this task has a guarded transaction open"):
            await other.close(lease)
        with pytest.raises(GuardError, match="this thread has a guarded transaction open"):
            blocking.seal(lease)


async def test_another_task_waits_for_its_turn(guard: fencelock.aio.AsyncGuard, file: Path) -> None:
    lease = HandmadeLease(5)
    await guard.seal(lease)
    async with guard.transaction(lease) as connection:
        connection.execute("UPDATE reports SET value = 'first'")
        task = asyncio.create_task(write(guard, lease, "second"))
        await asyncio.sleep(0.01)
        assert not task.done()
    await task
    assert value_in(file) == "second"


async def test_the_loop_runs_while_a_task_waits_for_the_write_lock(guard: fencelock.aio.AsyncGuard, file: Path) -> None:
    lease = HandmadeLease(5)
    await guard.seal(lease)
    with plain(file) as other:
        other.execute("BEGIN IMMEDIATE")
        task = asyncio.create_task(write(guard, lease, "waited"))
        for _ in range(5):
            await asyncio.sleep(0.001)
        assert not task.done()
        other.execute("ROLLBACK")
    await task
    assert value_in(file) == "waited"


async def test_the_connection_may_be_used_in_any_thread(guard: fencelock.aio.AsyncGuard, file: Path) -> None:
    async with guard.transaction(HandmadeLease(5)) as connection:
        await asyncio.to_thread(connection.execute, "UPDATE reports SET value = 'from a thread'")
    assert value_in(file) == "from a thread"


async def test_check_can_be_awaited_or_entered(guard: fencelock.aio.AsyncGuard, file: Path) -> None:
    lease = HandmadeLease(5)
    await guard.protect("reports")
    await guard.seal(lease)
    with plain(file) as own:
        own.execute("PRAGMA foreign_keys = ON")
        own.execute("BEGIN IMMEDIATE")
        await guard.check(lease, connection=own)
        with pytest.raises(sqlite3.IntegrityError):
            own.execute("UPDATE reports SET value = 'outside'")
        async with guard.check(lease, connection=own):
            own.execute("UPDATE reports SET value = 'inside'")
        with pytest.raises(StaleTokenError):
            await guard.check(HandmadeLease(4), connection=own)
        own.execute("COMMIT")
    assert value_in(file) == "inside"


async def test_a_source_may_be_async(guard: fencelock.aio.AsyncGuard, tmp_path: Path) -> None:
    async with fencelock.aio.connect(url_of(tmp_path / "locks.db")) as source, source.lock(LOCK) as lease:
        await guard.raise_to(source, reason="test")
        assert (await guard.mark()).token == lease.token
        with pytest.raises(StaleTokenError):
            await write(guard, lease)


async def test_an_async_lease_is_a_credential_until_it_is_released(
    guard: fencelock.aio.AsyncGuard, file: Path, tmp_path: Path
) -> None:
    async with fencelock.aio.connect(url_of(tmp_path / "locks.db")) as source:
        lease = await source.lock(LOCK).acquire()
        assert lease is not None
        await write(guard, lease, "held")
        async with guard.transaction(lease):
            with pytest.raises(fencelock.LeaseError, match="inside its own guarded transaction"):
                await lease.release()
        await lease.release()
        with pytest.raises(fencelock.LeaseReleasedError):
            await write(guard, lease, "released")
        await guard.close(lease)
    assert value_in(file) == "held"


# --- threads that do not start ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [1, 2])
async def test_a_block_that_found_no_thread_did_nothing_and_stays_in_nobodys_way(
    guard: fencelock.aio.AsyncGuard, file: Path, number: int
) -> None:
    """The first start is that of the thread that begins blocks, the second that of the one that ends them."""
    lease = HandmadeLease(1)
    with failing_starts(number) as faults, pytest.raises(SourceUnavailableError, match="limit on threads"):
        await write(guard, lease, 7)
    assert faults.failed
    # A transaction that was begun later all the same, and that nobody ends, would hold the file for ever.
    await write(guard, lease, 8)
    with plain(file, timeout=1) as other:
        other.execute("BEGIN IMMEDIATE")
    assert value_in(file) == 8


async def test_a_block_ends_although_no_further_thread_can_be_started(
    guard: fencelock.aio.AsyncGuard, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gated(monkeypatch, SQLiteGuardConnection, "perform", is_after=False)
    first = asyncio.ensure_future(write(guard, HandmadeLease(1), 7))
    await is_set(gate.is_reached)
    with failing_starts(1) as faults:
        second = asyncio.ensure_future(write(guard, HandmadeLease(1), 8))
        await wait_until_async(lambda: faults.failed)
        gate.is_open.set()
        await asyncio.gather(first, second)
    assert value_in(file) in (7, 8)
