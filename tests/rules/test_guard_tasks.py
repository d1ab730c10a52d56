"""The async guard among tasks: cancellation at every await, waiting for oneself, many tasks and few threads."""

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

import fencelock.aio
from fencelock import GuardError, StaleTokenError
from fencelock.stores.sqlite.guard.block import SQLiteBlockConnection
from tests.guards import LOCK, RESOURCE, HandmadeLease, plain, url_of, value_in
from tests.helpers import DEADLINE_S

pytestmark = [pytest.mark.asyncio, pytest.mark.reduced]


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


async def test_a_task_cancelled_while_it_commits_is_told_after_the_commit(
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


@pytest.mark.parametrize("delay", range(30))
async def test_wherever_a_task_is_cancelled_the_guard_goes_on(
    guard: fencelock.aio.AsyncGuard, file: Path, delay: int
) -> None:
    lease = HandmadeLease(5)
    task = asyncio.create_task(write(guard, lease, "perhaps"))
    for _ in range(delay):
        await asyncio.sleep(0.000_1 * (delay % 7))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert lease.open_transactions == 0
    await write(guard, lease, "next")
    assert value_in(file) == "next"


async def test_many_tasks_write_one_after_the_other(guard: fencelock.aio.AsyncGuard, file: Path) -> None:
    """More tasks than threads: those who wait for the write lock must not keep the one who has it from committing."""
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


async def test_the_loop_goes_on_while_a_task_waits_for_the_write_lock(
    guard: fencelock.aio.AsyncGuard, file: Path
) -> None:
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


async def test_an_async_lease_is_a_proof_until_it_is_released(
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
