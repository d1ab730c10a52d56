"""Up to 10 000 waiters on one lock, tasks of one process: what a hand-off takes, and what each of them costs.

A hand-off is from the call of release to the next one's return. What the server is asked for it is counted where the
server tells at once. If the queue is not full in time, it is measured as long as it is.
"""

import asyncio
import multiprocessing
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import fenceline.aio
from benchmarks.child import Child, serve
from benchmarks.measure import MS_PER_S, Result, resident_bytes, summarise
from benchmarks.stores import Site

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

HAND_OFF, MEMORY, ASKED = "hand-off between tasks", "memory of a waiter", "requests for each hand-off"
COUNTS = (1, 100, 1_000, 10_000)
MANY = 1_000
"""So many must wait before the memory of one says something."""
TTL_S = 600.0
SETTLE_S = 0.5
_SLICE = 250
"""Waiters that come at once."""
_QUEUEING = 0.6
"""The share of the time that the queue may take to fill; the rest is for hand-offs."""
_SLACK_S = 60.0


def run(site: Site, seconds: float) -> list[Result]:
    """Measure queues of growing length; the longest has most of the time."""
    results: list[Result] = []
    for count in COUNTS:
        share = 0.7 if count == max(COUNTS) else 0.3 / (len(COUNTS) - 1)
        try:
            measured = _measure(site, count, seconds * share)
        except ChildProcessError as error:
            print(f"{count:,} waiters: {error}", file=sys.stderr)
            break
        results += measured
        if measured[0].variant != _name(count):
            break  # A longer queue takes longer to fill.
    return results


def _name(waiting: int) -> str:
    return f"{waiting:,} waiting"


def _measure(site: Site, count: int, seconds: float) -> list[Result]:
    with closing(Child(multiprocessing.get_context("spawn"), _wait, site.url, f"queue-{count}")) as child:
        waiting, bytes_each = child.ask("queue", count, seconds * _QUEUEING, patience_s=seconds + _SLACK_S)
        before = site.asked() if site.asked else 0
        gaps = child.ask("pass on", seconds * (1 - _QUEUEING), patience_s=seconds + _SLACK_S)
        asked = site.asked() - before if site.asked else 0
    name = _name(waiting)
    results = [summarise(HAND_OFF, name, "ms", gaps)]
    if site.asked:
        results.append(summarise(ASKED, name, "requests", [asked / len(gaps)]))
    if waiting >= MANY:
        results.append(summarise(MEMORY, name, "bytes", [bytes_each]))
    return results


class _Queue:
    """Tasks that wait for one lock, and pass it on as soon as they have it."""

    def __init__(self, url: str, name: str) -> None:
        self._source = fenceline.aio.connect(url)
        self._lock = self._source.lock(name, ttl=TTL_S)
        self._first: Any = None
        self._tasks: list[asyncio.Task[None]] = []
        self._moments: list[tuple[float, float]] = []
        self._may_pass_on = asyncio.Event()

    async def fill(self, count: int, seconds: float) -> tuple[int, float]:
        """Have so many wait, if there is time; return how many do, and the bytes that each takes."""
        until = time.monotonic() + seconds
        self._first = await self._lock.acquire()
        before = resident_bytes()
        while len(self._tasks) < count and (not self._tasks or time.monotonic() < until):
            wanted = min(len(self._tasks) + _SLICE, count)
            self._tasks += [asyncio.create_task(self._wait()) for _ in range(wanted - len(self._tasks))]
            while len((await self._source.info(self._lock.name)).waiters) < wanted:  # noqa: ASYNC110 - the source is asked
                await asyncio.sleep(0.02)
        taken = resident_bytes() - before
        await asyncio.sleep(SETTLE_S)
        return len(self._tasks), taken / len(self._tasks)

    async def _wait(self) -> None:
        lease = await self._lock.acquire()
        returned = time.perf_counter()
        assert lease is not None
        await self._may_pass_on.wait()
        released = time.perf_counter()
        self._moments.append((returned, released))
        await lease.release()

    async def pass_on(self, seconds: float) -> list[float]:
        """Let the lock go from hand to hand; return the milliseconds of each hand-off."""
        self._may_pass_on.set()
        released = time.perf_counter()
        await self._first.release()
        await asyncio.wait(self._tasks, timeout=max(seconds, SETTLE_S))
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
