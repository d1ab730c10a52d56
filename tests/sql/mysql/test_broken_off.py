"""What MariaDB leaves of a routine that it breaks off between two statements: no handler rolls back then.

KILL QUERY does it, and `max_statement_time`, which any session may set. The session goes on, and commits what there is.
"""

import random
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pymysql
import pytest

from fencelock.model import digest_of_claim
from fencelock.stores.mysql.connection.expressions import expand
from fencelock.stores.statements import statements
from tests.sql.dialect import run
from tests.sql.guarded import Step
from tests.sql.mysql.breaking_off import make_without_handler
from tests.sql.mysql.dialect import MySQLDialect
from tests.sql.mysql.fix_mysql import Database
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide

ACQUIRE = (
    "CALL fencelock_acquire('lock', %s, 'me', {ttl_ms}, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), 'wait',"
    " 99, 1, '{history}')"
)
RELEASE = "CALL fencelock_release('lock', %s, 0)"
COUNTED = "SELECT waiting >= (SELECT COUNT(*) FROM fencelock_waiter) FROM fencelock_lock"
BREAK = "CALL fencelock_break('lock', %s, 'me', 'a test')"
HISTORY = statements("fencelock.stores.mysql.source", "routines_history.sql")


class Breaker:
    """A session that has the server break off its own calls."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.left = 0
        """How many calls were broken off within their transactions, which were committed afterwards."""
        [(self.history,)] = [row[4:5] for row in run(native, "CALL fencelock_describe()")]

    def acquire(self, claim: str, *, ttl_ms: int = 60_000) -> tuple[str, str]:
        """Return the statement, and its parameter."""
        return ACQUIRE.format(ttl_ms=ttl_ms, history=self.history), digest_of_claim(claim)

    def call(self, statement: str, parameter: str) -> Any:
        """Make a call, and return its row, if any."""
        return next(iter(run(self.native, statement, parameter)), None)

    def take(self, claim: str) -> int:
        """Acquire, and return the token; 0 without one."""
        return int((self.call(*self.acquire(claim)) or (0,))[0])

    def breaks_off(self, statement: str, parameter: str) -> bool:
        """Have a call broken off at a random moment; return whether that left something, which is committed."""
        limit_s = random.uniform(0, 0.0006)
        with suppress(pymysql.OperationalError):
            run(self.native, f"SET STATEMENT max_statement_time = {limit_s:.6f} FOR {statement}", parameter)
        [(has_left,)] = run(self.native, "SELECT @@in_transaction")
        run(self.native, "COMMIT")
        self.left += has_left
        return bool(has_left)


@pytest.fixture
def breaker(sql: MySQLDialect, url: str) -> Iterator[Breaker]:
    """Yield a session that calls the routines itself."""
    with sql.session(url) as native:
        yield Breaker(native)


def test_t1_no_acquire_that_was_broken_off_has_the_token_of_the_one_before(breaker: Breaker) -> None:
    """The row once named the new claim before it had a token of its own, and kept the last holder's."""
    last, turn = breaker.take("first"), 0
    run(breaker.native, RELEASE, "first")
    while breaker.left < 40:
        claim = f"claim {(turn := turn + 1)}"
        breaker.breaks_off(*breaker.acquire(claim))
        if token := breaker.take(claim):
            assert token > last
            last = token
        run(breaker.native, RELEASE, claim)


def test_a_queue_whose_requests_were_broken_off_is_empty_in_the_end(breaker: Breaker, database: Database) -> None:
    """A count of waiters that stays above them would have each acquire look for them, and one below pass over them."""
    turn = 0
    while breaker.left < 40:
        turn += 1
        breaker.take(holder := f"holder {turn}")
        claims = [f"claim {turn}.{number}" for number in range(3)]
        for claim in claims:
            breaker.breaks_off(*breaker.acquire(claim, ttl_ms=1))
            run(breaker.native, RELEASE, claim) if turn % 2 else time.sleep(0.002)
        run(breaker.native, RELEASE, holder)
        breaker.breaks_off(*breaker.acquire(f"late {turn}", ttl_ms=1))
        count = "SELECT waiting - (SELECT COUNT(*) FROM fencelock_waiter) FROM fencelock_lock"
        assert database.value(count) >= 0, "a count that is too low passes over a waiter"
    wait_until(lambda: breaker.take("last"))
    assert database.rows("SELECT waiting, (SELECT COUNT(*) FROM fencelock_waiter) FROM fencelock_lock") == [(0, 0)]


def test_no_waiter_that_was_granted_leaves_its_place_uncounted(breaker: Breaker) -> None:
    """MariaDB skips a DELETE that it would break off, now and then, and goes on without an error."""
    for turn in range(700):
        breaker.take(f"holder {turn}")
        own = breaker.acquire(f"waiter {turn}")
        breaker.call(*own)
        run(breaker.native, RELEASE, f"holder {turn}")
        breaker.breaks_off(*own)
        assert run(breaker.native, COUNTED) == [(1,)]
        run(breaker.native, RELEASE, f"waiter {turn}")


