"""What only MySQL has in a guarded block: ends by SQL and by routines, session settings, the caller's transaction."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiomysql
import pymysql
import pytest

import fencelock
import fencelock.aio
from fencelock import GuardError, SourceUnavailableError, StaleTokenError, UnfencedWriteError
from fencelock.stores.mysql.connection.wire import results
from fencelock.stores.mysql.guard.store import MySQLGuard
from tests.sql.dialect import run, run_async
from tests.sql.guarded import BriefLease, Guarded, Step, in_block, write
from tests.support.guards import LOCK, RESOURCE, HandmadeLease

pytestmark = pytest.mark.server_wide

# --- who ends it ----------------------------------------------------------------------------------
ENDS: dict[str, Callable[[Any], Any]] = {
    "begin()": lambda native: native.begin(),
    "autocommit()": lambda native: native.autocommit(True),
    "COMMIT": lambda native: run(native, "COMMIT"),
    "commit and chain": lambda native: run(native, " \n commit and chain"),
    "BEGIN": lambda native: run(native, "BEGIN"),
    "START TRANSACTION": lambda native: run(native, "START  TRANSACTION READ WRITE"),
    "ROLLBACK": lambda native: run(native, "ROLLBACK"),
    "XA": lambda native: run(native, "XA START 'x'"),
    "SET autocommit": lambda native: run(native, "SET SESSION autocommit = 1"),
    "SET LOCAL autocommit": lambda native: run(native, "SET LOCAL autocommit = 1"),
    "SET of several": lambda native: run(native, "SET @x = 1,\n autocommit = 1"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_block_cannot_end_its_own_transaction_by_sql(guarded: Guarded, how: str) -> None:
    with pytest.raises(GuardError, match="tried to end its own guarded transaction"):
        in_block(guarded, ENDS[how])
    assert guarded.value() == "first"


SLIPS = [
    "/* past */ COMMIT",
    "CREATE TABLE by_ddl (id int)",
    "CALL ends()",
    "/**/ COMMIT AND CHAIN",
    "CALL ends_and_begins()",
]


@pytest.mark.parametrize("slip", SLIPS)
def test_an_end_that_slips_past_the_watch_is_reported_and_later_writes_are_not_committed(
    guarded: Guarded, slip: str
) -> None:
    guarded.database.rows("CREATE TABLE free (id int)")
    guarded.database.rows("CREATE PROCEDURE ends() COMMIT")
    guarded.database.rows("CREATE PROCEDURE ends_and_begins() BEGIN COMMIT; START TRANSACTION READ WRITE; END")

    def body(native: Any) -> None:
        try:
            run(native, slip)
            run(native, "INSERT INTO free VALUES (1)")
            write(native, "after")
        except pymysql.Error as error:
            assert error.args[0] == 1792, "the session is read-only by now"  # noqa: PT017 - it may pass, too

    with pytest.raises(GuardError, match="ended inside its block") as caught:
        in_block(guarded, body)
    assert not caught.value.definite
    assert guarded.value() == "mine", "what came before was written under the mark"
    assert guarded.database.rows("SELECT * FROM free") == []


def test_g6_what_a_block_writes_after_a_routine_has_set_autocommit_is_compared_with_the_mark(guarded: Guarded) -> None:
    """The server takes it, and commits it at once: nothing at the block's end would undo it."""
    guarded.database.rows("CREATE PROCEDURE sets() SET autocommit = 1")

    def body(native: Any) -> None:
        run(native, "CALL sets()")
        Step(lambda: guarded.sealed(6)).end()
        with pytest.raises(pymysql.Error, match="FL002"):
            write(native, "stale")

    with pytest.raises(GuardError, match="ended inside its block"):
        in_block(guarded, body)
    assert guarded.value() == "mine"


@pytest.mark.filterwarnings("ignore:The 'reconnect' argument is deprecated")
def test_g3_a_block_gets_no_other_connection_in_the_place_of_its_own(guarded: Guarded) -> None:
    """It would be in autocommit mode: what it wrote to any table but a protected one would be written."""

    def body(native: Any) -> None:
        guarded.kill(native)
        with pytest.raises(GuardError, match="was closed inside its block"):
            native.ping(reconnect=True)
        with suppress(pymysql.Error):
            run(native, "INSERT INTO free VALUES (1)")

    async def work() -> None:
        guard = fencelock.aio.guard(guarded.database.url(), resource=RESOURCE, lock=LOCK)
        async with guard.transaction(HandmadeLease(5)) as native:
            guarded.kill(native)
            with pytest.raises(GuardError, match="was closed inside its block"):
                await native.ping()
            with suppress(pymysql.Error):
                async with native.cursor() as cursor:
                    await cursor.execute("INSERT INTO free VALUES (1)")

    guarded.database.rows("CREATE TABLE free (id int)")
    for attempt in (lambda: in_block(guarded, body), lambda: asyncio.run(work())):
        with pytest.raises(GuardError, match="was closed inside its block"):
            attempt()
    assert guarded.database.rows("SELECT * FROM free") == []


