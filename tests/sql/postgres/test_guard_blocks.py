"""What only PostgreSQL has in a guarded block: savepoints, deferred constraints, statements that were prepared."""

import asyncio
import select
from asyncio import StreamReader
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

import fencelock
from fencelock import BlockLostError, GuardError, UnfencedWriteError
from fencelock_lab.proxy import Frame
from tests.sql.guarded import Guarded, in_block, write
from tests.sql.postgres.dialect import REFUSED
from tests.sql.postgres.framing import PostgresFraming, PostgresProxy
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import wait_until


class FarewellFraming(PostgresFraming):
    """The server's last message arrives, and the end of its stream does not."""

    async def reply(self, reader: StreamReader) -> Frame:
        with suppress(EOFError):
            return await super().reply(reader)
        await asyncio.Event().wait()
        raise AssertionError("not reached")


class FarewellProxy(PostgresProxy):
    """Keeps a client in the moment between the server's last message and the end of the connection."""

    def new_framing(self) -> FarewellFraming:
        return FarewellFraming()


def has_heard(native: psycopg.Connection) -> bool:
    """Return whether there is something to read from the server."""
    return bool(select.select([native], [], [], 0)[0])


# --- who ends it ----------------------------------------------------------------------------------
ENDS: dict[str, Callable[[psycopg.Connection], Any]] = {
    "with connection": lambda native: native.__exit__(None, None, None),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_block_cannot_end_its_own_transaction_by_psycopg(guarded: Guarded, how: str) -> None:
    with pytest.raises(GuardError, match="tried to end its own guarded transaction"):
        in_block(guarded, ENDS[how])
    assert guarded.value() == "first"


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "COMMIT AND CHAIN", "ROLLBACK; BEGIN"])
def test_a_block_that_ends_its_transaction_by_sql_fails_and_later_writes_are_not_committed(
    guarded: Guarded, end: str
) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE free (id int)")

    def body(native: psycopg.Connection) -> None:
        native.execute(end)
        if native.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            native.execute("INSERT INTO free VALUES (1)")

    with pytest.raises(GuardError, match="the guarded transaction ended inside its block") as caught:
        in_block(guarded, body)
    assert not caught.value.definite, "a COMMIT has written what came before it"
    assert guarded.value() == ("mine" if end.startswith("COMMIT") else "first")
    assert guarded.database.value("SELECT count(*) FROM free") == 0


@pytest.mark.parametrize("looks", [0, 1])
def test_g3_a_block_that_the_server_has_just_dismissed_is_lost_and_commits_nothing(
    guarded: Guarded, looks: int
) -> None:
    """Its session is over, its connection not yet. The server says so once, and whoever reads it has to remember."""

    def be_dismissed(guard: fencelock.Guard) -> None:
        with guard.transaction(HandmadeLease(5)) as native:
            write(native)
            guarded.kill(native)
            wait_until(lambda: has_heard(native))
            for _ in range(looks):
                assert native.is_cut_off()  # type: ignore[attr-defined]

    with FarewellProxy(guarded.database.server.port) as proxy:
        with pytest.raises(BlockLostError) as caught:
            be_dismissed(fencelock.guard(proxy.url(guarded.database.url()), resource=RESOURCE, lock=LOCK))
        assert caught.value.definite
        sent = [statement for request in proxy.requests for statement in request.statements]
        assert sent.count("COMMIT") == 1, "only the seal's: no other was sent, whose outcome would be unknown"
    assert guarded.value() == "first"


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


def test_a_failed_statement_whose_error_was_caught_fails_the_block(guarded: Guarded) -> None:
    def body(native: psycopg.Connection) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero):
            native.execute("SELECT 1 / 0")

    with pytest.raises(GuardError, match="its error was caught"):
        in_block(guarded, body)
    assert guarded.value() == "first"


def test_a_failed_statement_whose_error_was_caught_fails_the_callers_transaction(guarded: Guarded) -> None:
    lease, guard = guarded.sealed(5), guarded.guard()
    with (
        guarded.database.connect() as native,
        pytest.raises(GuardError, match="its error was caught"),
        native.transaction(),
        guard.check(lease, connection=native),
        pytest.raises(psycopg.errors.DivisionByZero),
    ):
        native.execute("SELECT 1 / 0")


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
def test_a_block_that_leaves_its_connection_unfit_fails(guarded: Guarded, change: str) -> None:
    def body(native: psycopg.Connection) -> None:
        if change == "close":
            native.close()
        else:
            native.pgconn.exec_(b"COPY reports TO STDOUT")

    with pytest.raises(GuardError, match=r"closed inside its block|in the middle of a statement"):
        in_block(guarded, body)
    assert guarded.value() == "first"


# --- G3: a frozen holder --------------------------------------------------------------------------


class ShorterLease(HandmadeLease):
    def remaining(self) -> float:
        return 20.0


@pytest.mark.parametrize(("own", "limit"), [("0", "20s"), ("10500ms", "10500ms"), ("1min", "20s")])
def test_g3_the_sessions_own_limit_stays_if_it_is_lower(guarded: Guarded, own: str, limit: str) -> None:
    guard = guarded.guard(options=f"-c idle_in_transaction_session_timeout={own}")
    with guard.transaction(ShorterLease(5)) as native:
        assert native.execute("SHOW idle_in_transaction_session_timeout").fetchone() == (limit,)
    with guard.transaction(HandmadeLease(6)) as native:
        assert native.execute("SHOW idle_in_transaction_session_timeout").fetchone() in ((own,), ("30s",))


# --- on the event loop ----------------------------------------------------------------------------


async def delete(guard: Any, native: psycopg.AsyncConnection) -> None:
    """Write after what was presented was taken back."""
    async with guard.check(HandmadeLease(5), connection=native):
        await native.execute("SELECT fencelock.withdraw('reports')")
        await native.execute("DELETE FROM reports")


def test_the_async_guard_checks_and_seals_in_the_callers_transaction(guarded: Guarded) -> None:
    async def work() -> None:
        guard, lease = guarded.async_guard(), HandmadeLease(5)
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
        del native
        assert guarded.value() == value
    assert len(backends) == 1


def test_an_async_block_commits_after_psycopg_has_thrown_away_what_it_prepared(guarded: Guarded) -> None:
    async def work() -> None:
        guard = guarded.async_guard()
        for _ in range(3):
            async with guard.transaction(HandmadeLease(5)) as native:
                await native.execute("UPDATE reports SET value = 'mine'", prepare=True)
                with suppress(psycopg.errors.UniqueViolation):
                    async with native.transaction():
                        await native.execute("INSERT INTO reports VALUES (1, 'twice')")
                await native.execute("SELECT 1")

    asyncio.run(work())
    assert guarded.value() == "mine"


def test_statements_that_the_last_block_threw_away_are_prepared_again(guarded: Guarded) -> None:
    guard = guarded.guard()
    backends = set()

    def throw_away(native: psycopg.Connection) -> None:
        backends.add(native.info.backend_pid)
        native.execute("DEALLOCATE ALL")
        raise ZeroDivisionError

    for _ in range(3):
        with suppress(ZeroDivisionError), guard.transaction(HandmadeLease(5)) as native:
            throw_away(native)
        del native
    with guard.transaction(HandmadeLease(5)) as native:
        backends.add(native.info.backend_pid)
        write(native, "again")
    assert len(backends) == 1, "the connection was kept"
    assert guarded.value() == "again"
