"""The keeper, one round at a time with a clock that moves on demand; its thread only where the test is about it."""

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from fencelock._api.aio_lease import AsyncLost
from fencelock._api.lease import Lost
from fencelock._drivers.sync import SyncDriver
from fencelock._keeper import keeper as keeper_module
from fencelock._keeper import schedule
from fencelock._keeper.keeper import (
    ABANDON_PAUSE_MS,
    MAX_ABANDONED_AT_ONCE,
    MAX_SLEEP_MS,
    REQUEST_TIMEOUT_S,
    Keeper,
)
from fencelock._keeper.messages import Wake
from fencelock._keeper.record import DEADLINE_PASSED, EXPIRED, HELD, LOST, RELEASED, Listeners
from fencelock.errors import (
    LeaseExpiredError,
    LeaseLostError,
    OutcomeUnknownError,
    SourceError,
    SourceUnavailableError,
)
from fencelock.hooks import Event, Hooks
from fencelock.model import LockInfo
from fencelock.protocol.source_requests import Inspect, Release, Released, Renew, Renewed
from fencelock.testing.conformance.faults import failing_starts
from tests.support.helpers import wait_until
from tests.unit.fakes import START_MS, Clock, FakeSource, Holding, agree

pytestmark = pytest.mark.reduced

TTL_MS = 30_000
BEAT_MS = 10_000
MARGIN_MS = 3_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Stage:
    """A keeper without its thread, over a fake source."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.keeper = Keeper(clock.now_ms)
        self.keeper._callback_thread.start()
        self.source = FakeSource()
        self.driver = self.driver_to(self.source)

    def driver_to(self, source: FakeSource) -> SyncDriver:
        return SyncDriver(source, now_us=self.clock.now_us)

    def hold(self, claim: str = "c1", driver: SyncDriver | None = None, **options: Any) -> Holding:
        holding = Holding(self.clock, driver or self.driver, claim, **options)
        self.keeper.add(holding.record)
        return holding

    def look(self, after_ms: int = 0) -> None:
        """Let the time pass, and the keeper go through one round."""
        self.clock.pass_ms(after_ms)
        self.keeper._inbox.put(Wake())
        assert not self.keeper._receive()
        self.keeper._expire()
        silent = self.keeper._renew()
        self.keeper._expire()
        self.keeper._abandon_claims(silent)


@pytest.fixture
def stage(clock: Clock) -> Stage:
    return Stage(clock)


def told(holding: Holding, count: int = 1) -> list[str]:
    """Wait until a lease's listener has been called this many times, and return the reasons."""
    wait_until(lambda: len(holding.told) >= count)
    return holding.told


def unavailable(request: Any) -> Any:
    raise SourceUnavailableError("locked by another process")


# --- renewal --------------------------------------------------------------------------------------
def test_a_lease_is_renewed_at_a_third_of_its_ttl_and_its_deadline_moves(stage: Stage) -> None:
    record = stage.hold().record
    stage.look(0)
    stage.look(BEAT_MS - 1)
    assert stage.source.asked == []
    stage.look(1)
    assert stage.source.asked == [Renew((("the-lock", "c1"),))]
    assert record.deadline_ms == START_MS + BEAT_MS + TTL_MS - MARGIN_MS
    assert record.state == HELD


def test_however_many_leases_one_request_renews_them_all(stage: Stage) -> None:
    held = [stage.hold(f"c{number}") for number in range(500)]
    stage.look(0)
    stage.look(BEAT_MS)
    (request,) = stage.source.asked
    assert {claim for _, claim in request.leases} == {holding.record.claim for holding in held}


def test_a_renewal_counts_from_its_sending(stage: Stage) -> None:
    record = stage.hold().record
    stage.look(0)

    def slowly(request: Any) -> Any:
        stage.clock.pass_ms(4_000)
        return agree(request)

    stage.source.answer = slowly
    stage.look(BEAT_MS)
    assert record.deadline_ms == START_MS + BEAT_MS + TTL_MS - MARGIN_MS


def test_what_was_confirmed_before_stays_true(stage: Stage) -> None:
    record = stage.hold().record
    stage.look(0)
    stage.source.answer = lambda request: Renewed({"c1": 1_000}, {})
    before_ms = record.deadline_ms
    stage.look(BEAT_MS)
    assert record.deadline_ms == before_ms


