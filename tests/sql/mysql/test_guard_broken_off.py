"""What MariaDB leaves of a guard's routine that it breaks off between two statements, or whose transaction it undoes.

KILL QUERY and `max_statement_time` break off, and no handler runs: see test_broken_off.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiomysql
import pymysql
import pytest

from fencelock import RightError, SourceUnavailableError
from fencelock.stores.mysql.connection.expressions import expand
from fencelock.stores.statements import statements
from tests.sql.dialect import run, run_async
from tests.sql.guarded import Guarded, Step, write
from tests.sql.mysql.breaking_off import make_without_handler
from tests.sql.mysql.dialect import DEADLOCK, UNFENCED
from tests.support.guards import RESOURCE, HandmadeLease, sequencer

pytestmark = pytest.mark.server_wide

INTERRUPTED = 1317
MARKS = statements("fencelock.stores.mysql.guard", "routines_marks.sql")
HEX = RESOURCE.encode().hex().upper()
WAITING = "SELECT trx_mysql_thread_id FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'"
HOLD_MARK = f"SELECT 1 FROM fencelock_mark WHERE resource = '{RESOURCE}' FOR UPDATE"
HOLD_FLOOR = "SELECT 1 FROM fencelock_floor WHERE source_id = 'source' FOR UPDATE"


def break_off(guarded: Guarded, hold: str, call: Callable[[], Any]) -> BaseException | None:
    """Make a call, have the server break it off where it waits for what `hold` locks, and return its error."""
    with guarded.client() as side:
        run(side, "START TRANSACTION")
        run(side, hold)
        step = Step(call)
        guarded.wait_for_anybody()
        [(number,)] = guarded.database.rows(WAITING)
        guarded.database.rows(f"KILL QUERY {number}")
    with suppress(BaseException):
        step.end()
    return step.error


def set_floor(guarded: Guarded) -> None:
    """Have a row that each new mark's seal reads, below every token."""
    guarded.database.rows("INSERT INTO fencelock_floor (source_id, token) VALUES ('source', 1)")


# --- what is presented ----------------------------------------------------------------------------
@pytest.mark.parametrize("end", ["withdraw()", "commit()", "rollback()", "unbind()", f"take_back('{HEX}')"])
def test_g6_nothing_that_was_presented_outlives_an_end_that_was_broken_off(guarded: Guarded, end: str) -> None:
    """The session could write again once its settings were restored, and by what it had presented before.

    A setting that is none ends the routine at the first one that it restores.
    """
    guarded.sealed(5)
    with guarded.client() as native:
        run(native, "START TRANSACTION")
        guarded.present(native, 5)
        run(native, "SET @fencelock_usual_wait = 'no number'")
        with pytest.raises(pymysql.Error, match="wait_timeout"):
            run(native, f"CALL fencelock_{end}")
        run(native, "COMMIT")
        run(native, "START TRANSACTION READ WRITE")
        with pytest.raises(pymysql.Error, match=UNFENCED):
            write(native, "later")


def test_g6_a_block_is_told_of_its_end_though_another_one_has_begun_in_its_session(guarded: Guarded) -> None:
    """After a deadlock, for example, which the first block's own code has caught."""
    guarded.sealed(5)
    guarded.guard("others").seal(HandmadeLease(5))
    with guarded.client() as native:
        run(native, "START TRANSACTION")
        guarded.present(native, 5)
        run(native, "ROLLBACK")
        run(native, "START TRANSACTION READ WRITE")
        guarded.present(native, 5, "others")
        with pytest.raises(pymysql.Error, match="FL007"):
            run(native, f"CALL fencelock_take_back('{HEX}')")


# --- a transaction that the server rolled back ----------------------------------------------------
def test_no_count_of_observe_mode_hides_that_the_callers_transaction_was_rolled_back(guarded: Guarded) -> None:
    """It would go on without the marks that it had locked, and without what it had written."""
    database, count = guarded.database, f"CALL fencelock_record_refusal('{RESOURCE}', 'stale')"
    database.rows("CREATE TABLE own (id int PRIMARY KEY)")
    with guarded.client() as native, guarded.client() as other:
        run(native, count)
        run(other, "START TRANSACTION")
        run(other, "SELECT 1 FROM fencelock_observation FOR UPDATE")
        # The server rolls back the smaller one.
        run(other, "INSERT INTO own SELECT seq FROM seq_100_to_199")
        run(native, "START TRANSACTION")
        run(native, "INSERT INTO own VALUES (1)")
        counting = Step(run, native, count)
        guarded.wait_for_lock(native)
        run(other, "INSERT INTO own VALUES (1)")
        with pytest.raises(pymysql.Error) as caught:
            counting.end()
    assert caught.value.args[0] == DEADLOCK