def test_no_lock_is_broken_without_its_entry_and_a_break_that_was_broken_off_is_finished(
    breaker: Breaker, database: Database
) -> None:
    """An operator that repeats it, as after a reply that was lost, breaks the lease, and once."""
    held = "SELECT COUNT(*) FROM fencelock_lock WHERE digest IS NOT NULL"
    turn = 0
    while breaker.left < 20:
        token = breaker.take(f"holder {(turn := turn + 1)}")
        own = digest_of_claim(f"breaker's {turn}")
        breaker.breaks_off(BREAK, own)
        entries = database.rows("SELECT token FROM fencelock_source_audit WHERE digest = %s", own)
        assert entries or database.value(held)
        [broken, *_] = breaker.call(BREAK, own)
        assert broken > token
        assert [(broken,)] == (entries or [(broken,)])
        assert not database.value(held)


def test_no_epoch_is_raised_without_its_entry(breaker: Breaker, database: Database) -> None:
    raise_it = "CALL fencelock_raise_epoch((SELECT history_id FROM fencelock_source), %s, 0, 'me', 'a test')"
    count = "SELECT epoch - 1, (SELECT COUNT(*) FROM fencelock_source_audit) FROM fencelock_source"
    turn = 0
    while breaker.left < 20:
        breaker.breaks_off(raise_it, f"history-{(turn := turn + 1)}")
        [(raised, entries)] = database.rows(count)
        assert raised <= entries


def test_h4_no_claim_that_has_ended_gets_a_lock_after_a_purge_that_was_broken_off(
    sql: MySQLDialect, breaker: Breaker, database: Database
) -> None:
    """The source has to remember the time before the lock's row is gone, which remembers the claim."""
    make_without_handler(database, expand(HISTORY["create_purge"]))
    breaker.take("a claim")
    run(breaker.native, RELEASE, "a claim")
    with database.connect(autocommit=False) as side:
        run(side, sql.hold_source)
        purging = Step(run, breaker.native, "CALL fencelock_purge()")
        wait_until(lambda: sql.is_blocked(database, breaker.native))
        database.rows(f"KILL QUERY {sql.number_of(breaker.native)}")
        with pytest.raises(pymysql.OperationalError, match="interrupted"):
            purging.end()
    assert run(breaker.native, "SELECT @@in_transaction") == [(1,)]
    run(breaker.native, "COMMIT")
    assert breaker.take("a claim") == 0


def test_a_purge_goes_through_all_its_parts(breaker: Breaker, database: Database) -> None:
    database.rows("INSERT INTO fencelock_lock (name, token) SELECT CONCAT('old ', seq), 1 FROM seq_1_to_1203")
    breaker.take("a claim")
    assert run(breaker.native, "CALL fencelock_purge()")[0][0] == 1203
    assert database.rows("SELECT name FROM fencelock_lock") == [(b"lock",)]


# --- what outlives a session ----------------------------------------------------------------------
def test_no_session_leaves_a_lock_to_an_xa_transaction(
    sql: MySQLDialect, breaker: Breaker, database: Database, url: str
) -> None:
    """Prepared, it would keep the lock's row from everybody when its session has ended."""
    with sql.session(url) as native:
        other = Breaker(native)
        other.take("its own")
        run(native, "XA START 'x'")
        with pytest.raises(pymysql.Error, match="XAER_RMFAIL"):
            run(native, RELEASE, "its own")
        run(native, "XA END 'x'")
        run(native, "XA PREPARE 'x'")
    run(breaker.native, "SET innodb_lock_wait_timeout = 1")
    try:
        [token, *_] = breaker.call(BREAK, "d")
    finally:
        with suppress(pymysql.Error):  # It has nothing.
            database.rows("XA ROLLBACK 'x'")
    assert token == 2


@pytest.mark.parametrize(
    "call",
    [
        "sign('lock', 'd', 7, 'history', 'key', @signature)",
        "decide('lock', 'd', 'me', 1000, 9000000000000000, 'try', 9)",
        "hold_lock('lock')",
        "end_claim('lock', 'd', 0)",
        "remember_ended('lock', 'd', 0)",
        "drop_waiter('lock', 1, 0)",
        "live_head('lock', 1, 0, @ticket)",
        "newest_key(@key)",
    ],
)
def test_no_account_with_execute_on_the_database_calls_what_other_routines_call(
    sql: MySQLDialect, breaker: Breaker, database: Database, call: str
) -> None:
    """Such as one that signs any sequencer: a guard in the same database may come with EXECUTE on all routines."""
    breaker.take("a claim")
    name = f"clerk_{database.name}"
    database.rows(f"CREATE USER {name}")
    database.rows(f"GRANT EXECUTE ON {database.name}.* TO {name}")
    try:
        with sql.session(database.url(user=name)) as native, pytest.raises(pymysql.Error, match="command denied"):
            run(native, f"CALL fencelock_{call}")
    finally:
        database.rows(f"DROP USER {name}")
