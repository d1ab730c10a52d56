"""Guarded transactions of SQLAlchemy: sessions and connections, sync and async, on every database."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import delete, event, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker, create_async_engine

import fencelock
import fencelock.aio
from fencelock import (
    AlreadyDoneError,
    ConfigError,
    GuardError,
    LeaseExpiredError,
    Once,
    SealLostError,
    StaleTokenError,
    UnfencedWriteError,
    WrongLockError,
)
from fencelock.integrations.sqlalchemy import fenced
from tests.integrations.alchemy import TARGETS, Plain, Report, Stack, read, write
from tests.integrations.databases import GuardedDatabase
from tests.sql.guarded import Step
from tests.support.guards import LOCK, HandmadeLease, sequencer


@pytest.fixture(params=TARGETS)
def stack(request: pytest.FixtureRequest, guarded: GuardedDatabase) -> Iterator[Stack]:
    the_stack = Stack(request.param, guarded)
    yield the_stack
    the_stack.close()


@pytest.fixture
def lease() -> HandmadeLease:
    return HandmadeLease(5)


def fail(_: Any) -> None:
    raise ZeroDivisionError


def also(*bodies: Any) -> Any:
    """Return a body that runs these in turn."""

    def run(target: Any) -> Any:
        return [body(target) for body in bodies][-1]

    return run


# --- what a block does ------------------------------------------------------------------------------
@pytest.mark.reduced
def test_a_block_seals_writes_and_commits(stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    assert stack.fenced(lease, also(write("new"), read)) == "new"
    assert guarded.value() == "new"
    assert guarded.guard().mark().token == 5
    assert lease.open_transactions == 0


def test_g14_the_work_of_a_key_is_committed_once_with_its_key(
    stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    """Whoever comes later is told, also with a token that is stale by now, whether it has sealed or not."""
    once = Once("2026-11-22")
    once.result = "done"
    with pytest.raises(ZeroDivisionError):
        stack.fenced(lease, also(write("undone"), fail), once=once)
    stack.fenced(lease, write("done"), once=once)
    stack.fenced(HandmadeLease(6), read)
    for token in (4, 5, 6):
        with pytest.raises(AlreadyDoneError) as caught:
            stack.fenced(HandmadeLease(token), write("twice"), once="2026-11-22")
        assert (caught.value.result, caught.value.token) == ("done", 5)
    assert guarded.value() == "done"
    stack.fenced(HandmadeLease(6), write("later"))
    assert guarded.value() == "later"


@pytest.mark.reduced
def test_an_exception_undoes_the_block(stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    with pytest.raises(ZeroDivisionError):
        stack.fenced(lease, also(write("new"), fail))
    assert guarded.value() == "first"
    assert guarded.guard().mark().token == 5
    assert lease.open_transactions == 0


def test_a_block_may_be_made_again_after_an_exception(
    stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    with pytest.raises(ZeroDivisionError):
        stack.fenced(lease, also(write("lost"), fail))
    for value in ("second", "third"):
        stack.fenced(lease, write(value))
        assert guarded.value() == value


def test_a_bare_sequencer_is_as_good(stack: Stack, guarded: GuardedDatabase) -> None:
    stack.fenced(sequencer(5, claim=uuid4().hex), write("new"))
    assert guarded.value() == "new"


def test_real_leases_of_both_kinds(guarded: GuardedDatabase, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    stack = Stack("session", guarded)
    with fencelock.connect(url) as source, source.lock(LOCK, ttl=10.0) as lease:
        stack.fenced(lease, write("sync"))
    assert guarded.value() == "sync"
    stack.close()

    async def work() -> None:
        engine = create_async_engine(guarded.engines[1])
        async with fencelock.aio.connect(url) as source, source.lock(LOCK, ttl=10.0) as lease:
            registry = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
            async with fenced(registry, lease, resource="reports") as session:
                await session.execute(text("UPDATE reports SET value = 'async'"))
            await registry.remove()
        await engine.dispose()

    asyncio.run(work())
    assert guarded.value() == "async"


def test_a_guard_may_say_where_the_resource_is(stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    stack.fenced(lease, write("new"), guard=guarded.guard())
    assert guarded.value() == "new"


def test_a_seal_is_made_once_per_tenure(
    stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[fencelock.Event] = []
    hooks = fencelock.Hooks(on_sealed=told.append, on_refused=told.append)
    guard = fencelock.guard(guarded.url, resource="reports", lock=LOCK, hooks=hooks)
    for value in ("second", "third"):
        stack.fenced(lease, write(value), guard=guard)
    guarded.guard().seal(HandmadeLease(6))
    with pytest.raises(StaleTokenError):
        stack.fenced(lease, write("stale"), guard=guard)
    assert [event.name for event in told] == ["sealed", "refused"]


def test_a_refusal_in_observe_mode_is_told_once_a_block(stack: Stack, guarded: GuardedDatabase) -> None:
    told: list[fencelock.Event] = []
    hooks = fencelock.Hooks(on_refused=told.append)
    guard = fencelock.guard(guarded.url, resource="reports", lock=LOCK, hooks=hooks)
    guard.unprotect(reason="a test")
    guard.protect("reports", mode="observe")
    guard.seal(HandmadeLease(6))
    late = HandmadeLease(5)
    for blocks in (1, 2):
        stack.fenced(late, write("observed"), guard=guard)
        assert [event.reason for event in told] == ["stale"] * blocks


# --- what is refused --------------------------------------------------------------------------------
@pytest.mark.reduced
def test_g1_a_stale_holder_is_refused(stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    stack.fenced(lease, write("mine"))
    guarded.guard().seal(HandmadeLease(6))
    with pytest.raises(StaleTokenError) as caught:
        stack.fenced(lease, write("stale"))
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (5, 6, "reports")
    assert guarded.value() == "mine"
    stack.fenced(HandmadeLease(7), write("newest"))
    assert guarded.value() == "newest"


def test_g2_a_seal_between_ours_and_our_first_read_is_seen(stack: Stack, guarded: GuardedDatabase) -> None:
    """Ours, begin, a newer holder's whole transaction, our check: what it wrote is not overwritten."""
    lease, newer = HandmadeLease(5), HandmadeLease(6)
    guarded.guard().seal(lease)

    def write_newer() -> None:
        with guarded.guard().transaction(newer) as native:
            native.cursor().execute("UPDATE reports SET value = 'newer' WHERE id = 1")

    def overtake() -> float:
        lease.remaining = lambda: 30.0
        Step(write_newer).end()
        return 30.0

    lease.remaining = overtake  # It is asked for when the lease is about to be presented.
    with pytest.raises(StaleTokenError):
        stack.fenced(lease, write("stale"))
    assert guarded.value() == "newer"


