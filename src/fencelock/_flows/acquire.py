"""Acquire a lock: one round trip if it is free, a first-in-first-out queue if it is not.

Promise: the grant that is returned belongs to the attempt's current claim and has time left. Every other claim of the
attempt has ended at the source. If the flow raises, its caller has the keeper abandon the current claim (H5).
Never: granted twice under one claim (H4), granted to a waiter whose place expired while it slept (H8).
"""

from functools import lru_cache
from typing import NamedTuple

from fencelock._flows.retry import ask_source
from fencelock.errors import OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.protocol.generators import ask
from fencelock.protocol.source_requests import (
    DRAW,
    NOT_SIGNED,
    NOW,
    Acquire,
    Busy,
    ClaimEnded,
    Granted,
    Listen,
    Poll,
    Queued,
    Release,
    Signature,
    SourceFlow,
    Wait,
)

US_PER_MS = 1000
MARGIN_MIN_MS = 50
MARGIN_TTL_FRACTION = 10
MARGIN_MAX_TTL_FRACTION = 4
MIN_CLAIMS = 3
"""Claims that one acquire may draw even if its timeout has passed. A source refuses a new claim that it cannot tell
from a late one, for example the first claim after a recovery. That must not make a free lock look busy."""
RETRY_MS = 500
"""The interval at which a waiter retries a source that is unavailable."""
KEEPS_PER_TTL = 3
"""How often a waiter has its place in the queue extended; the polls in between may be answered by reading."""
MAX_CLAIMS = 100
"""Claims that one acquire may draw before it gives up on a source that ends them all."""


class Grant(NamedTuple):
    """A lease as its holder knows it. `deadline_ms` is on the holder's clock, with the margin subtracted (H1)."""

    token: int
    deadline_ms: int
    source_id: str
    history_id: str
    waited_ms: int | None
    signature: Signature = NOT_SIGNED


class Attempt:
    """The part of an acquire that survives an interruption: the claim that the source may have. For one thread only."""

    __slots__ = ("claim", "holder", "lock", "ttl_ms")

    def __init__(self, lock: str, holder: str, ttl_ms: int) -> None:
        self.lock = lock
        self.holder = holder
        self.ttl_ms = ttl_ms
        self.claim: str | None = None


@lru_cache
def margin_ms(ttl_ms: int) -> int:
    """Return how long before its end a lease already counts as over: max(50 ms, ttl/10), at most ttl/4."""
    return min(max(MARGIN_MIN_MS, ttl_ms // MARGIN_TTL_FRACTION), ttl_ms // MARGIN_MAX_TTL_FRACTION)


def deadline_ms(sent_ms: int, remaining_ms: int, ttl_ms: int) -> int:
    """Return until when the holder may rely on a lease; `sent_ms` is when the confirmed request was *sent*."""
    return sent_ms + min(remaining_ms, ttl_ms) - margin_ms(ttl_ms)


def acquire(attempt: Attempt, *, may_wait: bool, timeout_ms: int | None) -> SourceFlow[Grant | None]:
    """Return the grant, or None if the lock was busy or the timeout passed. `timeout_ms` None: wait for ever."""
    started_ms: int | None = None
    for number in range(MAX_CLAIMS):
        claim, born_us = yield from ask(DRAW)
        born_ms = born_us // US_PER_MS
        if started_ms is None:
            started_ms = born_ms
        elif number >= MIN_CLAIMS and timeout_ms is not None and born_ms >= started_ms + timeout_ms:
            return None
        # From here on the source may have the claim, whatever happens to this flow.
        attempt.claim = claim
        request = Acquire(attempt.lock, claim, attempt.holder, attempt.ttl_ms, born_us, may_wait)
        outcome = yield from _try_one_claim(request, started_ms, timeout_ms)
        if isinstance(outcome, Grant):
            return outcome
        if isinstance(outcome, Busy):
            return None
    raise SourceError(
        f"lock {attempt.lock!r}: the source ended {MAX_CLAIMS} claims in a row, each before it could be used; "
        f"with a ttl of {attempt.ttl_ms} ms this process is too slow: ask for a longer ttl"
    )


def _try_one_claim(request: Acquire, started_ms: int, timeout_ms: int | None) -> SourceFlow[Grant | Busy | ClaimEnded]:
    sent_ms = request.born_us // US_PER_MS
    reply = yield from ask_source(request)
    if was_queued := isinstance(reply, Queued):
        # A release between queueing and listening would be missed: listen first, then poll.
        yield Listen(request.lock, request.claim)
        give_up_ms = None if timeout_ms is None else started_ms + timeout_ms
        sent_ms, reply = yield from _wait_in_queue(request, give_up_ms)
    if not isinstance(reply, Granted):
        return reply
    now_ms = yield from ask(NOW)
    until_ms = deadline_ms(sent_ms, reply.remaining_ms, request.ttl_ms)
    if now_ms >= until_ms:
        # The grant expired before it arrived here (a freeze between two lines): give it back, never use it.
        yield from ask_source(Release(request.lock, request.claim))
        return ClaimEnded()
    waited_ms = now_ms - started_ms if was_queued else None
    return Grant(reply.token, until_ms, reply.source_id, reply.history_id, waited_ms, reply.signature)


def _wait_in_queue(request: Acquire, give_up_ms: int | None) -> SourceFlow[tuple[int, Granted | Busy | ClaimEnded]]:
    """Poll and wait until the claim is granted or ended, the timeout passes, or the caller waits no longer.

    Return the time at which the last poll was sent, and its reply.
    """
    kept_ms = request.born_us // US_PER_MS
    while True:
        sent_ms = yield from ask(NOW)
        keeps_place = sent_ms >= kept_ms + request.ttl_ms // KEEPS_PER_TTL
        try:
            reply = yield from ask_source(Poll(request.lock, request.claim, keeps_place))
        except (SourceUnavailableError, OutcomeUnknownError) as error:
            give_up_ms = yield from _wait_for_source(error, kept_ms + request.ttl_ms, give_up_ms)
            continue
        # From when the poll was sent: the source counts the place's ttl from some later moment.
        kept_ms = sent_ms if keeps_place else kept_ms
        if not isinstance(reply, Queued):
            return sent_ms, reply
        now_ms = yield from ask(NOW)
        if give_up_ms is not None and now_ms >= give_up_ms:
            yield from ask_source(Release(request.lock, request.claim))
            return sent_ms, Busy()
        wait_ms = min(reply.wait_ms, max(1, kept_ms + request.ttl_ms // KEEPS_PER_TTL - now_ms))
        if (yield from ask(Wait(wait_ms if give_up_ms is None else min(wait_ms, give_up_ms - now_ms)))):
            give_up_ms = now_ms


def _wait_for_source(error: SourceError, kept_until_ms: int, give_up_ms: int | None) -> SourceFlow[int | None]:
    """Wait a little for a source that did not answer, and return the time at which the caller gives up.

    The source keeps the claim's place for its ttl: that long a restart or a failover may take. Then raise the error.
    """
    last_ms = kept_until_ms if give_up_ms is None else min(kept_until_ms, give_up_ms)
    now_ms = yield from ask(NOW)
    if now_ms >= last_ms:
        raise error
    if (yield from ask(Wait(min(RETRY_MS, last_ms - now_ms)))):
        return now_ms
    return give_up_ms
