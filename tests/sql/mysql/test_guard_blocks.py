"""A guarded block of MySQL's: whose connection it is, who ends it, and what becomes of a holder that is frozen."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiomysql
import pymysql
import pytest

import fencelock
import fencelock.aio
from fencelock import GuardError, SourceUnavailableError, StaleTokenError, UnfencedWriteError
from fencelock.protocol import guard_requests
from fencelock.stores.mysql.guard.store import MySQLGuard
from tests.guards import LOCK, RESOURCE, HandmadeLease
from tests.sql.mysql.guarded import Guarded, run
from tests.sql.postgres.guarded import Step

pytestmark = pytest.mark.server_wide

BRIEFLY_S = 0.2
"""Servers count whole seconds: it is one of theirs."""


class Briefly(HandmadeLease):
    """A lease with little time left."""

    def remaining(self) -> float:
        return BRIEFLY_S


def write(native: Any, value: str = "mine") -> None:
    run(native, "UPDATE reports SET value = %s WHERE id = 1", value)


def in_block(guarded: Guarded, body: Callable[[Any], Any], lease: Any = None) -> Any:
    with guarded.guard().transaction(lease or HandmadeLease(5)) as native:
        write(native)
        return body(native)


# --- who ends it ----------------------------------------------------------------------------------
ENDS: dict[str, Callable[[Any], Any]] = {
    "commit()": lambda native: native.commit(),
    "rollback()": lambda native: native.rollback(),
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
def test_a_block_cannot_end_its_own_transaction(guarded: Guarded, how: str) -> None:
    with pytest.raises(GuardError, match="tried to end its own guarded transaction"):
        in_block(guarded, ENDS[how])
    assert guarded.value() == "first"


def test_a_block_that_swallows_that_refusal_is_undone_all_the_same(guarded: Guarded) -> None:
    def swallow(native: Any) -> None:
        with pytest.raises(GuardError):
            native.commit()

    with pytest.raises(GuardError, match="nothing of the block was written"):
        in_block(guarded, swallow)
    assert guarded.value() == "first"


SLIPS = [
    "/* past */ COMMIT",
    "CREATE TABLE by_ddl (id int)",
    "CALL ends()",
    "/**/ COMMIT AND CHAIN",
    "CALL ends_and_begins()",
]


@pytest.mark.parametrize("slip", SLIPS)
def test_what_slips_past_the_watch_is_told_and_what_follows_is_not_committed(guarded: Guarded, slip: str) -> None:
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

    with pytest.raises(GuardError, match="ended inside its block"):
        in_block(guarded, body)
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


def test_an_error_of_the_users_statement_stays_the_clients(guarded: Guarded) -> None:
    with pytest.raises(pymysql.IntegrityError):
        in_block(guarded, lambda native: run(native, "INSERT INTO reports VALUES (1, 'twice')"))
    assert guarded.value() == "first"


def test_the_block_meets_the_servers_own_defaults_without_autocommit(guarded: Guarded) -> None:
    names = ("sql_mode", "sql_safe_updates", "time_zone", "tx_isolation", "innodb_lock_wait_timeout")
    look = f"SELECT {', '.join(f'@@{{0}}.{name}' for name in names)}"
    with guarded.guard().transaction(HandmadeLease(5)) as native:
        assert run(native, look.format("session")) == run(native, look.format("global"))
        assert not native.get_autocommit()
        assert isinstance(native, pymysql.Connection)


def test_a_connection_that_a_block_has_changed_is_not_lent_again(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    numbers = []
    for change in (
        lambda native: None,
        lambda native: setattr(native, "cursorclass", pymysql.cursors.DictCursor),
        lambda native: None,
    ):
        with guard.transaction(lease) as native:
            numbers.append(native.thread_id())
            assert run(native, "SELECT 1") == [(1,)]
            change(native)
    assert numbers[0] == numbers[1] != numbers[2]


def test_a_kept_connection_presents_nothing(guarded: Guarded) -> None:
    """Whichever way the block before was left."""
    guard, lease = guarded.guard(), HandmadeLease(5)

    def leave(how: str) -> None:
        with guard.transaction(lease) as native:
            write(native)
            seen.append(native)
            if how == "fails":
                raise ZeroDivisionError

    seen: list[Any] = []
    store = guard._core.store
    for how in ("well", "fails"):
        try:
            leave(how)
        except ZeroDivisionError:
            assert how == "fails"
        native = store._idle.take()
        assert native is seen[0]
        look = "SELECT @fencelock_presented, @@tx_read_only, @@wait_timeout = @@global.wait_timeout"
        assert run(native, look) == [(None, 1, 1)]
        with pytest.raises(pymysql.Error, match="READ ONLY"):
            write(native, "unfenced")
        native.rollback()
        store._idle.give_back(native)


def test_a_connection_that_the_server_has_ended_meanwhile_is_replaced(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    for _ in range(2):
        with guard.transaction(lease) as native:
            write(native)
        guarded.kill(native)


# --- G3: a frozen holder --------------------------------------------------------------------------
def test_g3_a_holder_that_is_idle_past_its_lease_is_ended_by_the_server(guarded: Guarded) -> None:
    lease = Briefly(5)
    guarded.guard().seal(lease)

    def freeze(native: Any) -> None:
        # What a frozen process does not notice: its successor seals.
        Step(lambda: guarded.guard().seal(HandmadeLease(6))).end()
        guarded.wait_for_end(native.thread_id())

    with pytest.raises(GuardError, match=r"closed inside its block"):
        in_block(guarded, freeze, lease)
    assert (guarded.value(), guarded.guard().mark().token) == ("first", 6)


def test_g3_a_statement_after_that_says_so(guarded: Guarded) -> None:
    lease = Briefly(5)
    guarded.guard().seal(lease)

    def freeze(native: Any) -> None:
        Step(lambda: guarded.guard().seal(HandmadeLease(6))).end()
        write(native, "late")

    with pytest.raises(GuardError, match="idle for longer than its lease has left"):
        in_block(guarded, freeze, lease)
    assert guarded.value() == "first"


@pytest.mark.parametrize(("own", "limit"), [(0, 1), (100, 1)])
def test_g3_every_limit_of_the_server_is_lowered(guarded: Guarded, own: int, limit: int) -> None:
    names = ("idle_transaction_timeout", "idle_write_transaction_timeout", "idle_readonly_transaction_timeout")
    for name in names:
        guarded.database.rows(f"SET GLOBAL {name} = {own}")
    try:
        with guarded.guard().transaction(Briefly(5)) as native:
            assert run(native, "SELECT @@" + ", @@".join(names)) == [(limit,) * 3]
    finally:
        for name in names:
            guarded.database.rows(f"SET GLOBAL {name} = 0")


def test_g3_a_frozen_sealer_does_not_keep_others_from_the_mark(guarded: Guarded) -> None:
    """Between the two round trips of a seal a process may freeze as well."""
    connection = guarded.guard()._core.store.connect()
    connection.perform(guard_requests.Begin())
    connection.perform(guard_requests.ReadMarks((RESOURCE,)))
    guarded.guard().seal(HandmadeLease(6))
    connection.close()
    assert guarded.guard().mark().token == 6


# --- lost connections -----------------------------------------------------------------------------
def test_a_connection_lost_before_the_commit_is_definite(guarded: Guarded) -> None:
    def kill(native: Any) -> None:
        guarded.kill(native)
        write(native, "late")

    with pytest.raises(GuardError, match="closed inside its block") as caught:
        in_block(guarded, kill)
    assert caught.value.definite
    assert guarded.value() == "first"
    guarded.sealed(6)


def test_a_connection_lost_before_the_end_of_the_block_is_definite_too(guarded: Guarded) -> None:
    with pytest.raises(GuardError, match="closed inside its block") as caught:
        in_block(guarded, guarded.kill)
    assert caught.value.definite
    assert guarded.value() == "first"


def test_a_server_that_is_not_there_is_unavailable() -> None:
    guard = fencelock.guard("mysql://127.0.0.1:1/nowhere", resource="r", lock=LOCK)
    for attempt in (guard.mark, lambda: guard.seal(HandmadeLease(5))):
        with pytest.raises(SourceUnavailableError, match="cannot be reached") as caught:
            attempt()
        assert caught.value.definite


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_leaves_its_parents_block_alone(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    with guard.transaction(lease) as native:
        write(native)
        child = os.fork()
        if child == 0:  # pragma: no cover - another process.
            code = 1
            try:
                with guarded.guard().transaction(lease.sequencer) as own:
                    run(own, "INSERT INTO reports VALUES (2, 'child')")
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        write(native, "parent")
    assert (guarded.value(1), guarded.value(2)) == ("parent", "child")


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
            assert run(native, "SELECT @@in_transaction, @fencelock_presented") == [(0, None)]
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
    assert run(native, "SELECT @fencelock_presented, @@tx_read_only, @@in_transaction") == [(None, 1, 0)]
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


def test_a_commit_inside_the_callers_check_is_told(guarded: Guarded) -> None:
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
    with guarded.database.connect() as native, pytest.raises(GuardError, match="FL006 in no transaction"):
        guard.check(lease, connection=native)
    with pytest.raises(GuardError, match="the connection is closed"):
        guard.check(lease, connection=native)
    with pytest.raises(GuardError, match=r"must be the pymysql\.Connection"):
        guard.check(lease, connection=object())


def test_the_callers_idleness_is_limited_while_it_has_presented(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), Briefly(5)
    guard.seal(lease)
    with guarded.database.connect(autocommit=False) as native:
        with guard.check(lease, connection=native):
            assert run(native, "SELECT @@wait_timeout, @@idle_transaction_timeout") == [(1, 1)]
        assert run(native, "SELECT @@wait_timeout, @@idle_transaction_timeout") == [(28800, 0)]


# --- on the event loop ----------------------------------------------------------------------------
def aio_guard(guarded: Guarded) -> Any:
    return fencelock.aio.guard(guarded.database.url(), resource=RESOURCE, lock=LOCK)


async def say(native: Any, statement: str, *params: object) -> Any:
    async with native.cursor() as cursor:
        await cursor.execute(statement, params or None)
        return await cursor.fetchall()


def test_the_async_guard_yields_an_async_connection_and_uses_no_thread(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a thread was asked for")

    async def work() -> None:
        guard, lease = aio_guard(guarded), HandmadeLease(5)
        await guard.seal(lease)
        async with guard.transaction(lease) as native:
            assert isinstance(native, aiomysql.Connection)
            await say(native, "UPDATE reports SET value = 'async'")
            for end in (native.commit, native.rollback, native.begin):
                with pytest.raises(GuardError, match="tried to end"):
                    await end()
            with pytest.raises(GuardError, match="tried to end"):
                await say(native, "COMMIT")
            native.attempt = None
        assert (await guard.mark()).token == 5
        await guard.close(lease)
        with pytest.raises(StaleTokenError):
            await guard.seal(lease)

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", refuse)
    asyncio.run(work())
    assert guarded.value() == "async"


def test_the_async_guard_checks_in_the_callers_transaction(guarded: Guarded) -> None:
    async def work() -> None:
        guard, lease = aio_guard(guarded), guarded.sealed(5)
        port = guarded.database.server.port
        native = await aiomysql.connect(host="127.0.0.1", port=port, user="root", db=guarded.database.name)
        async with guard.check(lease, connection=native):
            await say(native, "UPDATE reports SET value = 'own'")
        await native.commit()
        with pytest.raises(UnfencedWriteError):
            await withdraw_and_write(guard, lease, native)
        await native.rollback()
        await native.ensure_closed()
        with pytest.raises(GuardError, match=r"must be the aiomysql\.Connection"):
            await guard.check(lease, connection=object())

    async def withdraw_and_write(guard: Any, lease: Any, native: Any) -> None:
        async with guard.check(lease, connection=native):
            await say(native, "CALL fencelock_withdraw()")
            await say(native, "DELETE FROM reports")

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
                await say(native, "INSERT INTO reports VALUES (%s, '')", number)

        async with asyncio.timeout(30):
            await asyncio.gather(*(one(number) for number in range(10, 15)))

    asyncio.run(work())
    assert guarded.database.value("SELECT COUNT(*) FROM reports") == 6


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
                await say(native, "UPDATE reports SET value = %s", value)
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
            await say(native, "UPDATE reports SET value = %s", value)

    for value in ("one", "two"):
        asyncio.run(work(value))
        assert guarded.value() == value


def test_both_schemes_lead_to_one_place(guarded: Guarded) -> None:
    url = guarded.database.url()
    assert MySQLGuard(url).url == MySQLGuard(url.replace("mysql://", "mariadb://")).url
