"""T1 on PostgreSQL, whose clients may call its functions themselves, and within a transaction that they roll back."""

from typing import Any

import psycopg
import pytest

from fencelock.model import digest_of_claim
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock_lab.servers.postgres import PostgresServer
from tests.sql.guarded import Step
from tests.sql.postgres.fix_postgres import Database
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide

BLOCKED = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s"


def acquire(native: psycopg.Connection, claim: str) -> Any:
    """Take the lock by a claim, and return the outcome and the token."""
    statement = "SELECT (fencelock.acquire('a', %s, 'me', 60000, fencelock.now_us(), 'try', NULL, 1000, 10)).*"
    [outcome, token, *_] = native.execute(statement, (digest_of_claim(claim),)).fetchone() or ()
    return outcome, token


def release(native: psycopg.Connection, claim: str) -> None:
    """Release the lock."""
    native.execute("SELECT fencelock.release('a', %s, fencelock.now_us())", (claim,))


def test_t1_no_token_of_a_grant_that_is_rolled_back_is_above_that_of_who_waited_for_it(database: Database) -> None:
    """Its tokens are signed and known, whatever becomes of it: the next holder's has to be above them."""
    PostgresSource(database.url()).install()
    with database.connect() as idle, database.connect() as holder:
        acquire(idle, "first")
        release(idle, "first")
        idle.execute("BEGIN")
        assert acquire(idle, "second")[0] == "granted"
        waiting = Step(acquire, holder, "holder's")
        wait_until(lambda: database.value(BLOCKED, holder.info.backend_pid))
        release(idle, "second")
        outcome, known = acquire(idle, "third")
        assert outcome == "granted"
        idle.execute("ROLLBACK")
        outcome, token = waiting.end()
    assert outcome == "granted"
    assert token > known


def test_t1_a_claim_that_broke_one_lock_gets_its_token_for_no_other_one(database: Database) -> None:
    """An operator's, by calls of its own: neither by another name, nor by a name that is not the lock's."""
    PostgresSource(database.url()).install()
    statement = "SELECT token FROM fencelock.break_lease(%s::bytea, %s, %s, 'me', 'a test')"
    digest = digest_of_claim("breaker's")
    with database.connect() as native:
        acquire(native, "holder's")
        [token] = native.execute(statement, ("b", "b", digest)).fetchone() or ()
        for name in "a", "b":
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                native.execute(statement, ("a", name, digest))
        assert native.execute(statement, ("b", "b", digest)).fetchone() == (token,)
        [(holder,)] = native.execute("SELECT holder FROM fencelock.inspect('a', NULL, 1)").fetchall()
    assert holder == "me"


@pytest.mark.parametrize(("channel", "digest"), [("", "d"), ("c" * 64, "d"), ("c", "d" * 8000)])
def test_a_waiter_that_cannot_be_notified_stops_neither_a_release_nor_a_break(
    database: Database, channel: str, digest: str
) -> None:
    """Channel and digest are what its client says."""
    PostgresSource(database.url()).install()
    queue = "SELECT (fencelock.acquire(%s, %s, 'me', 60000, fencelock.now_us(), 'wait', %s, 1000, 10)).outcome"
    with database.connect() as native:
        acquire(native, "holder's")
        assert native.execute(queue, (b"a", digest, channel)).fetchone() == ("queued",)
        [was_held] = (
            native.execute("SELECT was_held FROM fencelock.release('a', %s, 1)", ("holder's",)).fetchone() or ()
        )
        native.execute("SELECT fencelock.break_lease('a', 'a', 'd3', 'me', 'a test')")
    assert was_held


RAISE = "SELECT fencelock.raise_epoch(history_id, 0, 'me', 'a test') FROM fencelock.describe()"


def test_t1_no_token_is_granted_under_a_bound_that_is_not_committed(own_postgres: PostgresServer) -> None:
    """A crash loses the counter of a history that was rolled back, and the next one may begin at the same token."""
    PostgresSource(own_postgres.url()).install()
    with own_postgres.connect() as native:
        native.execute("BEGIN")
        native.execute(RAISE)
        known = acquire(native, "operator's")
        broken = native.execute("SELECT token FROM fencelock.break_lease('b', 'b', 'd', 'me', 'a test')").fetchone()
        native.execute("ROLLBACK")
    own_postgres.restart("immediate")
    with own_postgres.connect() as native:
        native.execute("SELECT fencelock.reserve('me')")
        native.execute(RAISE)
        outcome, token = acquire(native, "holder's")
    assert (known, broken) == (("spent", None), (None,))
    assert outcome == "granted"
    assert token != known[1]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_t7_no_lease_that_a_snapshot_does_not_show_outlives_a_raised_epoch(database: Database, level: str) -> None:
    """The lock is new: a row that was changed since would fail by itself."""
    PostgresSource(database.url()).install()
    with database.connect() as operator, database.connect() as holder:
        operator.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        operator.execute("SELECT fencelock.describe()")
        assert acquire(holder, "holder's")[0] == "granted"
        for change in RAISE, "SELECT fencelock.reserve('me')":
            with pytest.raises(psycopg.Error, match="decides at READ COMMITTED"), operator.transaction():
                operator.execute(change.encode())
    assert database.value("SELECT epoch FROM fencelock.source") == 1


@pytest.mark.parametrize("change", [RAISE, "SELECT fencelock.purge()"])
def test_a_change_of_the_source_inside_a_savepoint_is_refused(database: Database, change: str) -> None:
    """A dump's row looks like that: the next grant began a new history."""
    PostgresSource(database.url()).install()
    with database.connect() as native:
        with pytest.raises(psycopg.Error, match="inside a savepoint"):
            native.execute(
                f"DO $$ BEGIN PERFORM {change.removeprefix('SELECT ')}; EXCEPTION WHEN division_by_zero THEN END $$"
            )
        native.execute(change.encode())
    is_whole, epoch = database.rows("SELECT is_whole, epoch FROM fencelock.describe()")[0]
    assert (is_whole, epoch) == (True, 2 if change == RAISE else 1)
