"""The lock on an SQL server, or in a file, and the table that it protects on the server: real processes, end to end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import StaleTokenError
from tests.sql.dialect import SqlDialect, install, run, run_async
from tests.sql.guarded import TABLE, Guarded
from tests.sql.marks import one_version
from tests.sql.stage import SqlStage, freeze
from tests.support.guards import LOCK, RESOURCE

pytestmark = [pytest.mark.process, one_version]
MANY = 20


def holder(url: str, source: str, ttl: float) -> str:
    """Return the script of a process that reads in one transaction and writes in another, when it is told to."""
    return f"""
from fencelock import FencelockError
guard = fencelock.guard({url!r}, resource={RESOURCE!r}, lock={LOCK!r})
source = fencelock.connect({source!r})
while True:
    lease = source.lock({LOCK!r}, ttl={ttl}).acquire()
    try:
        with guard.transaction(lease) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT value FROM reports")
            (value,) = cursor.fetchone()
        break
    except FencelockError:
        pass  # The machine stood still for longer than the ttl.
say(lease.token)
hear()
for credential in (lease.sequencer, lease):
    try:
        with guard.transaction(credential) as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE reports SET value = %s", (value + " stale",))
        say("written")
    except FencelockError as error:
        say(type(error).__name__)
"""


@pytest.mark.reduced
@pytest.mark.parametrize("place", ["the same server", "a file"])
def test_a_holder_frozen_past_its_ttl_writes_nothing(
    stage: SqlStage, guarded: Guarded, tmp_path: Path, place: str
) -> None:
    locks = stage.url if place == "the same server" else f"sqlite:///{tmp_path}/locks.db"
    old = stage.actor(holder(stage.url, locks, 1.0))
    token = old.hear()
    freeze(old)
    with fencelock.connect(locks) as source, source.lock(LOCK, ttl=30.0, timeout=30.0) as lease:
        assert lease.token > token
        with guarded.guard().transaction(lease) as connection:
            run(connection, guarded.sql.append, " new")
        old.thaw()
        old.say("go on")
        assert [old.hear(), old.hear()] == ["StaleTokenError", "LeaseExpiredError"]
    assert guarded.value() == "first new"


def test_a_holder_frozen_inside_its_transaction_does_not_keep_its_successor_waiting(
    stage: SqlStage, guarded: Guarded
) -> None:
    """G3: the server ends a transaction that is idle for longer than its lease had left."""
    old = stage.actor(f"""
guard = fencelock.guard({stage.url!r}, resource={RESOURCE!r}, lock={LOCK!r})
lease = source.lock({LOCK!r}, ttl=1.0).acquire()
try:
    with guard.transaction(lease) as connection, connection.cursor() as cursor:
        cursor.execute({stage.sql.append!r}, (" never",))
        say(lease.token)
        hear()
except Exception as error:
    say(type(error).__name__)
""")
    old.hear()
    freeze(old)
    with (
        fencelock.connect(stage.url) as source,
        source.lock(LOCK, ttl=30.0, timeout=30.0) as lease,
        guarded.guard().transaction(lease) as connection,
    ):
        run(connection, guarded.sql.append, " new")
    old.thaw()
    old.say("go on")
    assert old.hear() is not None
    assert guarded.value() == "first new"


def test_processes_that_take_turns_lose_no_write(stage: SqlStage, guarded: Guarded) -> None:
    script = f"""
guard = fencelock.guard({stage.url!r}, resource={RESOURCE!r}, lock={LOCK!r})
for _ in range({MANY}):
    with source.lock({LOCK!r}, ttl=30.0) as lease, guard.transaction(lease) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT value FROM reports")
        (value,) = cursor.fetchone()
        cursor.execute("UPDATE reports SET value = %s", (value + ".",))
say("done")
"""
    actors = [stage.actor(script) for _ in range(3)]
    assert [actor.hear() for actor in actors] == ["done"] * 3
    assert guarded.value() == "first" + "." * 3 * MANY


def test_async_lock_and_guard_work_on_one_loop(stage: SqlStage, guarded: Guarded) -> None:
    async def add(mark: str) -> int:
        async with fencelock.aio.connect(stage.url) as source:
            guard = fencelock.aio.guard(stage.url, resource=RESOURCE, lock=LOCK)
            async with source.lock(LOCK, ttl=30.0) as lease, guard.transaction(lease) as connection:
                await run_async(connection, guarded.sql.append, mark)
                return lease.token

    async def work() -> list[int]:
        return await asyncio.gather(*(add(str(number)) for number in range(5)))

    tokens = asyncio.run(work())
    assert len(set(tokens)) == len(tokens)
    assert sorted(guarded.value().removeprefix("first")) == list("01234")


def test_a_token_survives_a_crash_of_the_server_only_until_the_next_holder(sql: SqlDialect, own_database: Any) -> None:
    """The mark is on the disk. The old holder goes on after the crash until a successor, whose token is higher, has
    sealed.
    """
    url = install(own_database.url())
    for statement in TABLE:
        own_database.rows(statement)
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    guard.protect("reports")
    with fencelock.connect(url) as source:
        lease = source.lock(LOCK, ttl=600.0).acquire()
        assert lease is not None
        with guard.transaction(lease) as connection:
            run(connection, sql.append, " before")
        own_database.server.crash()
        assert guard.mark().token == lease.token
        with guard.transaction(lease) as connection:
            run(connection, sql.append, " after")
        broken = source.break_lock(LOCK, reason="a test")
        guard.outrank(broken, reason="a test")
        with pytest.raises(StaleTokenError), guard.transaction(lease.sequencer):
            raise AssertionError("not reached")
        assert broken.token > lease.token
        assert not lease.release()  # The keeper would go on with it when the server has ended.
    with own_database.connect() as native, pytest.raises(sql.client_error) as refused:
        run(native, "UPDATE reports SET value = 'unfenced'")
    assert sql.code_of(refused.value) == "FL001"
    assert own_database.value("SELECT value FROM reports") == "first before after"
