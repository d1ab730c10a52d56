"""The lock and the table that it protects in one PostgreSQL database: real processes, sync and async, end to end."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import fencelock
import fencelock.aio
from fencelock import StaleTokenError
from fencelock.stores.postgres.source.store import PostgresSource
from tests.guards import LOCK, RESOURCE
from tests.sql.postgres.fix_copies import Copies
from tests.sql.postgres.fix_postgres import Database, only
from tests.sql.postgres.fix_server import PostgresServer
from tests.sql.postgres.guarded import Guarded
from tests.sql.postgres.test_processes import PostgresStage, freeze

pytestmark = [pytest.mark.process, only("18")]
ADD = "UPDATE reports SET value = value || %s"
MANY = 20


@pytest.fixture
def stage(guarded: Guarded, database: Database, tmp_path: Path) -> Iterator[PostgresStage]:
    PostgresSource(database.url()).install()
    with PostgresStage(database, tmp_path) as made:
        yield made


def holder(url: str, ttl: float) -> str:
    """Return the script of a process that reads in one transaction and writes in another, when it is told to."""
    return f"""
from fencelock import FencelockError
guard = fencelock.guard({url!r}, resource={RESOURCE!r}, lock={LOCK!r})
lease = source.lock({LOCK!r}, ttl={ttl}).acquire()
with guard.transaction(lease) as connection:
    value = connection.execute("SELECT value FROM reports").fetchone()[0]
say(lease.token)
hear()
for proof in (lease.sequencer, lease):
    try:
        with guard.transaction(proof) as connection:
            connection.execute("UPDATE reports SET value = %s", (value + " stale",))
        say("written")
    except FencelockError as error:
        say(type(error).__name__)
"""


@pytest.mark.reduced
def test_a_holder_frozen_past_its_ttl_writes_nothing_in_the_database_that_has_its_lock(
    stage: PostgresStage, guarded: Guarded
) -> None:
    old = stage.actor(holder(stage.url, 1.0))
    token = old.hear()
    freeze(old)
    with fencelock.connect(stage.url) as source, source.lock(LOCK, ttl=30.0, timeout=30.0) as lease:
        assert lease.token > token
        with guarded.guard().transaction(lease) as connection:
            connection.execute(ADD, (" new",))
        old.thaw()
        old.say("go on")
        assert [old.hear(), old.hear()] == ["StaleTokenError", "LeaseExpiredError"]
    assert guarded.value() == "first new"


def test_a_holder_frozen_inside_its_transaction_does_not_keep_its_successor_waiting(
    stage: PostgresStage, guarded: Guarded
) -> None:
    """G3: the server ends a transaction that is idle for longer than its lease had left."""
    old = stage.actor(f"""
guard = fencelock.guard({stage.url!r}, resource={RESOURCE!r}, lock={LOCK!r})
lease = source.lock({LOCK!r}, ttl=1.0).acquire()
try:
    with guard.transaction(lease) as connection:
        connection.execute("UPDATE reports SET value = value || ' never'")
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
        connection.execute(ADD, (" new",))
    old.thaw()
    old.say("go on")
    assert old.hear() is not None
    assert guarded.value() == "first new"


def test_processes_that_take_turns_lose_no_write(stage: PostgresStage, guarded: Guarded) -> None:
    script = f"""
guard = fencelock.guard({stage.url!r}, resource={RESOURCE!r}, lock={LOCK!r})
for _ in range({MANY}):
    with source.lock({LOCK!r}, ttl=30.0) as lease, guard.transaction(lease) as connection:
        (value,) = connection.execute("SELECT value FROM reports").fetchone()
        connection.execute("UPDATE reports SET value = %s", (value + ".",))
say("done")
"""
    actors = [stage.actor(script) for _ in range(3)]
    assert [actor.hear() for actor in actors] == ["done"] * 3
    assert guarded.value() == "first" + "." * 3 * MANY


def test_async_lock_and_guard_work_on_one_loop(stage: PostgresStage, guarded: Guarded) -> None:
    async def add(mark: str) -> int:
        async with fencelock.aio.connect(stage.url) as source:
            guard = fencelock.aio.guard(stage.url, resource=RESOURCE, lock=LOCK)
            async with source.lock(LOCK, ttl=30.0) as lease, guard.transaction(lease) as connection:
                await connection.execute(ADD, (mark,))
                return lease.token

    async def work() -> list[int]:
        return await asyncio.gather(*(add(str(number)) for number in range(5)))

    tokens = asyncio.run(work())
    assert len(set(tokens)) == len(tokens)
    assert sorted(guarded.value().removeprefix("first")) == list("01234")


def test_a_token_survives_a_crash_of_the_server_only_until_the_next_holder(
    own_postgres: PostgresServer,
) -> None:
    """The old holder goes on after the crash until a successor, whose token is of a new history, has sealed."""
    url = own_postgres.url(dbname="postgres")
    PostgresSource(url).install()
    own_postgres.rows("CREATE TABLE reports (id int PRIMARY KEY, value text)")
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    guard.protect("reports")
    with fencelock.connect(url) as source:
        lease = source.lock(LOCK, ttl=600.0).acquire()
        assert lease is not None
        with guard.transaction(lease) as connection:
            connection.execute("INSERT INTO reports VALUES (1, 'before')")
        own_postgres.crash()
        with guard.transaction(lease) as connection:
            connection.execute("UPDATE reports SET value = value || ' after'")
        broken = source.break_lock(LOCK, reason="a test")
        guard.outrank(broken, reason="a test")
        with pytest.raises(StaleTokenError), guard.transaction(lease.sequencer) as connection:
            connection.execute("UPDATE reports SET value = 'stale'")
        assert broken.token > lease.token
    with psycopg.connect(url) as native, pytest.raises(psycopg.Error) as refused:
        native.execute("UPDATE reports SET value = 'unfenced'")
    assert refused.value.sqlstate == "FL001"
    assert own_postgres.value("SELECT value FROM reports") == "before after"


def test_t7_a_lease_from_before_a_restore_of_both_is_refused_once_the_epoch_and_then_the_mark_are_raised(
    own_postgres: PostgresServer, copies: Copies
) -> None:
    """The process that shows its sequencer is another one, which remembers no seal. In this order: a source that
    recovered notices it at its next grant, and until then knows no token that was issued after the backup.
    """
    url = own_postgres.url()
    PostgresSource(url).install()
    own_postgres.rows("CREATE TABLE reports (value text)")
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    guard.protect("reports")
    with fencelock.connect(url) as source:
        with source.lock(LOCK, ttl=30.0) as lease:
            guard.seal(lease)
        backup = copies.base_backup(own_postgres)
        late = source.lock(LOCK, ttl=30.0).acquire()
        assert late is not None
        guard.seal(late)
    restored = copies.started(backup, own_postgres).url()
    other = fencelock.guard(restored, resource=RESOURCE, lock=LOCK)
    with fencelock.connect(restored) as operator:
        assert operator.describe().last_token < late.token, "it has not noticed yet"
        operator.raise_epoch(reason="restored")
        other.raise_to(operator, reason="restored")
    with pytest.raises(StaleTokenError):
        other.seal(late.sequencer)
