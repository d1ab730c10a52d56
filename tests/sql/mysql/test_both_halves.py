"""The lock in MySQL, or in a file, and the table that it protects in MySQL: real processes, end to end."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

import fencelock
import fencelock.aio
from fencelock import StaleTokenError
from fencelock.stores.mysql.source.store import MySQLSource
from tests.guards import LOCK, RESOURCE
from tests.sql.mysql.fix_mysql import Database
from tests.sql.mysql.fix_server import MySQLServer
from tests.sql.mysql.guarded import TABLE, Guarded, run
from tests.sql.mysql.stage import MySQLStage

pytestmark = pytest.mark.process
ADD = "UPDATE reports SET value = CONCAT(value, %s)"
MANY = 20


@pytest.fixture
def stage(guarded: Guarded, mysql_database: Database, tmp_path: Path) -> Iterator[MySQLStage]:
    MySQLSource(mysql_database.url()).install()
    with MySQLStage(mysql_database, tmp_path) as made:
        yield made


def holder(url: str, source: str, ttl: float) -> str:
    """Return the script of a process that reads in one transaction and writes in another, when it is told to."""
    return f"""
from fencelock import FencelockError
guard = fencelock.guard({url!r}, resource={RESOURCE!r}, lock={LOCK!r})
lease = fencelock.connect({source!r}).lock({LOCK!r}, ttl={ttl}).acquire()
with guard.transaction(lease) as connection, connection.cursor() as cursor:
    cursor.execute("SELECT value FROM reports")
    (value,) = cursor.fetchone()
say(lease.token)
hear()
for proof in (lease.sequencer, lease):
    try:
        with guard.transaction(proof) as connection, connection.cursor() as cursor:
            cursor.execute("UPDATE reports SET value = %s", (value + " stale",))
        say("written")
    except FencelockError as error:
        say(type(error).__name__)
"""


@pytest.mark.reduced
@pytest.mark.parametrize("kind", ["mysql", "sqlite"])
def test_a_holder_frozen_past_its_ttl_writes_nothing(
    stage: MySQLStage, guarded: Guarded, tmp_path: Path, kind: str
) -> None:
    locks = stage.url if kind == "mysql" else f"sqlite:///{tmp_path}/locks.db"
    old = stage.actor(holder(stage.url, locks, 1.0))
    token = old.hear()
    old.freeze()
    with fencelock.connect(locks) as source, source.lock(LOCK, ttl=30.0, timeout=30.0) as lease:
        assert lease.token > token
        with guarded.guard().transaction(lease) as connection:
            run(connection, ADD, " new")
        old.thaw()
        old.say("go on")
        assert [old.hear(), old.hear()] == ["StaleTokenError", "LeaseExpiredError"]
    assert guarded.value() == "first new"


def test_a_holder_frozen_inside_its_transaction_does_not_keep_its_successor_waiting(
    stage: MySQLStage, guarded: Guarded
) -> None:
    """G3: the server ends a transaction that is idle for longer than its lease had left."""
    old = stage.actor(f"""
guard = fencelock.guard({stage.url!r}, resource={RESOURCE!r}, lock={LOCK!r})
lease = source.lock({LOCK!r}, ttl=1.0).acquire()
try:
    with guard.transaction(lease) as connection, connection.cursor() as cursor:
        cursor.execute("UPDATE reports SET value = CONCAT(value, ' never')")
        say(lease.token)
        hear()
except Exception as error:
    say(type(error).__name__)
""")
    old.hear()
    old.freeze()
    with (
        fencelock.connect(stage.url) as source,
        source.lock(LOCK, ttl=30.0, timeout=30.0) as lease,
        guarded.guard().transaction(lease) as connection,
    ):
        run(connection, ADD, " new")
    old.thaw()
    old.say("go on")
    assert old.hear() is not None
    assert guarded.value() == "first new"


def test_processes_that_take_turns_lose_no_write(stage: MySQLStage, guarded: Guarded) -> None:
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
    guarded.database.rows("ALTER TABLE reports MODIFY value varchar(200)")
    actors = [stage.actor(script) for _ in range(3)]
    assert [actor.hear() for actor in actors] == ["done"] * 3
    assert guarded.value() == "first" + "." * 3 * MANY


def test_async_lock_and_guard_work_on_one_loop(stage: MySQLStage, guarded: Guarded) -> None:
    async def add(mark: str) -> int:
        async with fencelock.aio.connect(stage.url) as source:
            guard = fencelock.aio.guard(stage.url, resource=RESOURCE, lock=LOCK)
            async with source.lock(LOCK, ttl=30.0) as lease, guard.transaction(lease) as connection:
                async with connection.cursor() as cursor:
                    await cursor.execute(ADD, (mark,))
                return lease.token

    async def work() -> list[int]:
        return await asyncio.gather(*(add(str(number)) for number in range(5)))

    tokens = asyncio.run(work())
    assert len(set(tokens)) == len(tokens)
    assert sorted(guarded.value().removeprefix("first")) == list("01234")


def test_a_token_survives_a_crash_of_the_server_only_until_the_next_holder(own_mysql: MySQLServer) -> None:
    """The mark is on the disk: it was flushed before anything was written under it."""
    own_mysql.rows("CREATE DATABASE app")
    for statement in TABLE:
        own_mysql.rows(statement, database="app")
    url = own_mysql.url(database="app")
    MySQLSource(url).install()
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    guard.protect("reports")
    with fencelock.connect(url) as source:
        lease = source.lock(LOCK, ttl=600.0).acquire()
        assert lease is not None
        with guard.transaction(lease) as connection:
            run(connection, ADD, " before")
        own_mysql.kill()
        own_mysql.start()
        assert guard.mark().token == lease.token
        with guard.transaction(lease) as connection:
            run(connection, ADD, " after")
        broken = source.break_lock(LOCK, reason="a test")
        guard.outrank(broken, reason="a test")
        with pytest.raises(StaleTokenError), guard.transaction(lease.sequencer):
            raise AssertionError("not reached")
        assert broken.token > lease.token
    with pytest.raises(pymysql.Error, match="FL001"):
        own_mysql.rows("UPDATE reports SET value = 'unfenced'", database="app")
    assert own_mysql.value("SELECT value FROM reports", database="app") == "first before after"
