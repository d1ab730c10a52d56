"""Tasks that are cancelled in a guarded block of SQLAlchemy's, at its beginning and at its end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from fencelock.integrations.sqlalchemy import fenced
from tests.integrations.databases import GuardedDatabase
from tests.support.guards import HandmadeLease
from tests.support.helpers import wait_until_async

WRITE = text("UPDATE reports SET value = 'new' WHERE id = 1")
HOLD = {
    "sqlite": ("BEGIN IMMEDIATE",),
    "postgres": ("BEGIN", "SELECT pg_advisory_xact_lock(fencelock.mark_key('reports'))"),
    "mysql": ("BEGIN", "SELECT 1 FROM fencelock_mark WHERE resource = 'reports' FOR UPDATE"),
}
"""How another client locks the mark for a while."""


@asynccontextmanager
async def engine_of(guarded: GuardedDatabase) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(guarded.engines[1], pool_size=1, max_overflow=0)
    try:
        yield engine
    finally:
        await engine.dispose()


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def check_clean(guarded: GuardedDatabase, engine: AsyncEngine, lease: HandmadeLease) -> None:
    """Assert that the pool's one connection presents nothing, and that the next block works."""
    assert lease.open_transactions == 0
    async with AsyncSession(engine) as session:
        with pytest.raises(Exception, match=guarded.refused):
            await session.execute(WRITE)
    async with AsyncSession(engine) as session, fenced(session, lease, resource="reports"):
        await session.execute(WRITE)
    assert guarded.value() == "new"


@pytest.mark.reduced
def test_in_the_block(guarded: GuardedDatabase) -> None:
    lease = HandmadeLease(5)

    async def block(engine: AsyncEngine, is_inside: asyncio.Event) -> None:
        async with AsyncSession(engine) as session, fenced(session, lease, resource="reports"):
            await session.execute(WRITE)
            is_inside.set()
            await asyncio.sleep(60)

    async def main() -> None:
        async with engine_of(guarded) as engine:
            is_inside = asyncio.Event()
            task = asyncio.create_task(block(engine, is_inside))
            await is_inside.wait()
            await cancelled(task)
            assert await asyncio.to_thread(guarded.value) == "first"
            await check_clean(guarded, engine, lease)

    asyncio.run(main())


def test_while_the_block_begins(guarded: GuardedDatabase) -> None:
    lease = HandmadeLease(5)
    guarded.guard().seal(lease)

    async def block(engine: AsyncEngine) -> None:
        async with AsyncSession(engine) as session, fenced(session, lease, resource="reports"):
            await session.execute(WRITE)

    async def main(other: Any) -> None:
        async with engine_of(guarded) as engine:
            task = asyncio.create_task(block(engine))
            await wait_until_async(lambda: lease.open_transactions == 1)
            await asyncio.sleep(0.2)  # It waits for the mark by now; if not, it is cancelled a little earlier.
            await cancelled(task)
            other.cursor().execute("ROLLBACK")
            await check_clean(guarded, engine, lease)

    other = guarded.native()
    for statement in HOLD[guarded.kind]:
        other.cursor().execute(statement)
    try:
        asyncio.run(main(other))
    finally:
        other.close()


def test_at_its_end_the_commit_is_waited_for(guarded: GuardedDatabase) -> None:
    lease = HandmadeLease(5)

    async def block(engine: AsyncEngine, task: "list[asyncio.Task[Any]]") -> None:
        async with AsyncSession(engine) as session, fenced(session, lease, resource="reports"):
            await session.execute(WRITE)
            asyncio.get_running_loop().call_soon(task[0].cancel)

    async def main() -> None:
        async with engine_of(guarded) as engine:
            task: list[asyncio.Task[Any]] = []
            task.append(asyncio.create_task(block(engine, task)))
            with pytest.raises(asyncio.CancelledError):
                await task[0]
            assert await asyncio.to_thread(guarded.value) == "new"
            await check_clean(guarded, engine, lease)

    asyncio.run(main())
