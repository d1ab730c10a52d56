"""A program that uses locks while starts of its threads fail: `python -m tests.process.thread_starts API URL TTL [N]`.

It holds a lock, hands another one over to a waiter, and has the first one broken. Its own threads fail to start: the
N-th start, or, without N, the first start of each kind of thread. It repeats what an error said was not done, or not
known to be done, as callers do. It writes one line of JSON: the names of the threads that did not start. An exit code
other than 0, or none in time, means that it did not recover, or was not told the truth.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import fencelock
import fencelock.aio
from fencelock.errors import OutcomeUnknownError, SourceUnavailableError
from fencelock.testing.conformance.faults import StartFaults, failing_starts
from tests.support.helpers import wait_until, wait_until_async

TRY_S = 8.0
"""How long one acquire may take while a thread does not start: longer than a request's timeout."""
TIMELY_S = 10.0
"""How long the callback of a loss may take: a beat, and H3's second, on a loaded machine."""
PROMPT_S = 5.0
"""How long a hand-over may take once every thread could be started; the pauses between polls are longer, see below."""
LONG_TTL_S = 60.0
REPEATED = (SourceUnavailableError, OutcomeUnknownError)
RETRIES = 40


def without_frequent_polls() -> None:
    """Make waiters of these stores poll so seldom that only a notification can hand a lock over in time."""
    with suppress(ImportError):
        from fencelock.stores.postgres.source import codec

        codec.HEAD_WAIT_MS = 20_000


def timely(began_s: float, limit_s: float, what: str) -> None:
    """Raise unless the time since `began_s` is within the limit."""
    took_s = time.monotonic() - began_s
    assert took_s < limit_s, f"{what} took {took_s:.1f} s"


def repeat(what: str, work: Callable[[], Any]) -> Any:
    """Do the work until it raises none of the documented errors, each time within TRY_S."""
    for _ in range(RETRIES):
        began_s = time.monotonic()
        with suppress(*REPEATED):
            result = work()
            timely(began_s, TRY_S, what)
            return result
        timely(began_s, TRY_S, f"{what}, which failed,")
    raise AssertionError(f"{what} failed {RETRIES} times")


async def repeat_async(what: str, work: Callable[[], Awaitable[Any]]) -> Any:
    """Do the same on the loop."""
    for _ in range(RETRIES):
        began_s = time.monotonic()
        with suppress(*REPEATED):
            async with asyncio.timeout(TRY_S):
                return await work()
        timely(began_s, TRY_S, f"{what}, which failed,")
    raise AssertionError(f"{what} failed {RETRIES} times")


# --- in threads -------------------------------------------------------------------------------------------------------
def use_locks(url: str, ttl: float, start: Callable[[threading.Thread], None]) -> None:
    """Hold, hand over, lose."""
    told: list[str] = []
    with fencelock.connect(url) as source:
        held = source.lock("held", ttl=ttl, on_lost=told.append)
        lease = repeat("acquire", lambda: held.acquire(timeout=TRY_S / 2))
        granted_ms = lease.deadline_ms
        wait_until(lambda: lease.deadline_ms > granted_ms)
        hand_over(source, ttl, TRY_S, start)
        without_frequent_polls()
        hand_over(source, LONG_TTL_S if ttl != LONG_TTL_S else ttl, PROMPT_S, start)
        assert lease.is_valid, "a lease was lost though its source answered"
        repeat("break", lambda: source.break_lock("held", reason="a test"))
        wait_until(lambda: told, TIMELY_S)
        assert lease.lost.wait(TIMELY_S)
        assert not lease.is_valid


def hand_over(source: fencelock.Source, ttl: float, limit_s: float, start: Callable[[threading.Thread], None]) -> None:
    """Release a lock that a thread waits for."""
    lock, got = source.lock("handed", ttl=ttl), []
    holder = repeat("acquire", lambda: lock.acquire(timeout=TRY_S / 2))
    waiter = threading.Thread(target=lambda: got.append(repeat("wait", lambda: lock.acquire(timeout=TRY_S * 3 / 4))))
    start(waiter)
    wait_until(lambda: repeat("look", lambda: source.info("handed")).waiters)
    time.sleep(SETTLE_S)
    began_s = time.monotonic()
    holder.release()
    waiter.join(TRY_S)
    timely(began_s, limit_s, "a hand-over")
    got[0].release()


# --- on a loop --------------------------------------------------------------------------------------------------------
async def use_locks_async(url: str, ttl: float) -> None:
    """Hold, hand over, lose."""
    told: list[str] = []
    async with fencelock.aio.connect(url) as source:
        held = source.lock("held", ttl=ttl, on_lost=told.append)
        lease = await repeat_async("acquire", lambda: held.acquire(timeout=TRY_S / 2))
        granted_ms = lease.deadline_ms
        await wait_until_async(lambda: lease.deadline_ms > granted_ms)
        await hand_over_async(source, ttl, TRY_S)
        without_frequent_polls()
        await hand_over_async(source, LONG_TTL_S, PROMPT_S)
        assert lease.is_valid, "a lease was lost though its source answered"
        await repeat_async("break", lambda: source.break_lock("held", reason="a test"))
        await wait_until_async(lambda: told, TIMELY_S)
        assert await lease.lost.wait(TIMELY_S)
        assert not lease.is_valid


async def hand_over_async(source: fencelock.aio.AsyncSource, ttl: float, limit_s: float) -> None:
    """Release a lock that a task waits for."""
    lock = source.lock("handed", ttl=ttl)
    holder = await repeat_async("acquire", lambda: lock.acquire(timeout=TRY_S / 2))
    waiter = asyncio.ensure_future(repeat_async("wait", lambda: lock.acquire(timeout=TRY_S * 3 / 4)))
    while not (await repeat_async("look", lambda: source.info("handed"))).waiters:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0.01)
    await asyncio.sleep(SETTLE_S)
    began_s = time.monotonic()
    await holder.release()
    got = await waiter
    timely(began_s, limit_s, "a hand-over")
    await got.release()


SETTLE_S = 0.1
"""A waiter looks once more when it has begun to listen; after this it sleeps."""


def main(api: str, url: str, ttl: float, number: int | None) -> StartFaults:
    """Use locks while threads do not start."""
    start = threading.Thread.start
    with failing_starts(number) as faults:
        if api == "sync":
            use_locks(url, ttl, start)
        else:
            asyncio.run(use_locks_async(url, ttl))
    return faults


if __name__ == "__main__":
    words = sys.argv[1:]
    print(json.dumps(main(words[0], words[1], float(words[2]), int(words[3]) if words[3:] else None).failed))
