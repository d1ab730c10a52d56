"""A guarded block on an SQL server: whose connection it is, who ends it, and what happens to a frozen holder."""

import asyncio
import os
from typing import Any

import pytest

import fencelock
from fencelock import BlockLostError, GuardError, SourceUnavailableError, StaleTokenError
from fencelock.hooks import Event, Hooks
from fencelock.protocol import guard_requests
from tests.sql.dialect import SqlDialect, run, run_async
from tests.sql.guarded import BriefLease, Guarded, Step, in_block, write
from tests.support.guards import LOCK, RESOURCE, HandmadeLease

pytestmark = pytest.mark.server_wide


# --- who ends it ----------------------------------------------------------------------------------
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_block_cannot_end_its_own_transaction_by_the_client_library(guarded: Guarded, end: str) -> None:
    with pytest.raises(GuardError, match="tried to end its own guarded transaction"):
        in_block(guarded, lambda native: getattr(native, end)())
    assert guarded.value() == "first"


def test_a_block_that_swallows_that_refusal_is_undone_all_the_same(guarded: Guarded) -> None:
    def swallow(native: Any) -> None:
        with pytest.raises(GuardError):
            native.commit()

    with pytest.raises(GuardError, match="nothing of the block was written"):
        in_block(guarded, swallow)
    assert guarded.value() == "first"


def test_an_error_of_the_users_statement_stays_the_clients(guarded: Guarded) -> None:
    with pytest.raises(guarded.sql.duplicate_key):
        in_block(guarded, lambda native: run(native, "INSERT INTO reports VALUES (1, 'twice')"))
    assert guarded.value() == "first"


