"""The flows, driven by hand: every reply, and every error thrown in at every request."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fencelock._flows import renewal, signing
from fencelock._flows.acquire import MAX_CLAIMS, MIN_CLAIMS, RETRY_MS, Attempt, Grant, acquire, deadline_ms, margin_ms
from fencelock.errors import OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.model import SigningKey, SourceInfo
from fencelock.protocol.source_requests import (
    NOW,
    Acquire,
    BlockSpent,
    Break,
    Broken,
    Busy,
    ClaimEnded,
    Draw,
    Granted,
    Keys,
    Listen,
    Now,
    Poll,
    Queued,
    RaiseEpoch,
    ReadKeys,
    ReadSource,
    Release,
    Released,
    Renew,
    Renewed,
    ReserveBlock,
    SourceFlow,
    Wait,
)
from tests.unit.hand import Hand, kinds

pytestmark = pytest.mark.reduced

TRIES = 3
"""How often a request is made whose reply is lost each time, as docs/reference/errors.md promises."""

TTL_MS = 10_000
MARGIN_MS = 1_000
GRANTED = Granted(7, TTL_MS, "source", "history")
DRIVER_REQUESTS = Draw | Now | Listen | Wait


def attempt() -> Attempt:
    return Attempt("the-lock", "me", TTL_MS)


def begun(*, may_wait: bool = True, timeout_ms: int | None = None) -> Hand:
    """Return an acquire whose first claim, `c1`, was drawn at 1000 ms: it now requests the lock."""
    hand = Hand(acquire(attempt(), may_wait=may_wait, timeout_ms=timeout_ms))
    assert hand.request == Draw()
    hand.reply(("c1", 1_000_900))
    return hand


# --- how long a lease may be relied on ------------------------------------------------------------
@pytest.mark.parametrize(
    ("ttl_ms", "margin"),
    [(100, 25), (200, 50), (400, 50), (500, 50), (510, 51), (10_000, 1_000), (86_400_000, 8_640_000)],
)
def test_the_margin_is_a_tenth_at_least_50_ms_and_at_most_a_quarter(ttl_ms: int, margin: int) -> None:
    assert margin_ms(ttl_ms) == margin


@given(st.integers(100, 86_400_000), st.integers(-(10**9), 10**9), st.integers(0, 10**12))
def test_a_deadline_never_exceeds_the_ttl_less_the_margin(ttl_ms: int, remaining_ms: int, sent_ms: int) -> None:
    until_ms = deadline_ms(sent_ms, remaining_ms, ttl_ms)
    assert until_ms <= sent_ms + ttl_ms - margin_ms(ttl_ms)
    assert until_ms <= sent_ms + remaining_ms - margin_ms(ttl_ms)


# --- acquire --------------------------------------------------------------------------------------
def test_a_free_lock_costs_one_round_trip() -> None:
    hand = begun()
    assert hand.request == Acquire("the-lock", "c1", "me", TTL_MS, 1_000_900, may_wait=True)
    hand.reply(GRANTED, 1_003)
    assert kinds(hand.asked) == ["Draw", "Acquire", "Now"]
    assert hand.result == Grant(7, 1_000 + TTL_MS - MARGIN_MS, "source", "history", waited_ms=None)


def test_the_deadline_counts_from_the_sending_and_from_the_time_left() -> None:
    hand = begun()
    hand.reply(GRANTED._replace(remaining_ms=4_000), 1_003)
    assert hand.result.deadline_ms == 1_000 + 4_000 - MARGIN_MS


def test_a_time_left_greater_than_the_ttl_counts_as_the_ttl() -> None:
    hand = begun()
    hand.reply(GRANTED._replace(remaining_ms=10**9), 1_003)
    assert hand.result.deadline_ms == 1_000 + TTL_MS - MARGIN_MS


def test_a_lock_that_is_not_to_be_had_at_once_is_none() -> None:
    hand = begun(may_wait=False, timeout_ms=0)
    assert hand.request.may_wait is False
    hand.reply(Busy())
    assert hand.is_done
    assert hand.result is None


def test_a_free_lock_is_not_called_busy_because_a_claim_was_refused() -> None:
    """The source cannot always tell a fresh claim from a late one: the flow draws another, even after its timeout."""
    hand = begun(may_wait=False, timeout_ms=0)
    hand.reply(ClaimEnded(), ("c2", 1_001_000))
    assert hand.request == Acquire("the-lock", "c2", "me", TTL_MS, 1_001_000, may_wait=False)
    hand.reply(GRANTED, 1_003)
    assert hand.result.token == GRANTED.token


def test_an_acquire_whose_claims_are_refused_again_and_again_gives_up_after_its_timeout() -> None:
    hand = begun(may_wait=False, timeout_ms=0)
    for number in range(2, MIN_CLAIMS + 2):
        assert not hand.is_done
        hand.reply(ClaimEnded(), (f"c{number}", 1_001_000))
    assert hand.is_done
    assert hand.result is None


def test_a_claim_that_is_refused_after_a_lost_reply_is_ended() -> None:
    """H5: the request whose reply was lost may be under way still, and its grant would reach nobody."""
    hand = begun(may_wait=False, timeout_ms=0)
    first = hand.request
    assert hand.throw(OutcomeUnknownError("the reply never came")) == first
    assert hand.reply(Busy()) == Release("the-lock", "c1")
    assert hand.throw(OutcomeUnknownError("the reply never came")) == Release("the-lock", "c1")
    hand.reply(Released(was_held=False))
    assert hand.is_done
    assert hand.result is None


def test_a_claim_that_is_refused_at_once_costs_one_round_trip() -> None:
    hand = begun(may_wait=False, timeout_ms=0)
    hand.reply(BlockSpent(), None, Busy())
    assert hand.is_done
    assert hand.result is None


def test_a_spent_block_is_reserved_and_the_same_claim_asks_again() -> None:
    hand = begun()
    first = hand.request
    assert hand.reply(BlockSpent()) == ReserveBlock()
    assert hand.reply(None) == first
    assert hand.reply(BlockSpent(), None) == first
    hand.reply(GRANTED, 1_003)
    assert hand.result.token == 7


def test_a_waiter_listens_before_it_looks_again() -> None:
    hand = begun()
    assert hand.reply(Queued(400)) == Listen("the-lock", "c1")
    assert hand.reply(None) == Now()
    assert hand.reply(1_010) == Poll("the-lock", "c1", keeps_place=False)
    assert hand.reply(Queued(300), 1_011) == Wait(300)


def test_a_waiter_polls_until_it_is_granted_and_counts_from_that_poll() -> None:
    hand = begun()
    hand.reply(Queued(400), None, 1_010, Queued(300), 1_011, None)
    assert hand.request == Now()
    assert hand.reply(5_000) == Poll("the-lock", "c1")
    hand.reply(GRANTED, 5_002)
    assert hand.result == Grant(7, 5_000 + TTL_MS - MARGIN_MS, "source", "history", waited_ms=4_002)


def test_a_waiter_has_its_place_kept_three_times_in_its_ttl_however_often_it_polls() -> None:
    hand = begun()
    hand.reply(Queued(400), None)
    kept_ms, last_ms = [1_000], 1_000
    for now_ms in range(1_000, 1_000 + 2 * TTL_MS, 100):
        poll = hand.reply(now_ms)
        assert poll == Poll("the-lock", "c1", keeps_place=now_ms >= kept_ms[-1] + TTL_MS // 3)
        if poll.keeps_place:
            kept_ms.append(now_ms)
        hand.reply(Queued(100), now_ms, None)
        last_ms = now_ms
    assert len(kept_ms) - 1 == 2 * 3 - 1
    assert last_ms - kept_ms[-1] < TTL_MS // 3


def test_a_waiter_sleeps_no_longer_than_until_its_place_has_to_be_kept() -> None:
    hand = begun()
    hand.reply(Queued(400), None, 1_010)
    assert hand.reply(Queued(TTL_MS), 1_011) == Wait(TTL_MS // 3 - 11)
    hand.reply(None)
    assert hand.reply(1_000 + TTL_MS // 3) == Poll("the-lock", "c1", keeps_place=True)
    assert hand.reply(Queued(TTL_MS), 1_000 + TTL_MS // 3 + 5) == Wait(TTL_MS // 3 - 5)


def test_a_poll_that_keeps_no_place_does_not_prolong_the_wait_for_a_source_that_is_gone() -> None:
    """H8: the place lasts for a ttl from what kept it last."""
    hand = begun()
    hand.reply(Queued(400), None, 4_000, Queued(400), 4_000, None)
    assert hand.reply(1_000 + TTL_MS - 1) == Poll("the-lock", "c1", keeps_place=True)
    assert hand.throw(SourceUnavailableError("gone")) == NOW
    with pytest.raises(SourceUnavailableError):
        hand.reply(1_000 + TTL_MS)


def test_a_waiter_reserves_a_block_too() -> None:
    hand = begun()
    hand.reply(Queued(400), None, 1_010)
    assert hand.reply(BlockSpent()) == ReserveBlock()
    assert hand.reply(None) == Poll("the-lock", "c1", keeps_place=False)


def test_a_waiter_never_sleeps_beyond_its_timeout() -> None:
    hand = begun(timeout_ms=100)
    hand.reply(Queued(400), None, 1_010)
    assert hand.reply(Queued(400), 1_030) == Wait(70)


def test_a_timeout_gives_up_the_place_in_the_queue() -> None:
    hand = begun(timeout_ms=100)
    hand.reply(Queued(400), None, 1_010, Queued(400), 1_030, None, 1_100, Queued(400))
    assert hand.reply(1_100) == Release("the-lock", "c1")
    hand.reply(Released(was_held=False))
    assert hand.is_done
    assert hand.result is None


def test_a_timeout_of_zero_looks_once_and_leaves() -> None:
    hand = begun(timeout_ms=0)
    assert hand.reply(Queued(400), None, 1_001, Queued(400), 1_001) == Release("the-lock", "c1")


def test_a_place_that_ended_is_taken_anew_under_another_claim() -> None:
    hand = begun()
    hand.reply(Queued(400), None, 1_010, ClaimEnded())
    assert hand.request == Draw()
    assert hand.reply(("c2", 9_000_000)) == Acquire("the-lock", "c2", "me", TTL_MS, 9_000_000, may_wait=True)
    hand.reply(Queued(400), None, 9_001, GRANTED, 9_002)
    # The wait counts from the beginning, the lease from the poll that brought it.
    assert hand.result == Grant(7, 9_001 + TTL_MS - MARGIN_MS, "source", "history", waited_ms=8_002)


def test_a_claim_that_ended_at_the_timeout_is_not_drawn_anew() -> None:
    the_attempt = attempt()
    hand = Hand(acquire(the_attempt, may_wait=True, timeout_ms=100))
    for number in range(1, MIN_CLAIMS + 1):
        hand.reply((f"c{number}", 1_000_000), ClaimEnded())
    hand.reply(("one more", 1_100_000))
    assert hand.is_done
    assert hand.result is None
    assert the_attempt.claim == f"c{MIN_CLAIMS}"


@pytest.mark.parametrize("passed_ms", [0, 99])
def test_a_claim_that_ended_before_the_timeout_is_drawn_anew(passed_ms: int) -> None:
    hand = begun(timeout_ms=100)
    born_us = 1_000_000 + 1000 * passed_ms
    assert hand.reply(ClaimEnded(), ("c2", born_us)) == Acquire("the-lock", "c2", "me", TTL_MS, born_us, may_wait=True)


@pytest.mark.parametrize("late_ms", [0, 1, 60_000])
def test_a_grant_that_arrives_after_its_deadline_is_given_back(late_ms: int) -> None:
    hand = begun()
    assert hand.reply(GRANTED, 1_000 + TTL_MS - MARGIN_MS + late_ms) == Release("the-lock", "c1")
    assert hand.reply(Released(was_held=True)) == Draw()


def test_a_grant_that_arrives_just_before_its_deadline_is_used() -> None:
    hand = begun()
    hand.reply(GRANTED, 1_000 + TTL_MS - MARGIN_MS - 1)
    assert hand.result.token == 7


def test_a_source_that_ends_every_claim_is_given_up() -> None:
    hand = Hand(acquire(attempt(), may_wait=True, timeout_ms=None))
    for number in range(MAX_CLAIMS - 1):
        hand.reply((f"c{number}", 1_000_000), ClaimEnded())
    hand.reply(("last", 1_000_000))
    with pytest.raises(SourceError, match=rf"{MAX_CLAIMS} claims in a row.*10000 ms.*longer ttl"):
        hand.reply(ClaimEnded())


POLL = Poll("the-lock", "c1", keeps_place=False)
LONG_AFTER_MS = 10**9


# --- lost replies and errors ----------------------------------------------------------------------
PATHS: dict[str, tuple[Callable[[], SourceFlow[Any]], list[Any]]] = {
    "acquire at once": (
        lambda: acquire(attempt(), may_wait=True, timeout_ms=None),
        [("c1", 1_000_000), BlockSpent(), None, GRANTED, 1_001],
    ),
    "acquire by waiting": (
        lambda: acquire(attempt(), may_wait=True, timeout_ms=60_000),
        [("c1", 1_000_000), Queued(9), None, 1_001, Queued(9), 1_002, None, 1_003, BlockSpent(), None, GRANTED, 1_004],
    ),
    "acquire anew": (
        lambda: acquire(attempt(), may_wait=True, timeout_ms=None),
        [
            *(("c1", 1_000_000), ClaimEnded()),
            *(("c2", 2_000_000), GRANTED, 99_000, Released(was_held=True)),
            *(("c3", 99_100_000), GRANTED, 99_101),
        ],
    ),
    "give up": (
        lambda: acquire(attempt(), may_wait=True, timeout_ms=5),
        [("c1", 1_000_000), Queued(9), None, 1_001, Queued(9), 1_005, Released(was_held=False)],
    ),
    "release": (lambda: renewal.release("the-lock", "c1"), [Released(was_held=True)]),
    "break": (
        lambda: renewal.break_lock("the-lock", "c1", "me", "stuck"),
        [BlockSpent(), None, Broken(8, "source", "history", "you")],
    ),
}


def each_request() -> list[Any]:
    """Return (path, index, request) for every request on every path."""
    found = []
    for path, (make, replies) in PATHS.items():
        hand = Hand(make())
        hand.reply(*replies)
        assert hand.is_done, f"the replies for {path!r} do not lead to its end"
        found += [pytest.param(path, index, id=f"{path}-{index}") for index in range(len(replies))]
    return found


def long_after(hand: Hand, error: BaseException) -> None:
    """Throw an error in; tell a waiter that polls again that its queue entry is gone."""
    is_in_line = POLL in hand.asked and isinstance(hand.request, (Poll, ReserveBlock))
    if hand.throw(error) == NOW and is_in_line:
        hand.reply(LONG_AFTER_MS)


def at(path: str, index: int) -> Hand:
    """Return the flow at its request number `index`."""
    make, replies = PATHS[path]
    hand = Hand(make())
    hand.reply(*replies[:index])
    return hand


@pytest.mark.parametrize("error", [SourceUnavailableError("busy"), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize(("path", "index"), each_request())
def test_an_error_anywhere_passes_unchanged_and_nothing_more_is_asked(
    path: str, index: int, error: BaseException
) -> None:
    hand = at(path, index)
    with pytest.raises(type(error)) as raised:
        long_after(hand, error) if isinstance(error, SourceUnavailableError) else hand.throw(error)
    assert raised.value is error


@pytest.mark.parametrize(("path", "index"), each_request())
def test_a_flow_can_be_dropped_anywhere(path: str, index: int) -> None:
    make, replies = PATHS[path]
    flow = make()
    next(flow)
    for reply in replies[:index]:
        flow.send(reply)
    flow.close()


@pytest.mark.parametrize(("path", "index"), each_request())
def test_a_lost_reply_is_asked_for_again_by_the_same_request(path: str, index: int) -> None:
    hand = at(path, index)
    request = hand.request
    lost = OutcomeUnknownError("the reply never came")
    if isinstance(request, DRIVER_REQUESTS):
        with pytest.raises(OutcomeUnknownError):
            hand.throw(lost)
        return
    for _ in range(TRIES - 1):
        assert hand.throw(lost) == request
    hand.reply(*PATHS[path][1][index:])
    assert hand.is_done


@pytest.mark.parametrize(("path", "index"), each_request())
def test_a_reply_that_is_lost_too_often_is_told(path: str, index: int) -> None:
    hand = at(path, index)
    lost = OutcomeUnknownError("the reply never came")
    tries = 1 if isinstance(hand.request, DRIVER_REQUESTS) else TRIES
    for _ in range(tries - 1):
        hand.throw(lost)
    with pytest.raises(OutcomeUnknownError):
        long_after(hand, lost)


@pytest.mark.parametrize(("path", "index"), each_request())
def test_an_error_after_a_lost_reply_is_definite_only_if_the_request_changes_nothing(path: str, index: int) -> None:
    """The source is away when it is asked again: nobody knows what the first try has done."""
    hand = at(path, index)
    request = hand.request
    if isinstance(request, DRIVER_REQUESTS | RaiseEpoch | Renew):
        return  # These are never repeated.
    hand.throw(OutcomeUnknownError("the reply never came"))
    is_harmless = isinstance(request, ReadSource | ReserveBlock)
    away = SourceUnavailableError("the source is away")
    with pytest.raises(SourceUnavailableError if is_harmless else OutcomeUnknownError, match="is away") as caught:
        long_after(hand, away)
    assert caught.value.definite is is_harmless
    if not is_harmless:
        assert "the reply never came" in str(caught.value)
        assert caught.value.__cause__ is away


KEPT_MS = 4_500


def in_line(timeout_ms: int | None = None) -> Hand:
    """Return the flow of a waiter whose queue entry a request kept at KEPT_MS, and which polls again at 5 s."""
    hand = Hand(acquire(attempt(), may_wait=True, timeout_ms=timeout_ms))
    assert hand.reply(("c1", 1_000_000), Queued(9), None, KEPT_MS) == POLL._replace(keeps_place=True)
    assert hand.reply(Queued(9), KEPT_MS + 1, None, 5_000) == POLL
    return hand


@pytest.mark.parametrize("lost", [SourceUnavailableError("it restarts"), OutcomeUnknownError("it died")])
def test_h7_a_waiter_outlives_an_outage_in_which_its_place_is_kept(lost: Exception) -> None:
    hand = in_line()
    for now_ms in (5_000, 8_000, KEPT_MS + TTL_MS - 1):
        for _ in range(1 if isinstance(lost, SourceUnavailableError) else TRIES):
            request = hand.throw(lost)
        assert request == NOW
        assert hand.reply(now_ms) == Wait(min(RETRY_MS, KEPT_MS + TTL_MS - now_ms))
        assert hand.reply(None, now_ms) == POLL._replace(keeps_place=now_ms >= KEPT_MS + TTL_MS // 3)
    hand.reply(GRANTED, now_ms)
    assert hand.result.token == 7


@pytest.mark.parametrize(("timeout_ms", "until_ms"), [(None, KEPT_MS + TTL_MS), (6_000, 7_000)])
def test_a_waiter_is_told_of_an_outage_once_its_place_or_its_time_is_over(
    timeout_ms: int | None, until_ms: int
) -> None:
    hand = in_line(timeout_ms)
    hand.throw(SourceUnavailableError("it restarts"))
    assert hand.reply(until_ms - 1) == Wait(1)
    hand.reply(None, until_ms)
    hand.throw(SourceUnavailableError("it is away"))
    with pytest.raises(SourceUnavailableError, match="it is away"):
        hand.reply(until_ms)


def test_a_reserved_block_gives_its_request_as_many_tries_anew() -> None:
    hand = begun()
    request, lost = hand.request, OutcomeUnknownError("the reply never came")
    for _ in range(TRIES - 1):
        assert hand.throw(lost) == request
    assert hand.reply(BlockSpent(), None) == request
    for _ in range(TRIES - 1):
        assert hand.throw(lost) == request
    with pytest.raises(OutcomeUnknownError):
        hand.throw(lost)


def test_the_claim_to_abandon_is_the_one_that_may_stand_at_the_source() -> None:
    """H5: wherever an acquire ends, its attempt names the last claim that the source was asked about."""
    make_attempt = attempt()
    hand = Hand(acquire(make_attempt, may_wait=True, timeout_ms=None))
    assert make_attempt.claim is None
    for reply in PATHS["acquire anew"][1]:
        hand.reply(reply)
        asked = [request.claim for request in hand.asked if isinstance(request, Acquire)]
        assert make_attempt.claim == (asked[-1] if asked else None)


SOME_REPLIES = st.one_of(
    st.just(Busy()),
    st.just(ClaimEnded()),
    st.just(BlockSpent()),
    st.builds(Queued, st.integers(1, 1000)),
    st.builds(Granted, st.integers(1, 99), st.integers(1, 2 * TTL_MS), st.just("source"), st.just("history")),
    st.just(OutcomeUnknownError("lost")),
    st.just(SourceUnavailableError("busy")),
)


@given(st.lists(st.tuples(SOME_REPLIES, st.integers(0, 6_000)), max_size=60), st.booleans(), st.integers(0, 20_000))
@example([(OutcomeUnknownError("lost"), 0), (Busy(), 0)], False, 0)
def test_whatever_a_source_replies_every_claim_but_the_last_is_over(
    replies: list[tuple[Any, int]], may_wait: bool, timeout_ms: int
) -> None:
    """The flow draws a new claim only when the source has ended the last one; a grant has time left; an acquire
    without a grant leaves nothing behind.
    """
    source = Whimsical(replies)
    the_attempt = attempt()
    flow = acquire(the_attempt, may_wait=may_wait, timeout_ms=timeout_ms if may_wait else 0)
    result = source.drive(flow)
    assert source.claims == sorted(source.claims)
    if source.claims:
        assert the_attempt.claim == source.claims[-1]
        assert set(source.claims[:-1]) <= source.over
    if result is None:
        assert set(source.claims) <= source.over
    if isinstance(result, Grant):
        assert the_attempt.claim not in source.over
        assert source.now_ms < result.deadline_ms <= source.now_ms + TTL_MS - MARGIN_MS


class Whimsical:
    """A source and a clock that follow any script, however odd; at its end the source is unavailable."""

    def __init__(self, replies: list[tuple[Any, int]]) -> None:
        self._replies = iter(replies)
        self.now_ms = 0
        self.claims: list[str] = []
        self.over: set[str] = set()
        self._lost: set[str] = set()
        self._drawn = 0

    def drive(self, flow: SourceFlow[Any]) -> Any:
        reply: Any = None
        try:
            while True:
                request = flow.throw(reply) if isinstance(reply, Exception) else flow.send(reply)
                reply = self._answer(request)
        except StopIteration as done:
            return done.value
        except SourceError as error:
            return error

    def _answer(self, request: Any) -> Any:
        match request:
            case Draw():
                self._drawn += 1
                return f"c{self._drawn:03}", self.now_ms * 1000
            case Now():
                return self.now_ms
            case Wait():
                assert request.timeout_ms > 0
                self.now_ms += request.timeout_ms
            case Release():
                self.over.add(request.claim)
                return Released(was_held=True)
            case Acquire() | Poll():
                return self._decide(request)
        return None

    def _decide(self, request: Any) -> Any:
        reply, passed_ms = next(self._replies, (SourceUnavailableError("the end"), 0))
        self.now_ms += passed_ms
        if isinstance(request, Acquire) and request.claim not in self.claims:
            self.claims.append(request.claim)
        assert request.claim == self.claims[-1]
        if isinstance(request, Poll) and isinstance(reply, Busy):
            reply = ClaimEnded()  # A poll is never told that the lock is busy.
        if isinstance(reply, OutcomeUnknownError):
            self._lost.add(request.claim)  # It may be under way still, whatever the source says to a second one.
        if isinstance(reply, ClaimEnded) or (isinstance(reply, Busy) and request.claim not in self._lost):
            self.over.add(request.claim)
        return reply


# --- keep, break, raise ---------------------------------------------------------------------------
def test_a_renewal_is_one_request_and_tells_when_it_was_sent() -> None:
    leases = (("a", "c1"), ("b", "c2"))
    hand = Hand(renewal.renew(leases))
    assert hand.reply(500) == Renew(leases)
    reply = Renewed({"c1": 9_000}, {"c2": "gone"})
    hand.reply(reply)
    assert hand.result == renewal.Beat(500, reply)


def test_a_renewal_whose_reply_is_lost_is_left_to_the_next_beat() -> None:
    hand = Hand(renewal.renew((("a", "c1"),)))
    hand.reply(500)
    with pytest.raises(OutcomeUnknownError):
        hand.throw(OutcomeUnknownError("lost"))


def test_breaking_a_lock_carries_who_and_why() -> None:
    hand = Hand(renewal.break_lock("the-lock", "c1", "me", "stuck"))
    assert hand.request == Break("the-lock", "c1", "me", "stuck")


def test_an_epoch_is_raised_on_the_history_that_was_read() -> None:
    info = SourceInfo("source", 1, "history-1", 5, 4096)
    after = SourceInfo("source", 2, "history-2", 2**40, 2**40)
    hand = Hand(renewal.raise_epoch("restored"))
    assert hand.request == ReadSource()
    assert hand.reply(info) == RaiseEpoch("history-1", "restored")
    hand.reply(after)
    assert hand.result == after


def test_an_epoch_that_somebody_else_raised_meanwhile_is_none() -> None:
    hand = Hand(renewal.raise_epoch("restored"))
    hand.reply(SourceInfo("source", 1, "history-1", 5, 4096), None)
    assert hand.is_done
    assert hand.result is None


def test_raising_an_epoch_is_never_repeated_on_an_unknown_outcome() -> None:
    """A second try would raise once more, or report that another process did."""
    hand = Hand(renewal.raise_epoch("restored"))
    hand.reply(SourceInfo("source", 1, "history-1", 5, 4096))
    with pytest.raises(OutcomeUnknownError):
        hand.throw(OutcomeUnknownError("lost"))


# --- keys -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("done", ["added", "retired"])
def test_a_key_that_was_changed_is_told_although_it_cannot_be_read_back(done: str) -> None:
    key = SigningKey("k1", b"a key")
    if done == "added":
        hand = Hand(signing.add_key(key, 60))
    else:
        hand = Hand(signing.retire_key("k1", is_forced=False))
        hand.reply(Keys((key,), ()))
    assert hand.reply(None) == ReadKeys()
    with pytest.raises(OutcomeUnknownError, match=f"key k1 was {done}") as caught:
        hand.throw(SourceUnavailableError("the source is away"))
    assert not caught.value.definite