def test_each_renewal_is_told_to_the_hook(stage: Stage) -> None:
    events: list[Event] = []
    stage.hold(hooks=Hooks(on_renewed=events.append))
    holding = stage.hold("c2", hooks=Hooks(on_renewed=events.append))
    stage.look(0)
    stage.look(BEAT_MS)
    wait_until(lambda: events)
    assert {event.name for event in events} == {"renewed"}
    assert events[0].token == holding.record.grant.token


def test_a_lease_of_short_remaining_time_is_renewed_before_it_ends(stage: Stage) -> None:
    """The grant may have been long on its way, in a frozen process or by a repeated request."""
    record = stage.hold(left_ms=4_000).record
    stage.look(0)
    stage.look(2_000)
    assert stage.source.requests(Renew)
    assert record.remaining_ms() > 4_000


# --- loss -----------------------------------------------------------------------------------------
def test_a_definite_no_is_a_loss_with_the_sources_reason(stage: Stage) -> None:
    events: list[Event] = []
    holding = stage.hold(hooks=Hooks(on_lost=events.append))
    stage.look(0)
    stage.source.answer = lambda request: Renewed({}, {"c1": "somebody broke it"})
    stage.look(BEAT_MS)
    assert holding.record.state == LOST
    assert told(holding) == ["somebody broke it"]
    with pytest.raises(LeaseLostError, match="somebody broke it"):
        raise holding.record.problem() or AssertionError
    wait_until(lambda: events)
    assert [(event.name, event.reason) for event in events] == [("lost", "somebody broke it")]
    stage.look(BEAT_MS)
    assert stage.source.requests(Release) == [], "what the source took away needs no release"


def test_a_lease_that_the_source_does_not_name_is_lost(stage: Stage) -> None:
    holding = stage.hold()
    stage.look(0)
    stage.source.answer = lambda request: Renewed({}, {})
    stage.look(BEAT_MS)
    assert holding.record.state == LOST
    assert told(holding) == ["the source did not name it"]


def test_the_loss_of_one_lease_is_not_the_others(stage: Stage) -> None:
    lost, kept = stage.hold("c1"), stage.hold("c2")
    stage.look(0)
    stage.source.answer = lambda request: Renewed({"c2": TTL_MS}, {"c1": "broken"})
    stage.look(BEAT_MS)
    assert (lost.record.state, kept.record.state) == (LOST, HELD)