def test_a_connection_that_the_server_has_ended_meanwhile_is_replaced(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    for _ in range(2):
        with guard.transaction(lease) as native:
            write(native)
        guarded.kill(native)


def test_a_connection_that_a_block_has_changed_is_not_used_again(guarded: Guarded) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    numbers = []
    for change in (lambda native: None, guarded.sql.change_rows, lambda native: None):
        with guard.transaction(lease) as native:
            numbers.append(guarded.sql.number_of(native))
            assert run(native, "SELECT 1") == [(1,)]
            change(native)
        del native
    assert numbers[0] == numbers[1] != numbers[2]


# --- G3: a frozen holder --------------------------------------------------------------------------
def test_g3_a_holder_that_is_idle_past_its_lease_is_ended_by_the_server(guarded: Guarded) -> None:
    lease = BriefLease(5)
    guarded.guard().seal(lease)

    def freeze(native: Any) -> None:
        # What a frozen process does not notice: its successor seals.
        Step(lambda: guarded.guard().seal(HandmadeLease(6))).end()
        guarded.wait_for_end(native)

    with pytest.raises(BlockLostError, match="idle for longer than it may"):
        in_block(guarded, freeze, lease)
    assert (guarded.value(), guarded.guard().mark().token) == ("first", 6)


def test_g3_a_statement_after_that_says_so(guarded: Guarded) -> None:
    lease = BriefLease(5)
    guarded.guard().seal(lease)

    def freeze(native: Any) -> None:
        Step(lambda: guarded.guard().seal(HandmadeLease(6))).end()
        write(native, "late")

    with pytest.raises(BlockLostError, match="idle for longer than it may"):
        in_block(guarded, freeze, lease)
    assert guarded.value() == "first"


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

    with pytest.raises(guarded.sql.write_after_loss) as caught:
        in_block(guarded, kill)
    assert getattr(caught.value, "definite", True)
    assert guarded.value() == "first"
    guarded.sealed(6)


def test_a_connection_lost_before_the_end_of_the_block_is_definite_too(guarded: Guarded) -> None:
    with pytest.raises(BlockLostError, match="closed inside its block") as caught:
        in_block(guarded, guarded.kill)
    assert caught.value.definite
    assert guarded.value() == "first"


def test_a_server_that_is_not_there_is_unavailable(sql: SqlDialect) -> None:
    guard = fencelock.guard(sql.unreachable_url, resource="r", lock=LOCK)
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


# --- on the event loop ----------------------------------------------------------------------------
def test_the_async_guard_yields_an_async_connection_and_uses_no_thread(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("a thread was asked for")

    async def work() -> None:
        guard, lease = guarded.async_guard(), HandmadeLease(5)
        await guard.seal(lease)
        async with guard.transaction(lease) as native:
            assert isinstance(native, guarded.sql.async_connection)
            await run_async(native, "UPDATE reports SET value = 'async'")
            for end in guarded.sql.async_ends:
                with pytest.raises(GuardError, match="tried to end"):
                    await end(native)
            native.attempt = None
        assert (await guard.mark()).token == 5
        await guard.close(lease)
        with pytest.raises(StaleTokenError):
            await guard.seal(lease)

    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor.submit", refuse)
    asyncio.run(work())
    assert guarded.value() == "async"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_block_says_how_it_ended(guarded: Guarded, kind: str) -> None:
    """Committed, rolled back, or failed: here the server ends the connection before the commit."""
    ended: list[Event] = []
    hooks, lease = Hooks(on_guarded=ended.append), HandmadeLease(5)

    async def by_async_guard() -> None:
        guard = fencelock.aio.guard(guarded.database.url(), resource=RESOURCE, lock=LOCK, hooks=hooks)
        async with guard.transaction(lease):
            pass
        with pytest.raises(ZeroDivisionError):
            async with guard.transaction(lease):
                raise ZeroDivisionError
        with pytest.raises(BlockLostError):
            async with guard.transaction(lease) as native:
                guarded.kill(native)

    def by_guard() -> None:
        guard = fencelock.guard(guarded.database.url(), resource=RESOURCE, lock=LOCK, hooks=hooks)
        with guard.transaction(lease):
            pass
        with pytest.raises(ZeroDivisionError), guard.transaction(lease):
            raise ZeroDivisionError
        with pytest.raises(BlockLostError), guard.transaction(lease) as native:
            guarded.kill(native)

    by_guard() if kind == "sync" else asyncio.run(by_async_guard())
    assert [event.reason for event in ended] == [None, "rolled back", "failed"]
    assert {(event.lock, event.token, event.resource) for event in ended} == {(LOCK, 5, RESOURCE)}
    assert all(event.duration is not None and event.duration > 0 for event in ended)


def test_tasks_of_one_holder_work_at_the_same_time(guarded: Guarded) -> None:
    async def work() -> None:
        guard, lease = guarded.async_guard(), HandmadeLease(5)
        await guard.seal(lease)
        entered, all_in = [], asyncio.Event()

        async def one(number: int) -> None:
            async with guard.transaction(lease) as native:
                entered.append(number)
                if len(entered) == 5:
                    all_in.set()
                await all_in.wait()
                await run_async(native, "INSERT INTO reports VALUES (%s, '')", number)

        async with asyncio.timeout(30):
            await asyncio.gather(*(one(number) for number in range(10, 15)))

    asyncio.run(work())
    assert guarded.database.value("SELECT COUNT(*) FROM reports") == 6


def test_a_task_cancelled_while_it_waits_for_the_mark_leaves_nothing_behind(guarded: Guarded) -> None:
    async def work() -> None:
        guard, lease = guarded.async_guard(), HandmadeLease(6)
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
        guard, lease = guarded.async_guard(), HandmadeLease(5)
        inside = asyncio.Event()

        async def block(value: str, *, stay: bool) -> None:
            async with guard.transaction(lease) as native:
                await run_async(native, "UPDATE reports SET value = %s", value)
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


def test_guards_of_many_entities_share_their_connections(guarded: Guarded) -> None:
    numbers: list[Any] = []
    names = [f"order:{number}" for number in range(3)]
    guard = guarded.guard()
    entities = [guard.for_resource(name, lock=name) for name in names]
    for entity in entities:
        with entity.transaction(HandmadeLease(5, lock=entity.lock)) as native:
            numbers.append(guarded.sql.number_of(native))
        del native

    async def work(entities: list[Any]) -> None:
        for entity in entities:
            async with entity.transaction(HandmadeLease(6, lock=entity.lock)) as native:
                numbers.append(guarded.sql.number_of(native))
            del native

    async_guard = guarded.async_guard()
    asyncio.run(work([async_guard.for_resource(name, lock=name) for name in names]))
    assert [numbers.count(number) for number in dict.fromkeys(numbers)] == [3, 3]
    assert [entity.mark().token for entity in entities] == [6, 6, 6]


def test_a_guard_serves_several_loops_one_after_the_other(guarded: Guarded) -> None:
    guard, lease = guarded.async_guard(), HandmadeLease(5)

    async def work(value: str) -> None:
        async with guard.transaction(lease) as native:
            await run_async(native, "UPDATE reports SET value = %s", value)

    for value in ("one", "two"):
        asyncio.run(work(value))
        assert guarded.value() == value


def test_one_transaction_checks_the_leases_of_two_locks_and_refuses_if_one_is_stale(guarded: Guarded) -> None:
    """As docs/how-to/lock-each-entity.md says of two entities."""
    first, second = (
        fencelock.guard(guarded.database.url(), resource=lock, lock=lock) for lock in ("order:1", "order:2")
    )
    one, other = HandmadeLease(5, lock="order:1"), HandmadeLease(6, lock="order:2")
    first.seal(one)
    second.seal(other)
    with guarded.client() as native:
        run(native, "CREATE TABLE purchase (id int)")
        run(native, "BEGIN")
        with first.check(one, connection=native), second.check(other, connection=native):
            run(native, "INSERT INTO purchase VALUES (1)")
        run(native, "COMMIT")
        second.seal(HandmadeLease(7, lock="order:2"))
        run(native, "BEGIN")
        with (
            pytest.raises(fencelock.StaleTokenError),
            first.check(one, connection=native),
            second.check(other, connection=native),
        ):
            run(native, "INSERT INTO purchase VALUES (2)")
        run(native, "ROLLBACK")
    assert guarded.database.value("SELECT count(*) FROM purchase") == 1