def test_a_write_after_the_transactions_end_says_what_happened(guarded: Guarded) -> None:
    def body(native: Any) -> None:
        run(native, "/* past */ COMMIT")
        write(native, "after")

    with pytest.raises(GuardError, match="ended inside its block"):
        in_block(guarded, body)


def test_savepoints_work_and_an_error_undoes_its_statement_only(guarded: Guarded) -> None:
    def body(native: Any) -> None:
        run(native, "SAVEPOINT one")
        write(native, "undone")
        run(native, "ROLLBACK TO SAVEPOINT one")
        run(native, "rollback work to one")
        with pytest.raises(pymysql.IntegrityError):
            run(native, "INSERT INTO reports VALUES (2, 'x'), (1, 'twice')")

    in_block(guarded, body)
    assert guarded.database.rows("SELECT id, value FROM reports") == [(1, "mine")]


def test_the_block_meets_the_servers_own_defaults_without_autocommit(guarded: Guarded) -> None:
    names = ("sql_mode", "sql_safe_updates", "time_zone", "tx_isolation", "innodb_lock_wait_timeout")
    look = f"SELECT {', '.join(f'@@{{0}}.{name}' for name in names)}"
    with guarded.guard().transaction(HandmadeLease(5)) as native:
        assert run(native, look.format("session")) == run(native, look.format("global"))
        assert not native.get_autocommit()
        assert isinstance(native, pymysql.Connection)


def test_a_kept_connection_presents_nothing(guarded: Guarded) -> None:
    """Whichever way the block before was left."""
    guard, lease = guarded.guard(), HandmadeLease(5)

    def leave(how: str) -> None:
        with guard.transaction(lease) as native:
            write(native)
            seen.append(guarded.sql.number_of(native))
            if how == "fails":
                raise ZeroDivisionError

    seen: list[int] = []
    store = guard._core.store
    for how in ("well", "fails"):
        try:
            leave(how)
        except ZeroDivisionError:
            assert how == "fails"
        native = store._idle.take()
        assert guarded.sql.number_of(native) == seen[0]
        look = "SELECT @fencelock_presented, @@tx_read_only, @@wait_timeout = @@global.wait_timeout"
        assert results(native, look) == [[(None, 1, 1)]]
        with pytest.raises(pymysql.Error, match="READ ONLY"):
            results(native, "UPDATE reports SET value = 'unfenced'")
        results(native, "ROLLBACK")
        store._idle.give_back(native)
        del native


# --- G3: a frozen holder --------------------------------------------------------------------------


@pytest.mark.parametrize(("own", "limit"), [(0, 1), (100, 1)])
def test_g3_every_limit_of_the_server_is_lowered(guarded: Guarded, own: int, limit: int) -> None:
    names = ("idle_transaction_timeout", "idle_write_transaction_timeout", "idle_readonly_transaction_timeout")
    for name in names:
        guarded.database.rows(f"SET GLOBAL {name} = {own}")
    try:
        with guarded.guard().transaction(BriefLease(5)) as native:
            assert run(native, "SELECT @@" + ", @@".join(names)) == [(limit,) * 3]
    finally:
        for name in names:
            guarded.database.rows(f"SET GLOBAL {name} = 0")


# --- lost connections -----------------------------------------------------------------------------


def test_a_seal_that_waited_too_long_leaves_no_transaction_and_may_be_tried_again(guarded: Guarded) -> None:
    """The server that reports an error does not say that the transaction is still open."""
    guard, lease = guarded.guard(), HandmadeLease(6)
    guarded.sealed(5)
    guarded.database.rows("SET GLOBAL innodb_lock_wait_timeout = 1")
    try:
        with guarded.client() as other:
            run(other, "START TRANSACTION")
            guarded.present(other, 5)
            with pytest.raises(SourceUnavailableError, match="try again"):
                guard.seal(lease)
            kept = guard._core.store._idle
            native = kept.take()
            assert results(native, "SELECT @@in_transaction, @fencelock_presented") == [[(0, None)]]
            kept.give_back(native)
            run(other, "CALL fencelock_commit()")
        guard.seal(lease)
    finally:
        guarded.database.rows("SET GLOBAL innodb_lock_wait_timeout = 50")
    assert guard.mark().token == 6


def test_a_block_that_is_refused_at_its_beginning_gives_a_clean_connection_back(guarded: Guarded) -> None:
    old = guarded.sealed(5)
    guarded.sealed(6)
    guard = guarded.guard()
    with pytest.raises(StaleTokenError), guard.transaction(old):
        raise AssertionError("not reached")
    native = guard._core.store._idle.take()
    look = "SELECT @fencelock_presented, @@tx_read_only, @@in_transaction"
    assert results(native, look) == [[(None, 1, 0)]]
    native.close()