@pytest.mark.reduced
def test_g6_a_write_to_another_resources_table_is_refused(
    stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    with pytest.raises(UnfencedWriteError, match="reports") as caught:
        stack.fenced(lease, also(write("new", "plain"), write("new")), resource="others")
    assert isinstance(caught.value.__cause__, DBAPIError)
    assert guarded.value("plain") == guarded.value() == "first"


def test_g9_a_lost_seal_is_reported(stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    stack.fenced(lease, write("mine"))
    guarded.guard().lower(3, reason="as a restore would")
    with pytest.raises(SealLostError):
        stack.fenced(lease, write("void"))
    assert guarded.value() == "mine"


def test_g5_another_locks_lease_is_refused(stack: Stack, guarded: GuardedDatabase) -> None:
    with pytest.raises(WrongLockError):
        stack.fenced(HandmadeLease(5, lock="another"), write("new"))
    assert guarded.value() == "first"


def test_a_lease_that_is_over_is_refused_before_any_request(
    stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    lease.problem = LeaseExpiredError("over")
    with pytest.raises(LeaseExpiredError):
        stack.fenced(lease, write("late"))
    assert guarded.guard().mark().token == 0
    assert lease.open_transactions == 0


def test_g2_a_transaction_that_may_have_read_is_refused(
    stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    assert stack.run(read) == "first"
    with pytest.raises(GuardError, match="in a transaction already"):
        stack.fenced(lease, write("computed"))
    assert guarded.guard().mark().token == 0
    stack.reset()
    stack.fenced(lease, write("new"))
    assert guarded.value() == "new"


def test_a_block_inside_a_block_of_the_same_place_is_refused(
    stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    def again(_: Any) -> None:
        with pytest.raises(GuardError, match="guarded transaction open"), guarded.guard().transaction(lease):
            pass

    stack.fenced(lease, again)


# --- the end of the transaction is the block's ------------------------------------------------------
@pytest.mark.parametrize("end", ["commit", "rollback", "close"])
def test_g3_a_block_that_ends_its_own_transaction_writes_nothing(
    stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease, end: str
) -> None:
    with pytest.raises(GuardError, match="tried to end its own guarded transaction"):
        stack.fenced(lease, also(write("new"), lambda target: getattr(target, end)()))
    assert guarded.value() == "first"
    stack.free()
    stack.fenced(lease, write("new"))
    assert guarded.value() == "new"


def test_g3_a_commit_whose_error_is_swallowed_writes_nothing(
    stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    def swallowed(target: Any) -> None:
        with pytest.raises(GuardError):
            target.commit()

    with pytest.raises(GuardError, match="tried to end its own guarded transaction"):
        stack.fenced(lease, also(write("new"), swallowed))
    assert guarded.value() == "first"


def test_g3_a_block_that_continues_without_its_connection_fails(
    stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    def lose(target: Any) -> None:
        write("lost")(target)
        (target.connection() if stack.is_session else target).invalidate()

    with pytest.raises(GuardError, match="was lost, or invalidated, and the error was caught"):
        stack.fenced(lease, lose)
    assert guarded.value() == "first"
    stack.reset()
    stack.fenced(lease, write("again"))
    assert guarded.value() == "again"


def test_savepoints_work(stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    def body(target: Any) -> None:
        write("kept")(target)
        with pytest.raises(ZeroDivisionError), target.begin_nested():
            also(write("undone"), fail)(target)
        with target.begin_nested():
            write("kept too", "plain")(target)

    stack.fenced(lease, body)
    assert (guarded.value(), guarded.value("plain")) == ("kept", "kept too")


# --- nothing survives the block ---------------------------------------------------------------------
@pytest.mark.reduced
@pytest.mark.parametrize("is_failing", [False, True])
def test_g6_nothing_is_presented_afterwards_on_the_pooled_connection(
    guarded: GuardedDatabase, lease: HandmadeLease, *, is_failing: bool
) -> None:
    for target in TARGETS:
        stack = Stack(target, guarded, pool_size=1, max_overflow=0)
        if is_failing:
            with pytest.raises(ZeroDivisionError):
                stack.fenced(lease, also(write("new"), fail))
        else:
            stack.fenced(lease, write("new"))
        with pytest.raises(DBAPIError, match=guarded.refused):
            stack.run(write("unfenced"))
        stack.reset()
        stack.free()
        with pytest.raises(DBAPIError, match=guarded.refused):
            stack.run(write("unfenced"))
        stack.reset()
        stack.run(also(write("free", "plain"), lambda target: target.commit()))
        stack.close()
        assert guarded.value("plain") == "free"


def test_g6_a_late_thread_that_still_has_the_session_writes_nothing_after_the_block(
    stack: Stack, guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    """Inside a newer block of the same session it may: a session belongs to one thread, by SQLAlchemy's rule."""
    stack.fenced(lease, write("mine"))
    late = Step(stack.run, also(write("late"), lambda target: target.commit()))
    with pytest.raises(DBAPIError):
        late.end()
    stack.reset()
    assert guarded.value() == "mine"
    stack.fenced(HandmadeLease(6), write("newer"))
    assert guarded.value() == "newer"


@pytest.mark.parametrize("is_committed", [False, True])
def test_g6_nothing_is_presented_on_a_connection_that_the_block_closed(
    guarded: GuardedDatabase, lease: HandmadeLease, *, is_committed: bool
) -> None:
    def body(target: Any) -> None:
        write("lost")(target)
        if is_committed:
            with pytest.raises(GuardError):
                target.commit()
        target.close()

    for target in TARGETS:
        stack = Stack(target, guarded, pool_size=1, max_overflow=0)
        with pytest.raises(GuardError, match="tried to end its own guarded transaction"):
            stack.fenced(lease, body)
        stack.free()
        with pytest.raises(DBAPIError, match=guarded.refused):
            stack.run(write("unfenced"))
        stack.reset()
        stack.run(also(write("free", "plain"), lambda target: target.commit()))
        stack.close()
    assert (guarded.value(), guarded.value("plain")) == ("first", "free")


def test_the_session_settings_of_a_pooled_connection_are_as_before(
    guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    question = {
        "sqlite": "SELECT foreign_keys FROM pragma_foreign_keys",
        "postgres": "SELECT current_setting('idle_in_transaction_session_timeout')",
        "mysql": "SELECT concat_ws(',', @@idle_transaction_timeout, @@wait_timeout, @@tx_read_only, @@autocommit)",
    }
    for target in TARGETS:
        stack = Stack(target, guarded, pool_size=1, max_overflow=0)
        ask = lambda it: it.execute(text(question[guarded.kind])).scalar_one()  # noqa: E731
        before = stack.run(ask)
        stack.reset()
        stack.fenced(lease, write("new"))
        assert stack.run(ask) == before
        stack.close()


# --- isolation levels -------------------------------------------------------------------------------
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_g2_at_every_isolation_level_a_stale_holder_is_refused(guarded: GuardedDatabase, level: str) -> None:
    if guarded.kind == "sqlite" and level != "SERIALIZABLE":
        pytest.skip("SQLite is serializable")
    for target in TARGETS:
        stack = Stack(target, guarded, isolation_level=level)
        lease, newer = HandmadeLease(guarded.guard().mark().token + 1), HandmadeLease(guarded.guard().mark().token + 2)
        stack.fenced(lease, write("older"))
        stack.fenced(newer, write("newer"))
        with pytest.raises(StaleTokenError):
            stack.fenced(lease, write("stale"))
        assert guarded.value() == "newer"
        stack.close()


def test_autocommit_is_refused(guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    if guarded.kind == "sqlite":
        pytest.skip("SQLite's guard begins by itself")
    for target in TARGETS:
        stack = Stack(target, guarded, isolation_level="AUTOCOMMIT")
        with pytest.raises(GuardError, match="AUTOCOMMIT"):
            stack.fenced(lease, write("new"))
        assert guarded.value() == "first"
        stack.close()


# --- the ORM ----------------------------------------------------------------------------------------
@pytest.fixture(params=["session", "async session"])
def orm(request: pytest.FixtureRequest, guarded: GuardedDatabase) -> Iterator[Stack]:
    the_stack = Stack(request.param, guarded)
    yield the_stack
    the_stack.close()


@pytest.mark.reduced
def test_what_is_pending_is_written_at_the_end(orm: Stack, guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    def body(session: Any) -> None:
        session.add(Report(id=2, value="pending"))
        session.get(Report, 1).value = "changed"

    orm.fenced(lease, body)
    assert guarded.rows("SELECT id, value FROM reports ORDER BY id") == [(1, "changed"), (2, "pending")]


@pytest.mark.parametrize("moment", ["before_flush", "before_commit"])
def test_what_a_listener_writes_at_the_end_is_fenced(
    orm: Stack, guarded: GuardedDatabase, lease: HandmadeLease, moment: str
) -> None:
    session = orm.run(lambda session: session)
    event.listen(session, moment, lambda session, *_: write("listened")(session), once=True)
    orm.fenced(lease, lambda session: session.add(Report(id=2)))
    assert guarded.value() == "listened"
    with pytest.raises(DBAPIError, match=guarded.refused):
        orm.alone(write("unfenced"))


def write_unfenced(session: Any) -> None:
    with session.get_bind().begin() as connection:
        write("unfenced")(connection)


@pytest.mark.parametrize(("listener", "error"), [(fail, ZeroDivisionError), (write_unfenced, DBAPIError)])
def test_an_error_after_the_commit_says_that_the_block_is_committed(
    orm: Stack, guarded: GuardedDatabase, lease: HandmadeLease, listener: Any, error: type[Exception]
) -> None:
    event.listen(orm.run(lambda session: session), "after_commit", listener)
    with pytest.raises(error) as caught:
        orm.fenced(lease, write("new"))
    assert "the guarded block was committed before this error" in caught.value.__notes__[0]
    assert guarded.value() == "new"


def test_autoflush_writes_what_a_query_has_to_see(orm: Stack, guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    def body(session: Any) -> Any:
        session.add(Report(id=2, value="pending"))
        return session.scalar(select(Report.value).where(Report.id == 2))

    assert orm.fenced(lease, body) == "pending"


def test_an_unfenced_flush_is_refused_and_undone(orm: Stack, guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    def body(session: Any) -> None:
        session.get(Plain, 1).value = "new"
        session.add(Report(id=2, value="pending"))

    with pytest.raises(UnfencedWriteError):
        orm.fenced(lease, body, resource="others")
    assert guarded.value("plain") == "first"
    assert guarded.rows("SELECT count(*) FROM reports") == [(1,)]


def test_bulk_operations_are_fenced(orm: Stack, guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    def body(session: Any) -> None:
        session.execute(insert(Report), [{"id": number, "value": "bulk"} for number in range(2, 12)])
        session.execute(update(Report).where(Report.id > 1).values(value="changed"))
        session.execute(delete(Report).where(Report.id > 6))

    orm.fenced(lease, body)
    assert guarded.rows("SELECT count(*) FROM reports WHERE value = 'changed'") == [(5,)]
    for statement in (insert(Report).values(id=99), update(Report).values(value="no"), delete(Report)):
        with pytest.raises(UnfencedWriteError):
            orm.fenced(HandmadeLease(6), lambda session, what=statement: session.execute(what), resource="others")


def test_g2_nothing_that_the_session_read_before_the_seal_is_used(guarded: GuardedDatabase) -> None:
    stack = Stack("session", guarded)
    stack.target.expire_on_commit = False
    stack.fenced(HandmadeLease(5), lambda session: session.get(Report, 1))
    with guarded.guard().transaction(HandmadeLease(6)) as native:
        native.cursor().execute("UPDATE reports SET value = 'newer' WHERE id = 1")
    assert stack.fenced(HandmadeLease(7), lambda session: session.get(Report, 1).value) == "newer"
    stack.close()


def test_a_failed_flush_that_is_swallowed_commits_nothing(
    orm: Stack, guarded: GuardedDatabase, lease: HandmadeLease
) -> None:
    def body(session: Any) -> None:
        write("new")(session)
        session.add(Report(id=1, value="taken"))
        with pytest.raises(DBAPIError):
            session.flush()

    with pytest.raises(GuardError, match="a flush of the guarded block failed"):
        orm.fenced(lease, body)
    assert guarded.value() == "first"


# --- arguments --------------------------------------------------------------------------------------
def test_a_block_is_entered_once(guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    stack = Stack("session", guarded)
    block = fenced(stack.target, lease, resource="reports")
    with block:
        pass
    with pytest.raises(GuardError, match="entered once"), block:
        pass
    stack.close()


def test_what_is_neither_session_nor_connection_is_refused(guarded: GuardedDatabase, lease: HandmadeLease) -> None:
    stack = Stack("session", guarded)
    untyped: Any = fenced
    for target in (stack.engine, "sqlite:///app.db", None):
        with pytest.raises(ConfigError, match="takes a Session"):
            untyped(target, lease, resource="reports")
    with pytest.raises(ConfigError, match=r"either guard=… or resource=…"):
        fenced(stack.target, lease, resource="reports", guard=guarded.guard())
    with pytest.raises(ConfigError, match="guard must be a guard"):
        untyped(stack.target, lease, guard="sqlite:///app.db")
    stack.close()