def test_h2_the_doubt_about_one_lease_is_not_the_others(stage: Stage) -> None:
    doubted, kept = stage.hold("c1"), stage.hold("c2")
    stage.look(0)
    stage.source.answer = lambda request: Renewed({"c2": TTL_MS}, {}, frozenset({"c1"}))
    stage.look(BEAT_MS)
    assert (doubted.record.state, kept.record.state) == (HELD, HELD)
    assert kept.record.deadline_ms > doubted.record.deadline_ms
    asked = len(stage.source.requests(Renew))
    stage.look(BEAT_MS // 4)
    assert len(stage.source.requests(Renew)) == asked + 1, "it is asked again soon"
    while stage.clock.ms < START_MS + TTL_MS - MARGIN_MS:
        stage.look(500)
    assert (doubted.record.state, kept.record.state) == (EXPIRED, HELD)


@pytest.mark.parametrize("error", [SourceUnavailableError("busy"), OutcomeUnknownError("lost"), ZeroDivisionError()])
def test_doubt_is_retried_until_the_deadline_and_then_the_lease_is_over(stage: Stage, error: Exception) -> None:
    holding = stage.hold()
    stage.look(0)

    def fail(request: Any) -> Any:
        raise error

    stage.source.answer = fail
    stage.look(BEAT_MS)
    while stage.clock.ms < START_MS + TTL_MS - MARGIN_MS - 500:
        assert holding.record.state == HELD
        stage.look(500)
    assert len(stage.source.requests(Renew)) > 4
    stage.look(500)
    assert holding.record.state == EXPIRED
    assert told(holding) == ["its deadline passed without word from the source"]
    assert isinstance(holding.record.problem(), LeaseExpiredError)


def test_an_outage_shorter_than_the_deadline_loses_nothing(stage: Stage) -> None:
    holding = stage.hold()
    stage.look(0)
    stage.source.answer = unavailable
    stage.look(BEAT_MS)
    stage.look(BEAT_MS)
    stage.source.answer = agree
    stage.look(BEAT_MS // 4)
    assert holding.record.state == HELD
    assert holding.record.deadline_ms == stage.clock.ms + TTL_MS - MARGIN_MS
    stage.look(60)
    assert holding.told == []


def test_an_expired_lease_is_told_once_and_its_claim_is_given_up(stage: Stage) -> None:
    holding = stage.hold()
    stage.look(0)
    stage.look(TTL_MS)
    stage.look(1)
    stage.look(BEAT_MS)
    assert stage.source.asked == [Release("the-lock", "c1")]
    assert told(holding) == ["its deadline passed without word from the source"]


def test_a_renewal_that_succeeds_after_the_deadline_is_followed_by_a_release(stage: Stage) -> None:
    """H2: once the own deadline has passed, the lease is over for good."""
    holding = stage.hold()
    stage.look(0)

    def too_slowly(request: Any) -> Any:
        if isinstance(request, Renew):
            stage.clock.pass_ms(TTL_MS)
        return agree(request)

    stage.source.answer = too_slowly
    stage.look(BEAT_MS)
    assert holding.record.state == EXPIRED
    assert [type(request) for request in stage.source.asked] == [Renew, Release]
    assert told(holding) == ["its deadline passed before the source confirmed the renewal"]


def test_a_lease_that_was_seen_over_is_not_revived_by_a_renewal_under_way(stage: Stage) -> None:
    """The keeper's thread may stand between reading the clock and moving the deadline, while others run."""
    holding = stage.hold()
    stage.look(0)
    stage.clock.pass_ms(TTL_MS)
    assert holding.record.is_over()
    stage.clock.pass_ms(-BEAT_MS)  # What the keeper's stale reading of the clock would say.
    assert not holding.record.renewed_until(stage.clock.ms + TTL_MS, stage.clock.ms)
    stage.clock.pass_ms(BEAT_MS)
    assert holding.record.is_over()
    assert holding.record.remaining_ms() == 0


def test_a_look_in_the_middle_of_a_renewal_does_not_end_a_lease(stage: Stage) -> None:
    holding = stage.hold()
    stage.clock.pass_ms(TTL_MS - MARGIN_MS - 1)
    assert holding.record.renewed_until(stage.clock.ms + TTL_MS, stage.clock.ms)
    stage.clock.pass_ms(1)
    assert not holding.record.is_over()


def test_a_loss_that_somebody_else_saw_first_is_announced_too(stage: Stage) -> None:
    """A holder that wakes after its deadline and releases at once learns of the loss, too (H3)."""
    holding = stage.hold()
    stage.look(0)
    stage.clock.pass_ms(TTL_MS)
    assert holding.record.begin_release()
    stage.keeper.announce_loss(holding.record)
    stage.keeper.announce_loss(holding.record)
    stage.look(0)
    assert holding.record.state == EXPIRED
    assert told(holding) == ["its deadline passed without word from the source"]
    stage.look(BEAT_MS)
    assert len(holding.told) == 1


def test_a_released_lease_is_neither_renewed_nor_lost(stage: Stage) -> None:
    holding = stage.hold()
    stage.look(0)
    assert holding.record.begin_release()
    stage.look(BEAT_MS)
    stage.look(TTL_MS)
    assert stage.source.asked == []
    assert holding.record.state == RELEASED
    assert holding.told == []


def test_a_released_lease_is_forgotten_long_before_its_beat(stage: Stage) -> None:
    """With a ttl of a day, the leases of a busy program once piled up for eight hours."""
    for number in range(3):
        record = stage.hold(f"c{number}").record
        stage.look(MAX_SLEEP_MS)
        record.leave_held(RELEASED, "it was released")
    stage.look(MAX_SLEEP_MS)
    assert list(stage.keeper._schedule) == []
    assert stage.source.asked == []


def test_a_lease_that_was_released_during_its_renewal_is_not_lost(stage: Stage) -> None:
    holding = stage.hold()
    stage.look(0)

    def released_meanwhile(request: Any) -> Any:
        holding.record.begin_release()
        return Renewed({}, {"c1": "it was released"})

    stage.source.answer = released_meanwhile
    stage.look(BEAT_MS)
    assert holding.record.state == RELEASED
    assert holding.told == []


def not_held(request: Any) -> Any:
    match request:
        case Release():
            return Released(was_held=False)
        case Inspect():
            return LockInfo(request.lock, 8, "the next one", 1.0, 30.0, ())
    return agree(request)


def test_a_release_in_the_background_announces_the_loss_that_it_finds(stage: Stage) -> None:
    """H3: a signal handler can only ask for the release, and learns of a loss by the callback."""
    holding = stage.hold()
    stage.look(0)
    stage.source.answer = not_held
    assert holding.record.begin_release()
    stage.keeper.release(holding.record)
    stage.look(0)
    assert holding.record.state == LOST
    assert told(holding) == [
        "the source had ended it before it was released; with token 8, the next one holds the lock now"
    ]
    stage.look(BEAT_MS)
    assert len(holding.told) == 1


@pytest.mark.parametrize("trouble", ["unavailable", "in doubt", "late"])
def test_a_release_in_the_background_that_comes_again_or_late_finds_no_loss(stage: Stage, trouble: str) -> None:
    """H3: by then the lease may have ended by the first request, or by its ttl."""
    holding = stage.hold()
    stage.look(0)
    assert holding.record.begin_release()
    stage.keeper.release(holding.record)
    if trouble == "late":
        stage.clock.pass_ms(TTL_MS)
    else:
        error = SourceUnavailableError("busy") if trouble == "unavailable" else OutcomeUnknownError("lost")

        def fail(request: Any) -> Any:
            raise error

        stage.source.answer = fail
        stage.look(0)
        assert stage.source.requests(Release)
    stage.source.answer = not_held
    stage.look(ABANDON_PAUSE_MS)
    assert holding.record.state == RELEASED
    assert stage.keeper._abandoned == {}
    assert holding.told == []


def test_the_keeper_holds_neither_the_audience_nor_what_it_refers_to(stage: Stage) -> None:
    """H2: a callback that belongs to the lease's owner must not keep the lease alive."""

    class Owner:
        def __init__(self) -> None:
            self.holding = Holding(stage.clock, stage.driver)
            self.holding.listeners.callbacks = (self.on_lost,)

        def on_lost(self, reason: str) -> None:
            raise AssertionError(reason)

    owner = Owner()
    stage.keeper.add(owner.holding.record)
    is_alive = weakref.ref(owner)
    del owner
    gc.collect()
    assert is_alive() is None
    stage.look(0)
    stage.look(TTL_MS)


# --- one source's trouble is not another's --------------------------------------------------------
@pytest.mark.parametrize("error", [SourceUnavailableError("busy on purpose"), ZeroDivisionError("a bug on purpose")])
def test_an_error_at_one_source_does_not_touch_the_leases_of_another(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    bad = FakeSource()

    def fail(request: Any) -> Any:
        raise error

    bad.answer = fail
    first = stage.hold("bad", stage.driver_to(bad))
    good = stage.hold("good")
    stage.look(0)
    with caplog.at_level(logging.WARNING, logger="fencelock"):
        stage.look(BEAT_MS)
    assert good.record.deadline_ms == stage.clock.ms + TTL_MS - MARGIN_MS
    assert first.record.state == HELD
    # The keeper of the process may log what earlier tests have left.
    (failure,) = [one for one in caplog.records if str(error) in f"{one.getMessage()} {one.exc_info}"]
    assert bool(failure.exc_info) is isinstance(error, ZeroDivisionError)
    stage.look(BEAT_MS // 4)
    assert len(bad.requests(Renew)) == 2, "what is in doubt is asked for again soon, whatever the error was"


def test_a_silent_source_is_waited_for_once_between_two_checks_for_renewals(stage: Stage) -> None:
    """H2: whatever it is asked, a renewal or the release of what expired or was released meanwhile."""
    silent = FakeSource()

    def hang(request: Any) -> Any:
        stage.clock.pass_ms(int(REQUEST_TIMEOUT_S * 1000))
        raise OutcomeUnknownError("no answer in time")

    silent.answer = hang
    driver = stage.driver_to(silent)
    held = [stage.hold(f"c{number}", driver, ttl_ms=2_000) for number in range(2)]
    assert held[0].record.begin_release()
    stage.keeper.release(held[0].record)
    stage.keeper.abandon(driver, "the-lock", "c9", TTL_MS)
    for _ in range(20):
        asked = len(silent.asked)
        stage.look(100)
        assert len(silent.asked) - asked <= 1
    assert {type(request) for request in silent.asked} == {Renew, Release}
    assert held[1].record.state == EXPIRED


# --- abandoned claims -----------------------------------------------------------------------------
def test_an_abandoned_claim_is_released(stage: Stage) -> None:
    stage.keeper.abandon(stage.driver, "the-lock", "c9", TTL_MS)
    stage.look(0)
    assert stage.source.asked == [Release("the-lock", "c9")]
    stage.look(TTL_MS)
    assert len(stage.source.asked) == 1


def test_an_abandoned_claim_is_tried_again_until_its_ttl_has_ended_it(stage: Stage) -> None:
    stage.source.answer = unavailable
    stage.keeper.abandon(stage.driver, "the-lock", "c9", TTL_MS)
    stage.look(0)
    stage.look(ABANDON_PAUSE_MS - 1)
    assert len(stage.source.asked) == 1, "there is a pause between two tries"
    stage.look(1)
    assert len(stage.source.asked) == 2
    stage.look(TTL_MS)
    asked = len(stage.source.asked)
    stage.look(TTL_MS)
    assert len(stage.source.asked) == asked
    assert stage.keeper._abandoned == {}


@pytest.mark.parametrize("error", [SourceUnavailableError("busy"), ZeroDivisionError("a bug")])
def test_a_claim_that_cannot_be_released_stands_in_nobodys_way(stage: Stage, error: Exception) -> None:
    bad = FakeSource()

    def fail(request: Any) -> Any:
        raise error

    bad.answer = fail
    stage.keeper.abandon(stage.driver_to(bad), "the-lock", "bad", TTL_MS)
    stage.keeper.abandon(stage.driver, "the-lock", "good", TTL_MS)
    stage.look(0)
    assert stage.source.asked == [Release("the-lock", "good")]
    stage.look(ABANDON_PAUSE_MS)
    assert len(bad.asked) == 2


def test_a_claim_that_its_source_refuses_to_release_holds_up_no_others(stage: Stage) -> None:
    def refuse(request: Any) -> Any:
        if request.claim == "bad":
            raise SourceError("refused")
        return agree(request)

    stage.source.answer = refuse
    for claim in ("bad", "good", "better"):
        stage.keeper.abandon(stage.driver, "the-lock", claim, TTL_MS)
    stage.look(0)
    stage.look(ABANDON_PAUSE_MS)
    assert [request.claim for request in stage.source.asked] == ["bad", "good", "better", "bad"]


def test_one_failure_speaks_for_its_source(stage: Stage) -> None:
    stage.source.answer = unavailable
    for number in range(5):
        stage.keeper.abandon(stage.driver, "the-lock", f"c{number}", TTL_MS)
    stage.look(0)
    assert len(stage.source.asked) == 1
    stage.source.answer = agree
    stage.look(ABANDON_PAUSE_MS)
    assert {request.claim for request in stage.source.asked[1:]} == {f"c{number}" for number in range(5)}


def test_a_release_that_had_to_wait_for_its_source_announces_the_loss_that_it_finds(stage: Stage) -> None:
    """H3: it was not sent while the source did not answer, so the first answer to it proves a loss."""
    holdings = [stage.hold(f"c{number}") for number in range(2)]
    stage.look(0)
    stage.source.answer = unavailable
    for holding in holdings:
        assert holding.record.begin_release()
        stage.keeper.release(holding.record)
    stage.look(0)
    (asked,) = stage.source.requests(Release)
    stage.source.answer = not_held
    stage.look(ABANDON_PAUSE_MS)
    states = {holding.record.claim: holding.record.state for holding in holdings}
    assert states == {claim: RELEASED if claim == asked.claim else LOST for claim in states}


def test_renewals_come_between_many_abandoned_claims(stage: Stage) -> None:
    holding = stage.hold()
    stage.look(0)
    for number in range(3 * MAX_ABANDONED_AT_ONCE):
        stage.keeper.abandon(stage.driver, "the-lock", f"a{number}", TTL_MS)
    stage.look(BEAT_MS - 1)
    assert len(stage.source.requests(Release)) == MAX_ABANDONED_AT_ONCE
    stage.look(1)
    assert holding.record.deadline_ms == stage.clock.ms + TTL_MS - MARGIN_MS
    stage.look(0)
    assert len(stage.source.requests(Release)) == 3 * MAX_ABANDONED_AT_ONCE


def test_h2_renewals_come_between_abandoned_claims_of_a_slow_source(stage: Stage) -> None:
    """64 releases of half a second each would take longer than the lease."""
    holding, slow = stage.hold(), FakeSource()

    def answer_slowly(request: Any) -> Any:
        stage.clock.pass_ms(500)
        return agree(request)

    slow.answer = answer_slowly
    driver = stage.driver_to(slow)
    stage.look(0)
    for number in range(MAX_ABANDONED_AT_ONCE):
        stage.keeper.abandon(driver, "the-lock", f"a{number}", 4 * TTL_MS)
    while len(slow.requests(Release)) < MAX_ABANDONED_AT_ONCE:
        stage.look(0)
        assert holding.record.deadline_ms >= stage.clock.ms + TTL_MS - BEAT_MS - MARGIN_MS - 500
    assert holding.record.is_held


def test_h3_a_lease_that_ends_while_another_source_is_slow_is_told_before_the_next_one_is_asked(stage: Stage) -> None:
    ended, states = stage.hold(ttl_ms=5_000), list[str]()
    stage.look(0)

    def answer_slowly(request: Any) -> Any:
        states.append(ended.record.state)
        stage.clock.pass_ms(4_000)
        return agree(request)

    for number in range(2):
        source = FakeSource()
        source.answer = answer_slowly
        stage.hold(f"slow{number}", stage.driver_to(source), ttl_ms=12_000)
    stage.look(0)
    stage.source.answer = unavailable
    stage.look(4_000)
    assert states[:2] == [HELD, EXPIRED]
    assert told(ended) == [DEADLINE_PASSED]


# --- the thread -----------------------------------------------------------------------------------
@pytest.fixture
def running() -> Iterator[Keeper]:
    keeper = Keeper()
    keeper.start()
    yield keeper
    keeper.stop(5.0)


def threads_of(keeper: Keeper) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if getattr(thread, "_target", None) == keeper._background._run]


def test_started_by_many_threads_it_is_one_thread(running: Keeper) -> None:
    starters = [threading.Thread(target=running.start) for _ in range(8)]
    for starter in starters:
        starter.start()
    for starter in starters:
        starter.join()
    assert len(threads_of(running)) == 1


def test_a_start_that_was_broken_off_leaves_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler may raise while `Thread.start` waits for the thread that it has begun."""
    start = threading.Thread.start

    def broken_off(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    keeper = Keeper()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", broken_off)
        for _ in range(3):
            with suppress(KeyboardInterrupt):
                keeper.start()
    keeper.start()
    wait_until(lambda: len(threads_of(keeper)) == 1)
    source = FakeSource()
    keeper.abandon(SyncDriver(source), "the-lock", "c1", TTL_MS)
    wait_until(lambda: source.asked == [Release("the-lock", "c1")])
    keeper.stop(5.0)
    wait_until(lambda: threads_of(keeper) == [])


def test_it_survives_an_error_that_nobody_foresaw(
    running: Keeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = iter([ZeroDivisionError("a bug"), MemoryError()])

    def fail() -> None:
        if (error := next(failing, None)) is not None:
            raise error

    monkeypatch.setattr(running, "_expire", fail)
    source = FakeSource()
    running.abandon(SyncDriver(source), "the-lock", "c1", TTL_MS)
    wait_until(lambda: source.asked)
    assert "unexpected error" in caplog.text


@pytest.mark.parametrize("number", [1, 2], ids=["callbacks", "keeper"])
def test_a_thread_that_did_not_start_is_an_error_and_starts_the_next_time(number: int) -> None:
    """A lease that nobody renews, or whose loss nobody can tell, must not be granted."""
    keeper = Keeper()
    with failing_starts(number) as faults, pytest.raises(SourceUnavailableError, match="limit on threads"):
        keeper.start()
    assert faults.failed
    keeper.start()
    assert len(threads_of(keeper)) == 1
    told = threading.Event()
    keeper._callback_thread.submit(told.set)
    assert told.wait(10)
    keeper.stop(5.0)


def test_a_loss_is_noticed_by_who_waits_for_it_even_if_the_keeper_is_stuck() -> None:
    """No keeper knows this lease."""
    listeners = Listeners(Hooks())
    assert Lost(real_lease(SyncDriver(FakeSource()), listeners, ttl_ms=20)).wait()
    record = real_lease(SyncDriver(FakeSource()), listeners, ttl_ms=20)
    assert asyncio.run(AsyncLost(record).wait())


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(1), KeyboardInterrupt()])
def test_a_callback_that_raises_keeps_no_later_loss_from_being_told(
    running: Keeper, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    heard = threading.Event()
    running._callback_thread.submit(fail)
    running._callback_thread.submit(heard.set)
    assert heard.wait(10)
    assert "a callback of a lease raised" in caplog.text


def test_callbacks_run_in_the_order_of_what_happened(running: Keeper) -> None:
    heard: list[int] = []
    for number in range(100):
        running._callback_thread.submit(lambda number=number: heard.append(number))
    wait_until(lambda: len(heard) == 100)
    assert heard == sorted(heard)


def test_a_callback_that_blocks_holds_up_no_renewal(running: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked, may_go_on = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        may_go_on.wait(30)

    running._callback_thread.submit(block)
    assert blocked.wait(10)
    source = FakeSource()
    listeners = Listeners(Hooks())
    # Each tenth of a second, and no machine is too busy for the rest of the ttl.
    monkeypatch.setattr(schedule, "BEATS_PER_TTL", 300)
    record = real_lease(SyncDriver(source), listeners, ttl_ms=30_000)
    running.add(record)
    wait_until(lambda: len(source.requests(Renew)) >= 5)
    assert not may_go_on.is_set()
    assert record.state == HELD
    may_go_on.set()


def real_lease(driver: SyncDriver, listeners: Listeners, ttl_ms: int) -> Any:
    """Return a lease on the real clock."""
    from fencelock._flows.acquire import Grant
    from fencelock._keeper.record import LeaseRecord
    from fencelock.clock import boottime_ms

    grant = Grant(1, boottime_ms() + ttl_ms, "source", "history", None)
    return LeaseRecord(driver, "the-lock", "c1", "me", ttl_ms, grant, listeners)


def test_at_the_end_everything_that_is_held_or_abandoned_is_released() -> None:
    keeper = Keeper()
    keeper.start()
    source = FakeSource()
    driver = SyncDriver(source)
    listeners = Listeners(Hooks())
    record = real_lease(driver, listeners, ttl_ms=60_000)
    keeper.add(record)
    for number in range(2 * MAX_ABANDONED_AT_ONCE):
        keeper.abandon(driver, "the-lock", f"a{number}", 60_000)
    keeper.stop(10.0)
    assert record.state == RELEASED
    assert len(source.requests(Release)) == 2 * MAX_ABANDONED_AT_ONCE + 1
    assert threads_of(keeper) == []


def test_the_end_waits_no_longer_than_it_was_told_for_a_source_that_hangs() -> None:
    keeper = Keeper()
    keeper.start()
    may_go_on = threading.Event()

    def hang(request: Any) -> Any:
        may_go_on.wait(30)
        return agree(request)

    keeper.abandon(SyncDriver(FakeSource(hang)), "the-lock", "c1", 60_000)
    keeper.stop(0.05)
    assert len(threads_of(keeper)) == 1
    may_go_on.set()
    wait_until(lambda: threads_of(keeper) == [])


def test_an_idle_keeper_sleeps_until_it_is_written_to(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = Keeper(clock.now_ms)
    assert keeper._plan_sleep() is None
    assert keeper._wake_ms == float("inf")


@pytest.mark.parametrize(
    ("ttl_ms", "left_ms", "is_woken"), [(30_000, None, False), (900, None, True), (30_000, 40, True)]
)
def test_a_new_lease_wakes_the_keeper_only_if_it_would_be_late(
    stage: Stage, ttl_ms: int, left_ms: int | None, is_woken: bool
) -> None:
    stage.hold("c0", ttl_ms=30_000)
    stage.look(0)
    stage.keeper._plan_sleep()
    assert stage.keeper._wake_ms == stage.clock.ms + keeper_module.MAX_SLEEP_MS
    stage.hold("c1", ttl_ms=ttl_ms, left_ms=left_ms)
    assert stage.keeper._inbox.empty() is not is_woken