# --- in the caller's own transaction --------------------------------------------------------------
def test_the_callers_transaction_writes_inside_the_check_and_not_after_it(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), guarded.sealed(5)
    with guarded.database.connect(autocommit=False) as native:
        with guard.check(lease, connection=native):
            write(native, "own")
        with pytest.raises(pymysql.Error, match="FL001"):
            write(native, "after")
        native.commit()
        assert guarded.value() == "own"
        assert run(native, "SELECT @fencelock_presented, @@tx_read_only") == [(None, 0)]


@pytest.mark.parametrize("cursor", [pymysql.cursors.Cursor, pymysql.cursors.DictCursor, pymysql.cursors.SSCursor])
def test_any_kind_of_cursor_will_do(guarded: Guarded, cursor: type) -> None:
    guard, lease = guarded.guard(), guarded.sealed(5)
    with guarded.database.connect(autocommit=False, cursorclass=cursor) as native:
        with guard.check(lease, connection=native):
            write(native, "own")
        native.commit()
    assert guarded.value() == "own"


def test_a_callers_check_that_is_one_reply_behind_ends_with_an_error(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), guarded.sealed(5)
    with guarded.database.connect(autocommit=False) as native:
        with (
            pytest.raises(SourceUnavailableError, match="the reply to an earlier statement"),
            guard.check(lease, connection=native),
        ):
            native._execute_command(pymysql.constants.COMMAND.COM_QUERY, "SELECT 1")  # Its reply stays unread.
        native._force_close()


def test_a_commit_inside_the_callers_check_is_reported(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), guarded.sealed(5)

    def commit_inside(native: Any) -> None:
        with guard.check(lease, connection=native):
            write(native, "own")
            native.commit()

    with guarded.database.connect(autocommit=False) as native:
        with pytest.raises(GuardError, match="ended inside its block"):
            commit_inside(native)
        # And the session is as before.
        run(native, "CREATE TABLE free (id int)")
        run(native, "INSERT INTO free VALUES (1)")
        native.commit()


def test_two_checks_of_one_transaction_end_one_after_the_other(guarded: Guarded) -> None:
    guarded.database.rows("CREATE TABLE orders (id int)")
    orders = fencelock.guard(guarded.database.url(), resource="orders", lock=LOCK)
    orders.protect("orders")
    both, lease = guarded.guard("reports", "orders"), HandmadeLease(5)
    both.seal(lease)
    with guarded.database.connect(autocommit=False) as native:
        with guarded.guard().check(lease, connection=native):
            with orders.check(lease, connection=native):
                run(native, "INSERT INTO orders VALUES (1)")
            write(native, "outer")
            with pytest.raises(pymysql.Error, match="FL001"):
                run(native, "INSERT INTO orders VALUES (2)")
        native.commit()
    assert guarded.value() == "outer"


def test_what_is_no_transaction_is_refused(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), guarded.sealed(5)
    with guarded.database.connect() as native, pytest.raises(GuardError, match="FL006 not in a transaction"):
        guard.check(lease, connection=native)
    with pytest.raises(GuardError, match="the connection is closed"):
        guard.check(lease, connection=native)
    with pytest.raises(GuardError, match=r"must be the pymysql\.Connection"):
        guard.check(lease, connection=object())


def test_the_callers_idleness_is_limited_while_it_has_presented(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), BriefLease(5)
    guard.seal(lease)
    with guarded.database.connect(autocommit=False) as native:
        with guard.check(lease, connection=native):
            assert run(native, "SELECT @@wait_timeout, @@idle_transaction_timeout") == [(1, 1)]
        assert run(native, "SELECT @@wait_timeout, @@idle_transaction_timeout") == [(28800, 0)]


# --- on the event loop ----------------------------------------------------------------------------


def test_the_async_guard_checks_in_the_callers_transaction(guarded: Guarded) -> None:
    async def work() -> None:
        guard, lease = guarded.async_guard(), guarded.sealed(5)
        port = guarded.database.server.port
        native = await aiomysql.connect(host="127.0.0.1", port=port, user="root", db=guarded.database.name)
        async with guard.check(lease, connection=native):
            await run_async(native, "UPDATE reports SET value = 'own'")
        await native.commit()
        with pytest.raises(UnfencedWriteError):
            await withdraw_and_write(guard, lease, native)
        await native.rollback()
        await native.ensure_closed()
        with pytest.raises(GuardError, match=r"must be the aiomysql\.Connection"):
            await guard.check(lease, connection=object())

    async def withdraw_and_write(guard: Any, lease: Any, native: Any) -> None:
        async with guard.check(lease, connection=native):
            await run_async(native, "CALL fencelock_withdraw()")
            await run_async(native, "DELETE FROM reports")

    asyncio.run(work())
    assert guarded.value() == "own"


def test_both_schemes_lead_to_one_place(guarded: Guarded) -> None:
    url = guarded.database.url()
    assert MySQLGuard(url).url == MySQLGuard(url.replace("mysql://", "mariadb://")).url
