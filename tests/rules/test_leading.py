"""K1-K3: a loop over terms of leadership goes on after what only ended a term, and ends with everything else."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock import errors
from fencelock._api import leading
from fencelock._api.leading import FIRST_PAUSE_S, LONGEST_PAUSE_S, BackOff
from fencelock._flows.effects import note_done_once
from fencelock.model import draw_claim
from fencelock.protocol import guard_requests as ask_for
from fencelock.stores.errors import note_lost
from fencelock.stores.sqlite.guard.connection import SQLiteGuardConnection
from tests.support.guards import plain
from tests.support.helpers import wait_until, wait_until_async
from tests.support.leaders import LOCK, Leader, Leaders, both, brief_pauses, lead

__all__ = ["brief_pauses"]

STALE = errors.StaleTokenError("stale", token=1, mark=2, resource="r")


class DriverError(Exception):
    """What any client library raises."""


def from_lost_block(error: Exception) -> Exception:
    note_lost(error)
    return error


def of_a_block_that_is_done_once() -> Exception:
    error = errors.OutcomeUnknownError("unknown")
    note_done_once(error, "tonight")
    return error


GOES_ON = {
    "expired": errors.LeaseExpiredError("expired"),
    "lost": errors.LeaseLostError("lost", reason="broken"),
    "released": errors.LeaseReleasedError("released"),
    "stale": STALE,
    "unavailable": errors.SourceUnavailableError("away"),
    "block": errors.BlockLostError("cut"),
    "driver": from_lost_block(DriverError("connection is closed")),
    "own": from_lost_block(ZeroDivisionError()),
    "once": of_a_block_that_is_done_once(),
    "group": ExceptionGroup("two", [STALE, ExceptionGroup("one", [from_lost_block(DriverError())])]),
}
ENDS = [
    errors.WrongLockError("wrong"),
    errors.UnfencedWriteError("unfenced"),
    errors.TokenCollisionError("collision"),
    errors.SealLostError("seal"),
    errors.SchemaError("schema"),
    errors.RightError("right"),
    errors.GuardError("misused"),
    errors.SourceError("not permitted"),
    errors.ConfigError("config"),
    errors.LeaseInheritedError("forked"),
    errors.OutcomeUnknownError("unknown"),
    errors.AlreadyDoneError("done", result="", token=1),
    DriverError("connection is closed"),
    ZeroDivisionError(),
    ExceptionGroup("two", [STALE, ZeroDivisionError()]),
    BaseExceptionGroup("two", [STALE, KeyboardInterrupt()]),
    KeyboardInterrupt(),
    SystemExit(3),
    asyncio.CancelledError(),
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'locks.db'}"


class TestLeaders(Leaders):
    @pytest.fixture(params=["sqlite", "memory"])
    def installed_url(self, request: pytest.FixtureRequest, url: str) -> str:
        return url if request.param == "sqlite" else f"memory://{draw_claim()}"


# --- K1 and K2: what the loop does about an error of its body -------------------------------------
@both
@pytest.mark.usefixtures("brief_pauses")
@pytest.mark.parametrize("name", GOES_ON)
def test_k1_an_error_that_only_ended_a_term_is_followed_by_another_one(
    url: str, kind: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    stop, tokens, told = threading.Event(), list[int](), list[Any]()

    def body(lease: Any) -> None:
        tokens.append(lease.token)
        if len(tokens) == 1:
            raise GOES_ON[name]
        stop.set()

    lead(kind, url, body, stop=stop, hooks=fencelock.Hooks(on_retried=told.append))
    assert len(tokens) == 2
    (event,) = told
    assert (event.lock, event.token) == (LOCK, tokens[0])
    assert type(GOES_ON[name]).__name__ in event.reason
    assert [record.levelname for record in caplog.records if record.message.startswith("retried lock=")] == ["WARNING"]


@both
@pytest.mark.parametrize("error", ENDS, ids=repr)
def test_k2_any_other_error_ends_the_loop_and_releases_the_lease(url: str, kind: str, error: BaseException) -> None:
    tokens = []

    def body(lease: Any) -> None:
        tokens.append(lease.token)
        raise error

    with pytest.raises(type(error)) as caught:
        lead(kind, url, body)
    assert caught.value is error or isinstance(error, asyncio.CancelledError)
    assert len(tokens) == 1
    with fencelock.connect(url) as source:
        wait_until(lambda: not source.info(LOCK).is_held)


@both
@pytest.mark.usefixtures("brief_pauses")
def test_k1_errors_of_the_callers_own_list_are_followed_by_another_term(url: str, kind: str) -> None:
    errors_left = [DriverError(), errors.OutcomeUnknownError("unknown")]

    def body(_: Any) -> None:
        if errors_left:
            raise errors_left.pop()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lead(kind, url, body, retry_on=[DriverError, errors.OutcomeUnknownError])
    assert errors_left == []


@both
@pytest.mark.usefixtures("brief_pauses")
def test_k1_a_campaign_whose_outcome_is_unknown_is_repeated(
    url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, left = threading.Event(), [errors.OutcomeUnknownError("unknown"), errors.SourceUnavailableError("away")]
    owner = fencelock.Source if kind == "sync" else fencelock.aio.AsyncSource
    take = owner.take

    def failing(*arguments: Any) -> Any:
        if left:
            raise left.pop()
        return take(*arguments)

    monkeypatch.setattr(owner, "take", failing)
    lead(kind, url, lambda _: stop.set(), stop=stop)
    assert left == []


@both
def test_k2_a_campaign_that_only_a_person_can_mend_ends_the_loop(
    url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise errors.SchemaError("no schema")

    monkeypatch.setattr(fencelock.Source if kind == "sync" else fencelock.aio.AsyncSource, "take", failing)
    with pytest.raises(errors.SchemaError):
        lead(kind, url, lambda _: None)


@both
def test_a_body_that_ends_well_is_followed_by_another_term_at_once(url: str, kind: str) -> None:
    stop, tokens, told = threading.Event(), list[int](), list[Any]()

    def body(lease: Any) -> None:
        tokens.append(lease.token)
        if len(tokens) == 3:
            stop.set()

    lead(kind, url, body, stop=stop, hooks=fencelock.Hooks(on_retried=told.append))
    assert len(tokens) == 3
    assert told == []


@pytest.mark.usefixtures("brief_pauses")
@pytest.mark.parametrize("once", [None, "tonight"])
def test_k1_an_unknown_outcome_is_followed_by_another_term_if_the_block_is_done_once(
    url: str, file: Path, once: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit happened, and its reply was lost."""
    finish = SQLiteGuardConnection._ANSWERS[ask_for.Finish]

    def unconfirmed(connection: SQLiteGuardConnection, request: Any) -> Any:
        finish(connection, request)
        raise errors.OutcomeUnknownError("no answer")

    monkeypatch.setitem(SQLiteGuardConnection._ANSWERS, ask_for.Finish, unconfirmed)
    guard = fencelock.guard(f"sqlite:///{file}", resource="reports", lock=LOCK)
    tokens = []

    def body(lease: Any) -> None:
        tokens.append(lease.token)
        with guard.transaction(lease, once=once) as connection:
            connection.execute("UPDATE reports SET value = value + 1")

    with pytest.raises(errors.OutcomeUnknownError if once is None else errors.AlreadyDoneError):
        lead("sync", url, body)
    assert len(tokens) == (1 if once is None else 2)
    with plain(file) as connection:
        assert connection.execute("SELECT value FROM reports").fetchone() == (1,)


