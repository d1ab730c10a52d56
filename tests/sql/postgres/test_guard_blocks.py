"""A guarded block of PostgreSQL's: whose connection it is, who ends it, and what becomes of a holder that is frozen."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import fencelock
import fencelock.aio
from fencelock import GuardError, SourceUnavailableError, StaleTokenError, UnfencedWriteError
from tests.guards import LOCK, RESOURCE, HandmadeLease
from tests.helpers import wait_until
from tests.sql.postgres.guarded import REFUSED, Guarded, Step


class Briefly(HandmadeLease):
    """A lease with little time left."""

    def remaining(self) -> float:
        return 0.2


def write(native: psycopg.Connection, value: str = "mine") -> None:
    native.execute("UPDATE reports SET value = %s WHERE id = 1", (value,))


def in_block(guarded: Guarded, body: Callable[[psycopg.Connection], Any], lease: Any = None) -> Any:
    with guarded.guard().transaction(lease or HandmadeLease(5)) as native:
        write(native)
        return body(native)


def terminate(guarded: Guarded, backend: int) -> None:
    guarded.database.value("SELECT pg_terminate_backend(%s)", backend)
    wait_for_end(guarded, backend)


def wait_for_end(guarded: Guarded, backend: int) -> None:
    wait_until(lambda: not guarded.database.rows("SELECT 1 FROM pg_stat_activity WHERE pid = %s", backend))


# --- who ends it ----------------------------------------------------------------------------------
ENDS: dict[str, Callable[[psycopg.Connection], Any]] = {
    "commit()": lambda native: native.commit(),
    "rollback()": lambda native: native.rollback(),
    "with connection": lambda native: native.__exit__(None, None, None),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_block_cannot_end_its_own_transaction_by_psycopg(guarded: Guarded, how: str) -> None:
    with pytest.raises(GuardError, match="tried to end its own guarded transaction"):
        in_block(guarded, ENDS[how])
    assert guarded.value() == "first"


def test_a_block_that_swallows_that_refusal_is_undone_all_the_same(guarded: Guarded) -> None:
    def swallow(native: psycopg.Connection) -> None:
        with pytest.raises(GuardError):
            native.commit()

    with pytest.raises(GuardError, match="nothing of the block was written"):
        in_block(guarded, swallow)
    assert guarded.value() == "first"


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "COMMIT AND CHAIN", "ROLLBACK; BEGIN"])
def test_a_block_that_ends_it_by_sql_is_told_and_what_follows_is_not_committed(guarded: Guarded, end: str) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE free (id int)")

    def body(native: psycopg.Connection) -> None:
        native.execute(end)
        if native.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            native.execute("INSERT INTO free VALUES (1)")

    with pytest.raises(GuardError, match="the block ended its own guarded transaction"):
        in_block(guarded, body)
    assert guarded.value() == ("mine" if end.startswith("COMMIT") else "first")
    assert guarded.database.value("SELECT count(*) FROM free") == 0


def test_writes_after_a_commit_by_sql_are_refused(guarded: Guarded) -> None:
    def body(native: psycopg.Connection) -> None:
        native.execute("COMMIT; BEGIN")
        write(native, "after")

    with pytest.raises(UnfencedWriteError, match=REFUSED):
        in_block(guarded, body)


def test_savepoints_and_nested_blocks_of_psycopg_work(guarded: Guarded) -> None:
    def undo(native: psycopg.Connection) -> None:
        with native.transaction():
            write(native, "undone")
            raise ZeroDivisionError

    def body(native: psycopg.Connection) -> None:
        with native.transaction():
            write(native, "kept")
        with pytest.raises(ZeroDivisionError):
            undo(native)
        with pytest.raises(psycopg.errors.UniqueViolation), native.transaction():
            native.execute("INSERT INTO reports VALUES (1, 'twice')")

    in_block(guarded, body)
    assert guarded.value() == "kept"


def test_a_failed_statement_that_was_swallowed_is_told(guarded: Guarded) -> None:
    def body(native: psycopg.Connection) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero):
            native.execute("SELECT 1 / 0")

    with pytest.raises(GuardError, match="its error was caught"):
        in_block(guarded, body)
    assert guarded.value() == "first"


def test_an_error_of_the_users_statement_stays_psycopgs(guarded: Guarded) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        in_block(guarded, lambda native: native.execute("SELECT 1 / 0"))
    assert guarded.value() == "first"


def test_a_deferred_constraint_of_the_users_fails_as_psycopgs_own_error(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE one (id int UNIQUE DEFERRABLE INITIALLY DEFERRED); INSERT INTO one VALUES (1)")
    with pytest.raises(psycopg.errors.UniqueViolation):
        in_block(guarded, lambda native: native.execute("INSERT INTO one VALUES (1)"))
    in_block(guarded, lambda native: native.execute("INSERT INTO one VALUES (2)"))
    assert guarded.value() == "mine"


def test_a_deferred_trigger_may_write_to_protected_tables(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("""
            CREATE TABLE queue (id int);
            CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN UPDATE reports SET value = 'at commit'; RETURN NULL; END $$;
            CREATE CONSTRAINT TRIGGER later AFTER INSERT ON queue DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION later();
        """)
        with pytest.raises(psycopg.Error, match=REFUSED):
            native.execute("INSERT INTO queue VALUES (1)")
    in_block(guarded, lambda native: native.execute("INSERT INTO queue VALUES (1)"))
    assert guarded.value() == "at commit"


@pytest.mark.parametrize("change", ["close", "copy"])
def test_a_block_that_leaves_its_connection_unfit_is_told(guarded: Guarded, change: str) -> None:
    def body(native: psycopg.Connection) -> None:
        if change == "close":
            native.close()
        else:
            native.pgconn.exec_(b"COPY reports TO STDOUT")

    with pytest.raises(GuardError, match=r"closed inside its block|in the middle of a statement"):
        in_block(guarded, body)
    assert guarded.value() == "first"


def test_a_connection_that_a_block_has_changed_is_not_lent_again(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    backends = []
    for change in (
        lambda native: None,
        lambda native: setattr(native, "row_factory", psycopg.rows.dict_row),
        lambda native: None,
    ):
        with guard.transaction(lease) as native:
            backends.append(native.info.backend_pid)
            assert native.execute("SELECT 1").fetchone() == (1,)
            change(native)
    assert backends[0] == backends[1] != backends[2]


def test_a_connection_that_the_server_has_ended_meanwhile_is_replaced(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    for _ in range(2):
        with guard.transaction(lease) as native:
            write(native)
            backend = native.info.backend_pid
        terminate(guarded, backend)


# --- G3: a frozen holder --------------------------------------------------------------------------
def test_g3_a_holder_that_is_idle_past_its_lease_is_ended_by_the_server(guarded: Guarded) -> None:
    lease = Briefly(5)
    guarded.guard().seal(lease)

    def freeze(native: psycopg.Connection) -> None:
        # What a frozen process does not notice: its successor seals.
        Step(lambda: guarded.guard().seal(HandmadeLease(6))).end()
        wait_for_end(guarded, native.info.backend_pid)

    with pytest.raises(GuardError, match=r"closed inside its block|idle for longer than its lease had left"):
        in_block(guarded, freeze, lease)
    assert (guarded.value(), guarded.guard().mark().token) == ("first", 6)


def test_g3_a_statement_after_that_says_so(guarded: Guarded) -> None:
    lease = Briefly(5)
    guarded.guard().seal(lease)

    def freeze(native: psycopg.Connection) -> None:
        Step(lambda: guarded.guard().seal(HandmadeLease(6))).end()
        write(native, "late")

    with pytest.raises(GuardError, match="idle for longer than its lease had left"):
        in_block(guarded, freeze, lease)
    assert guarded.value() == "first"


@pytest.mark.parametrize(("own", "limit"), [("0", "200ms"), ("50ms", "50ms"), ("10s", "200ms")])
def test_g3_the_sessions_own_limit_stays_if_it_is_lower(guarded: Guarded, own: str, limit: str) -> None:
    guard = guarded.guard(options=f"-c idle_in_transaction_session_timeout={own}")
    with guard.transaction(Briefly(5)) as native:
        assert native.execute("SHOW idle_in_transaction_session_timeout").fetchone() == (limit,)
    with guard.transaction(HandmadeLease(6)) as native:
        assert native.execute("SHOW idle_in_transaction_session_timeout").fetchone() in ((own,), ("30s",))


def test_g3_a_frozen_sealer_does_not_keep_others_from_the_mark(guarded: Guarded) -> None:
    """Between the two round trips of a seal a process may freeze as well."""
    connection = guarded.guard()._core.store.connect()
    flow_requests = fencelock.protocol.guard_requests
    connection.perform(flow_requests.Begin())
    connection.perform(flow_requests.ReadMarks((RESOURCE,)))
    guarded.guard().seal(HandmadeLease(6))
    connection.close()
    assert guarded.guard().mark().token == 6


# --- lost connections -----------------------------------------------------------------------------
def test_a_connection_lost_before_the_commit_is_definite(guarded: Guarded) -> None:
    def kill(native: psycopg.Connection) -> None:
        terminate(guarded, native.info.backend_pid)
        write(native, "late")

    with pytest.raises(psycopg.OperationalError):
        in_block(guarded, kill)
    assert guarded.value() == "first"
    guarded.sealed(6)


def test_a_connection_lost_before_the_end_of_the_block_is_definite_too(guarded: Guarded) -> None:
    def kill(native: psycopg.Connection) -> None:
        terminate(guarded, native.info.backend_pid)

    with pytest.raises(GuardError, match="closed inside its block") as caught:
        in_block(guarded, kill)
    assert caught.value.definite
    assert guarded.value() == "first"


def test_a_server_that_is_not_there_is_unavailable() -> None:
    guard = fencelock.guard("postgresql://127.0.0.1:1/nowhere", resource="r", lock=LOCK)
    for attempt in (guard.mark, lambda: guard.seal(HandmadeLease(5))):
        with pytest.raises(SourceUnavailableError, match="cannot be reached") as caught:
            attempt()
        assert caught.value.definite


def test_a_forked_child_leaves_its_parents_block_alone(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    with guard.transaction(lease) as native:
        write(native)
        child = os.fork()
        if child == 0:  # pragma: no cover - another process.
            code = 1
            try:
                with guarded.guard().transaction(lease.sequencer) as own:
                    own.execute("INSERT INTO reports VALUES (2, 'child')")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        write(native, "parent")
    assert (guarded.value(1), guarded.value(2)) == ("parent", "child")


# --- on the event loop ----------------------------------------------------------------------------
def aio_guard(guarded: Guarded) -> Any:
    return fencelock.aio.guard(guarded.database.url(), resource=RESOURCE, lock=LOCK)


def test_the_async_guard_yields_an_async_connection_and_uses_no_thread(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a thread was asked for")

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", refuse)

    async def work() -> None:
        guard, lease = aio_guard(guarded), HandmadeLease(5)
        await guard.seal(lease)
        async with guard.transaction(lease) as native:
            assert isinstance(native, psycopg.AsyncConnection)
            await native.execute("UPDATE reports SET value = 'async'")
            with pytest.raises(GuardError, match="tried to end"):
                await native.commit()
            native.attempt = None
        assert (await guard.mark()).token == 5
        await guard.close(lease)
        with pytest.raises(StaleTokenError):
            await guard.seal(lease)

    asyncio.run(work())
    assert guarded.value() == "async"


async def delete(guard: Any, native: psycopg.AsyncConnection) -> None:
    """Write after what was presented was taken back."""
    async with guard.check(HandmadeLease(5), connection=native):
        await native.execute("SELECT fencelock.withdraw('reports')")
        await native.execute("DELETE FROM reports")


def test_the_async_guard_checks_and_seals_in_the_callers_transaction(guarded: Guarded) -> None:
    async def work() -> None:
        guard, lease = aio_guard(guarded), HandmadeLease(5)
        async with await psycopg.AsyncConnection.connect(guarded.database.url()) as native:
            await guard.seal(lease, connection=native)
            async with guard.check(lease, connection=native):
                await native.execute("UPDATE reports SET value = 'own'")
        async with await psycopg.AsyncConnection.connect(guarded.database.url()) as native:
            with pytest.raises(UnfencedWriteError):
                await delete(guard, native)
        with pytest.raises(GuardError, match=r"must be the psycopg\.AsyncConnection"):
            await guard.check(lease, connection=object())

    asyncio.run(work())
    assert guarded.value() == "own"


def test_tasks_of_one_holder_work_at_the_same_time(guarded: Guarded) -> None:
    async def work() -> None:
        guard, lease = aio_guard(guarded), HandmadeLease(5)
        await guard.seal(lease)
        entered, all_in = [], asyncio.Event()

        async def one(number: int) -> None:
            async with guard.transaction(lease) as native:
                entered.append(number)
                if len(entered) == 5:
                    all_in.set()
                await all_in.wait()
                await native.execute("INSERT INTO reports VALUES (%s, '')", (number,))

        async with asyncio.timeout(30):
            await asyncio.gather(*(one(number) for number in range(10, 15)))

    asyncio.run(work())
    assert guarded.database.value("SELECT count(*) FROM reports") == 6


def test_a_task_cancelled_while_it_waits_for_the_mark_leaves_nothing_behind(guarded: Guarded) -> None:
    async def work() -> None:
        guard, lease = aio_guard(guarded), HandmadeLease(6)
        task = asyncio.ensure_future(guard.seal(lease))
        await asyncio.to_thread(guarded.wait_for_anybody)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with guarded.guard().transaction(HandmadeLease(5)) as native:
        Step(lambda: asyncio.run(work())).end()
        write(native)
    assert guarded.guard().mark().token == 5
    guarded.sealed(7)


def test_a_task_cancelled_in_its_block_writes_nothing_and_one_at_its_end_is_committed(guarded: Guarded) -> None:
    async def work() -> None:
        guard, lease = aio_guard(guarded), HandmadeLease(5)
        inside = asyncio.Event()

        async def block(value: str, *, stay: bool) -> None:
            async with guard.transaction(lease) as native:
                await native.execute("UPDATE reports SET value = %s", (value,))
                inside.set()
                if stay:
                    await asyncio.Event().wait()
                asyncio.current_task().cancel()

        task = asyncio.ensure_future(block("undone", stay=True))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert guarded.value() == "first"
        with pytest.raises(asyncio.CancelledError):
            await asyncio.ensure_future(block("committed", stay=False))
        assert guarded.value() == "committed"

    asyncio.run(work())


def test_a_guard_serves_several_loops_one_after_the_other(guarded: Guarded) -> None:
    guard, lease = aio_guard(guarded), HandmadeLease(5)

    async def work(value: str) -> None:
        async with guard.transaction(lease) as native:
            await native.execute("UPDATE reports SET value = %s", (value,))

    for value in ("one", "two"):
        asyncio.run(work(value))
        assert guarded.value() == value


def test_a_block_that_throws_away_the_guards_statements_is_not_written_and_the_next_one_is(guarded: Guarded) -> None:
    with pytest.raises(GuardError, match="DEALLOCATE ALL"):
        in_block(guarded, lambda native: native.execute("DEALLOCATE ALL"))
    assert guarded.value() == "first"
    in_block(guarded, lambda native: native)
    assert guarded.value() == "mine"


def throw_away_by_rollback(native: psycopg.Connection) -> None:
    with suppress(psycopg.errors.UniqueViolation), native.transaction():
        native.execute("INSERT INTO reports VALUES (1, 'twice')")


def throw_away_by_ddl(native: psycopg.Connection) -> None:
    native.execute("CREATE TEMPORARY TABLE passing (id int) ON COMMIT DROP")
    native.execute("ALTER TABLE passing ADD COLUMN more int")


def throw_away_in_a_pipeline(native: psycopg.Connection) -> None:
    with native.pipeline():
        throw_away_by_ddl(native)


@pytest.mark.parametrize("throw_away", [throw_away_by_rollback, throw_away_by_ddl, throw_away_in_a_pipeline])
def test_a_block_commits_after_psycopg_has_thrown_away_what_it_prepared(
    guarded: Guarded, throw_away: Callable[[psycopg.Connection], None]
) -> None:
    """It says DEALLOCATE ALL before the statement that follows, and would mean the guard's statements too."""
    guard = guarded.guard()
    backends = set()
    for value in ("one", "two", "three"):
        with guard.transaction(HandmadeLease(5)) as native:
            backends.add(native.info.backend_pid)
            for _ in range(native.prepare_threshold + 1):
                write(native, value)
            throw_away(native)
            native.execute("SELECT 1")
        assert guarded.value() == value
    assert len(backends) == 1


def test_an_async_block_commits_after_psycopg_has_thrown_away_what_it_prepared(guarded: Guarded) -> None:
    async def work() -> None:
        guard = aio_guard(guarded)
        for _ in range(3):
            async with guard.transaction(HandmadeLease(5)) as native:
                await native.execute("UPDATE reports SET value = 'mine'", prepare=True)
                with suppress(psycopg.errors.UniqueViolation):
                    async with native.transaction():
                        await native.execute("INSERT INTO reports VALUES (1, 'twice')")
                await native.execute("SELECT 1")

    asyncio.run(work())
    assert guarded.value() == "mine"


def test_statements_that_somebody_threw_away_between_two_blocks_are_prepared_again(guarded: Guarded) -> None:
    guard = guarded.guard()
    with guard.transaction(HandmadeLease(5)) as native:
        write(native)
    native.execute("DISCARD ALL")
    with guard.transaction(HandmadeLease(5)) as again:
        assert again is native, "the connection was kept"
        write(again, "again")
    assert guarded.value() == "again"
