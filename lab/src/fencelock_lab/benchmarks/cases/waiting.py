"""Up to 10 000 waiters on one lock, tasks of one process: the time of a hand-off, and the cost of each waiter.

A hand-off lasts from the call of release until the next acquire returns. The requests to the server are counted where
the server reports them at once. If the time ends before the queue is full, the result names the queue's length.
"""

import asyncio
import multiprocessing
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import fencelock.aio
from fencelock_lab.benchmarks.child import Child, serve
from fencelock_lab.benchmarks.measure import MS_PER_S, Measurement, amount, resident_bytes, summarise
from fencelock_lab.benchmarks.stores import Site

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

HAND_OFF, MEMORY, ASKED = "hand-off between tasks", "memory of a waiter", "requests for each hand-off"
COUNTS = (1, 100, 1_000, 10_000)
MANY = 1_000
"""So many must wait before the memory of one says something."""
TTL_S = 600.0
SETTLE_S, _SETTLING = 0.5, 0.1
LOOK_S = 0.05
ARRIVING_S = 20.0
"""How long those who come at once may take; a queue that grows no more is measured as long as it is."""
_SLICE = 250
"""Waiters that come at once."""
_QUEUEING = 0.7
"""The share of what time is left that a queue may take to fill."""
_PASSING_ON = 0.15
"""The share of all the time that each may then pass the lock on."""
GROWTH = 2
"""A queue not so many times as long as the one before says nothing new."""
_SLACK_S = 60.0


def run(site: Site, seconds: float) -> list[Measurement]:
    """Measure queues of growing length; the longest one gets the time that the others leave."""
    results: list[Measurement] = []
    until, waiting = time.monotonic() + seconds, 0
    for count in COUNTS:
        left, before = max(until - time.monotonic(), 0.0), waiting
        try:
            if left or not waiting:
                waiting, found = _measure(site, count, left * _QUEUEING, seconds * _PASSING_ON)
                results += found if waiting >= GROWTH * before else []
        except ChildProcessError as error:
            print(f"{count:,} waiters: {error}", file=sys.stderr)
            break
        if waiting < count:  # A longer queue takes longer to fill.
            print(f"{site.title}: time was over at {waiting:,} waiters of {count:,}", file=sys.stderr)
            break
    return results


def _measure(site: Site, count: int, queueing_s: float, passing_on_s: float) -> tuple[int, list[Measurement]]:
    with closing(Child(multiprocessing.get_context("spawn"), _wait, site.url, f"queue-{count}")) as child:
        waiting, bytes_each = child.ask("queue", count, queueing_s, request_timeout_s=queueing_s + _SLACK_S)
        before = site.asked() if site.asked else 0
        gaps = child.ask("pass on", passing_on_s, request_timeout_s=passing_on_s + _SLACK_S)
        asked = site.asked() - before if site.asked else 0
    name = amount(waiting, count, "waiting")
    results = [summarise(HAND_OFF, name, "ms", gaps)]
    if site.asked:
        results.append(summarise(ASKED, name, "requests", [asked / len(gaps)]))
    if waiting >= MANY:
        results.append(summarise(MEMORY, name, "bytes", [bytes_each]))
    return waiting, results


class _Queue:
    """Tasks that wait for one lock, and pass it on as soon as they have it."""

    def __init__(self, url: str, name: str) -> None:
        self._lock = fencelock.aio.connect(url).lock(name, ttl=TTL_S)
        # The counting of waiters has connections of its own, and blocks no waiter.
        self._looker = fencelock.aio.connect(url)
        self._first: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._moments: list[tuple[float, float]] = []
        self._may_pass_on = asyncio.Event()

    async def fill(self, count: int, seconds: float) -> tuple[int, float]:
        """Start this many waiters if time allows; return their number, and the bytes for each."""
        began = time.monotonic()
        self._first = await self._lock.acquire()
        before = resident_bytes()
        waiting = 0
        while waiting == len(self._tasks) < count and (not waiting or time.monotonic() < began + seconds):
            wanted = min(waiting + _SLICE, count)
            self._tasks += [asyncio.create_task(self._wait()) for _ in range(wanted - waiting)]
            waiting = await self._arrived(wanted)
        taken = resident_bytes() - before
        # The last waiters learn their places in the queue after a few moments, more of them on a slow machine.
        await asyncio.sleep(SETTLE_S + (time.monotonic() - began) * _SETTLING)
        return waiting, taken / waiting

    async def _arrived(self, wanted: int) -> int:
        """Wait until the source knows this many waiters, for ARRIVING_S at most; return how many it knows."""
        until = time.monotonic() + ARRIVING_S
        while (waiting := len((await self._looker.info(self._lock.name)).waiters)) < wanted:
            if time.monotonic() > until:
                break
            await asyncio.sleep(LOOK_S)
        return waiting

    async def _wait(self) -> None:
        lease = await self._lock.acquire()
        returned = time.perf_counter()
        assert lease is not None
        await self._may_pass_on.wait()
        released = time.perf_counter()
        self._moments.append((returned, released))
        await lease.release()

    async def pass_on(self, seconds: float) -> list[float]:
        """Pass the lock from waiter to waiter; return the milliseconds of each hand-off."""
        self._may_pass_on.set()
        released = time.perf_counter()
        await self._first.release()
        await asyncio.wait(self._tasks, timeout=max(seconds, SETTLE_S))
        while not self._moments:  # noqa: ASYNC110 - one at least, however slow the store is
            await asyncio.sleep(LOOK_S)
        gaps = []
        for returned, next_released in self._moments:
            gaps.append((returned - released) * MS_PER_S)
            released = next_released
        return gaps


def _wait(url: str, name: str, line: "Connection[Any, Any]") -> None:
    with asyncio.Runner() as runner:
        queue = runner.run(_made(url, name))

        def answer(what: str, *how: Any) -> Any:
            return runner.run(queue.fill(*how) if what == "queue" else queue.pass_on(*how))

        serve(line, answer)


async def _made(url: str, name: str) -> _Queue:
    return _Queue(url, name)