# --- seals ----------------------------------------------------------------------------------------
def test_a_seal_that_was_broken_off_binds_nothing(guarded: Guarded) -> None:
    """Its session commits the row that it has made, which is no mark yet."""
    set_floor(guarded)
    make_without_handler(guarded.database, expand(MARKS["fencelock_seal"]))
    with guarded.client() as native:
        call = f"CALL fencelock_seal('{sequencer(5)}', 'new')"
        error = break_off(guarded, HOLD_FLOOR, lambda: run(native, call))
        assert isinstance(error, pymysql.Error)
        assert error.args[0] == INTERRUPTED
        assert run(native, "SELECT @@in_transaction") == [(1,)]
        run(native, "COMMIT")
    assert guarded.database.rows("SELECT lock_name, token FROM fencelock_mark WHERE resource = 'new'") == [(None, None)]
    with guarded.client() as native:
        run(native, f"CALL fencelock_seal('{sequencer(7, lock='another')}', 'new')")
    assert guarded.database.value("SELECT token FROM fencelock_mark WHERE resource = 'new'") == 7


# --- the library ----------------------------------------------------------------------------------
def open_one(guarded: Guarded, guard: Any) -> None:
    with guard.transaction(HandmadeLease(5)) as native:
        write(native)


def open_one_async(guarded: Guarded, _: Any) -> None:
    async def block() -> None:
        async with guarded.async_guard().transaction(HandmadeLease(5)):
            pass

    asyncio.run(block())


def seal_one(guarded: Guarded, guard: Any) -> None:
    guard.seal(HandmadeLease(6))


CALLS = {"a seal": seal_one, "a block": open_one, "an asynchronous block": open_one_async}


@pytest.mark.parametrize("call", CALLS)
def test_a_guard_whose_call_was_broken_off_has_committed_nothing_and_goes_on(guarded: Guarded, call: str) -> None:
    guard = guarded.guard()
    guard.seal(HandmadeLease(5))
    before = guarded.database.rows("SELECT * FROM fencelock_mark")
    error = break_off(guarded, HOLD_MARK, lambda: CALLS[call](guarded, guard))
    assert isinstance(error, SourceUnavailableError)
    assert error.definite
    assert guarded.database.rows("SELECT * FROM fencelock_mark") == before
    open_one(guarded, guard)
    assert guarded.value() == "mine"


def test_a_guard_asks_again_after_a_commit_that_was_broken_off(guarded: Guarded) -> None:
    """It could have come after the commit."""
    set_floor(guarded)
    guard = guarded.guard()
    assert break_off(guarded, HOLD_FLOOR, lambda: guard.seal(HandmadeLease(5))) is None
    open_one(guarded, guard)
    assert guarded.value() == "mine"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_callers_session_may_write_again_after_a_lease_could_not_be_presented(
    guarded: Guarded, role: str, is_async: bool
) -> None:
    """Whatever the routine has done by then: it makes the session read-only before it compares the mark."""
    owner, lease = guarded.guard(), guarded.sealed(5)
    owner.grant(role)
    state = "SELECT @@tx_read_only, @fencelock_presented, @@idle_transaction_timeout"

    def present(native: Any) -> list[tuple[Any, ...]]:
        run(native, "START TRANSACTION")
        admission = owner.check(lease, connection=native)
        owner.revoke(role, reason="a test")
        with pytest.raises(RightError), admission:
            pass
        return run(native, state)

    async def present_async(native: Any) -> list[tuple[Any, ...]]:
        await run_async(native, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        await run_async(native, "START TRANSACTION")
        admission = guarded.async_guard().check(lease, connection=native)
        await admission
        owner.revoke(role, reason="a test")
        with pytest.raises(RightError):
            async with admission:
                pass
        return await run_async(native, state)

    if is_async:
        assert asyncio.run(with_client(guarded, role, present_async)) == [(0, None, 0)]
    else:
        with guarded.client(user=role) as native:
            assert present(native) == [(0, None, 0)]


async def with_client(guarded: Guarded, role: str, use: Callable[[Any], Awaitable[Any]]) -> Any:
    server = guarded.database.server
    native = await aiomysql.connect(host=server.host, port=server.port, user=role, db=guarded.database.name)
    try:
        return await use(native)
    finally:
        native.close()