@both
@pytest.mark.usefixtures("brief_pauses")
@pytest.mark.parametrize("fate", ["happened", "lost"])
def test_k1_a_seal_in_doubt_is_followed_by_another_term(
    url: str, file: Path, kind: str, fate: str, lost_commits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit was not confirmed, and then the resource was away: the block did not begin."""
    begin, fails = SQLiteGuardConnection._ANSWERS[ask_for.Begin], [False, True]

    def away(connection: SQLiteGuardConnection, request: Any) -> Any:
        if fails and fails.pop(0):
            raise errors.SourceUnavailableError("away")
        return begin(connection, request)

    monkeypatch.setitem(SQLiteGuardConnection._ANSWERS, ask_for.Begin, away)
    guard = fencelock.guard(f"sqlite:///{file}", resource="reports", lock=LOCK)
    lost_commits.append(fate)
    stop, tokens = threading.Event(), []

    def body(lease: Any) -> None:
        tokens.append(lease.token)
        with guard.transaction(lease) as connection:
            connection.execute("UPDATE reports SET value = value + 1")
        stop.set()

    lead(kind, url, body, stop=stop)
    assert (len(tokens), fails, lost_commits) == (2, [], [])
    with plain(file) as connection:
        assert connection.execute("SELECT value FROM reports").fetchone() == (1,)


# --- K3: how a loop ends --------------------------------------------------------------------------
@both
def test_k3_a_loop_that_is_stopped_before_it_begins_asks_for_nothing(url: str, kind: str) -> None:
    stop = threading.Event()
    stop.set()
    with fencelock.connect(url) as source:
        source.install()
        lead(kind, url, lambda _: pytest.fail("it leads"), stop=stop)
        assert source.info(LOCK).token is None


@both
def test_k3_a_pause_ends_when_the_loop_is_stopped(url: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "FIRST_PAUSE_S", LONGEST_PAUSE_S)
    monkeypatch.setattr(leading, "LONGEST_PAUSE_S", 10 * LONGEST_PAUSE_S)
    stop = threading.Event()

    def body(_: Any) -> None:
        threading.Timer(0.05, stop.set).start()
        raise STALE

    lead(kind, url, body, stop=stop)


@both
def test_k3_a_lock_that_is_granted_when_the_loop_is_stopped_is_given_back(
    url: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()
    owner = fencelock.Source if kind == "sync" else fencelock.aio.AsyncSource
    keep = owner._keep

    def keep_and_stop(*arguments: Any) -> Any:
        stop.set()
        return keep(*arguments)

    monkeypatch.setattr(owner, "_keep", keep_and_stop)
    lead(kind, url, lambda _: pytest.fail("it leads"), stop=stop)
    with fencelock.connect(url) as source:
        info = source.info(LOCK)
        assert (info.is_held, info.token is None) == (False, False)


def test_break_ends_the_loop_and_releases_the_lease(url: str) -> None:
    with fencelock.connect(url) as source:
        for term in source.lead(LOCK):
            with term as lease:
                break
        assert lease.token
        assert not source.info(LOCK).is_held


def test_k3_an_event_of_asyncio_stops_a_loop_that_waits(url: str) -> None:
    async def work() -> None:
        other = fencelock.connect(url)
        async with fencelock.aio.connect(url) as source, source.lock(LOCK):
            stop = asyncio.Event()

            async def follow() -> None:
                async for _ in source.lead(LOCK, stop=stop):
                    pytest.fail("it leads")

            task = asyncio.create_task(follow())
            await wait_until_async(lambda: other.info(LOCK).waiters)
            stop.set()
            await task
            assert not other.info(LOCK).waiters
        other.close()

    asyncio.run(work())


# --- cancellation ---------------------------------------------------------------------------------
@pytest.mark.usefixtures("brief_pauses", "early_beats")
@pytest.mark.parametrize("when", ["in the body", "at its end", "with an error"])
def test_k1_a_task_that_its_lease_has_cancelled_campaigns_again(url: str, when: str) -> None:
    async def work() -> list[int]:
        tokens = []
        async with fencelock.aio.connect(url) as source:
            async for term in source.lead(LOCK, ttl=30.0):
                async with term as lease:
                    tokens.append(lease.token)
                    if len(tokens) == 2:
                        break
                    lease.cancel_on_lost()
                    await source.break_lock(LOCK, reason="a test")
                    if when == "in the body":
                        await asyncio.sleep(60)
                    else:
                        lease._cancel(lose(lease), "a test")
                        if when == "with an error":
                            raise STALE
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
        return tokens

    def lose(lease: Any) -> Any:
        lease._record.leave_held("lost", "a test")
        return asyncio.current_task()

    assert len(asyncio.run(work())) == 2


@pytest.mark.parametrize("is_lost", ["no", "before", "after", "at the end"])
def test_k2_a_cancelled_task_leaves_the_loop_and_releases_the_lease(url: str, is_lost: str) -> None:
    """Also if its lease cancels it at the same moment."""

    async def follow(source: Any, begun: asyncio.Event) -> None:
        task = asyncio.current_task()
        async for term in source.lead(LOCK):
            async with term as lease:
                lease.cancel_on_lost()
                if is_lost in ("before", "at the end"):
                    lease._cancel(task, "a test")
                if is_lost == "at the end":
                    assert task is not None
                    task.cancel()
                begun.set()
                if is_lost == "at the end":
                    continue
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    if is_lost == "after":
                        lease._cancel(task, "a test")
                    raise

    async def work() -> None:
        async with fencelock.aio.connect(url) as source:
            begun = asyncio.Event()
            task = asyncio.create_task(follow(source, begun))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(work())
    with fencelock.connect(url) as source:
        wait_until(lambda: not source.info(LOCK).is_held)


# --- misuse ---------------------------------------------------------------------------------------
def test_a_term_that_is_not_entered_is_given_back_and_reported(url: str) -> None:
    with fencelock.connect(url) as source:
        loop = source.lead(LOCK)
        term = next(loop)
        with pytest.raises(fencelock.LeaseError, match="enter each one"):
            next(loop)
        wait_until(lambda: not source.info(LOCK).is_held)
        with next(loop) as lease:
            assert lease.is_valid
            with pytest.raises(fencelock.LeaseError, match="has not ended"):
                next(loop)
            assert lease.is_valid
        with pytest.raises(fencelock.LeaseError, match="entered once"):
            term.__enter__(), term.__enter__()
        del term


def test_a_term_that_is_dropped_is_given_back(url: str) -> None:
    with fencelock.connect(url) as source:
        for _ in source.lead(LOCK):
            break
        del _
        wait_until(lambda: not source.info(LOCK).is_held)


@pytest.mark.parametrize(
    "options", [{"stop": 3}, {"retry_on": [KeyboardInterrupt]}, {"retry_on": ["error"]}, {"ttl": -1}], ids=repr
)
def test_options_outside_their_contract_are_refused(url: str, options: Any) -> None:
    with fencelock.connect(url) as source, pytest.raises(fencelock.ConfigError):
        source.lead(LOCK, **options)
    with pytest.raises(fencelock.ConfigError):
        fencelock.aio.connect(url).lead(LOCK, **options)


# --- the pause ------------------------------------------------------------------------------------
def test_pauses_are_doubled_up_to_a_bound_and_half_of_each_is_drawn() -> None:
    longest = BackOff(lambda: 1.0)
    pauses = [longest.after_failure_s(0.0) for _ in range(100)]
    assert pauses[:4] == [FIRST_PAUSE_S * 2**n for n in range(4)]
    assert pauses[-1] == max(pauses) == LONGEST_PAUSE_S
    shortest = BackOff(lambda: 0.0)
    assert [shortest.after_failure_s(0.0) for _ in range(100)] == [pause / 2 for pause in pauses]


def test_pauses_begin_again_after_a_term_that_ended_well_or_lasted() -> None:
    back_off = BackOff(lambda: 1.0)
    for _ in range(5):
        back_off.after_failure_s(0.0)
    assert back_off.after_failure_s(LONGEST_PAUSE_S) == FIRST_PAUSE_S
    assert back_off.after_failure_s(0.0) == 2 * FIRST_PAUSE_S
    back_off.reset()
    assert back_off.after_failure_s(0.0) == FIRST_PAUSE_S


@both
def test_a_leader_leads_until_it_is_stopped(url: str, kind: str) -> None:
    leader = Leader(kind, url)
    wait_until(lambda: leader.tokens)
    leader.end()
    assert (len(leader.tokens), leader.retried) == (1, [])
