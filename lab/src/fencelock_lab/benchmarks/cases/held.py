"""Up to 100 000 leases in one process: the memory of each, the share of a core that renewals take in the process and
in the server, and the time of an acquire beside them.

If the time ends before all are acquired, the result is for those that were, and says how many.
"""

import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any

import fencelock
from fencelock_lab.benchmarks.child import Child, serve
from fencelock_lab.benchmarks.measure import US_PER_S, Measurement, amount, resident_bytes, seconds_each, summarise
from fencelock_lab.benchmarks.stores import Site
from fencelock_lab.servers.processes import cpu_s

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from fencelock_lab.servers.server import Server

RENEWAL, SERVING, MEMORY, BESIDE = (
    "renewal",
    "renewal, in the server",
    "memory of a held lease",
    "a cycle beside leases",
)
COUNTS = (1, 1_000, 10_000, 100_000)
TTL_S = 10.0
BEAT_S = TTL_S / 3
BEATS = 2
"""How many beats are measured at each size."""
BATCH, TURNS = 50, 5
AIMS = {RENEWAL: 3.0, MEMORY: 2048.0}
AIMED = 10_000
"""The number of leases that the aims are about."""
LEAST_S = 0.2
TAKERS = 8
"""Threads that take leases: a server flushes for several at once. A file has one writer, and so one thread."""
GROWTH = 2
"""Fewer leases than so many times those that were measured before say nothing new."""
_SLACK_S = 60.0


def run(site: Site, seconds: float) -> list[Measurement]:
    """Acquire more and more leases, and measure at each size; begin the next size only if time is left."""
    results: list[Measurement] = []
    until = time.monotonic() + seconds
    held, takers = 0, 1 if site.server is None else TAKERS
    with closing(Child(multiprocessing.get_context("spawn"), _hold, site.url, takers)) as child:
        for count in COUNTS:
            left, before = max(until - time.monotonic() - BEATS * BEAT_S, 0.0), held
            try:
                if left or not held:
                    held, bytes_each = child.ask("take", count, left, request_timeout_s=left + _SLACK_S)
                    if held >= GROWTH * before:
                        results += _measure(site, child, held, count, until, bytes_each)
            except ChildProcessError as error:
                print(f"{count:,} leases: {error}", file=sys.stderr)
                break
            if held < count:
                print(f"{site.title}: time was over at {held:,} leases of {count:,}", file=sys.stderr)
                break
    return results


def _measure(site: Site, child: Child, held: int, wanted: int, until: float, bytes_each: float) -> list[Measurement]:
    name = amount(held, wanted, "lease" if held == 1 else "leases")
    served = _cpu_s(site.server)
    seconds = max(min(BEATS * BEAT_S, until - time.monotonic()), LEAST_S)
    share = child.ask("keep", seconds, request_timeout_s=seconds + _SLACK_S)
    is_aimed = held == AIMED
    results = [summarise(RENEWAL, name, "% of a core", [share * 100], aim=AIMS[RENEWAL] if is_aimed else None)]
    if site.server is not None:
        results.append(summarise(SERVING, name, "% of a core", [(_cpu_s(site.server) - served) / seconds * 100]))
    if held >= COUNTS[1]:
        results.append(summarise(MEMORY, name, "bytes", [bytes_each], aim=AIMS[MEMORY] if is_aimed else None))
    return [*results, summarise(BESIDE, name, "us", child.ask("cycles", TURNS, request_timeout_s=_SLACK_S))]


def _cpu_s(server: "Server | None") -> float:
    """Return the processor time that the processes of a server have used."""
    return sum(map(cpu_s, server.processes())) if server else 0.0


class Holder:
    """Holds leases of one source."""

    def __init__(self, url: str, takers: int) -> None:
        self._source = fencelock.connect(url)
        self.leases: list[Any] = []
        self._other = self._source.lock("beside", ttl=TTL_S)
        self._takers = ThreadPoolExecutor(takers)
        self._threads = range(takers)
        self.cycles(1)
        # Each thread connects now: its connection is no part of what a lease takes.
        list(self._takers.map(self._warm_up, self._threads))
        self._before = resident_bytes()

    def _warm_up(self, thread: int) -> None:
        for turn in range(BATCH):
            with self._source.lock(f"warm-up-{thread}-{turn}", ttl=TTL_S):
                pass

    def take(self, count: int, seconds: float) -> tuple[int, float]:
        """Hold this many leases if time allows; return their number, and the bytes for each."""
        until = time.monotonic() + seconds
        # All threads take the next number from it: the iterator of a range is one of those that allow that.
        numbers = iter(range(len(self.leases), count))
        list(self._takers.map(lambda _: self._take_some(numbers, until), self._threads))
        return len(self.leases), (resident_bytes() - self._before) / len(self.leases)

    def _take_some(self, numbers: Iterator[int], until: float) -> None:
        for number in numbers:
            self.leases.append(self._source.lock(f"held-{number}", ttl=TTL_S).acquire())
            if time.monotonic() > until:
                return

    def keep(self, seconds: float) -> float:
        """Only renew for some time; return the share of a core that this took."""
        began_s, cpu_s = time.monotonic(), time.process_time()
        time.sleep(seconds)
        share = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
        assert all(lease.is_valid for lease in self.leases), "a lease was lost"
        return share

    def cycles(self, turns: int) -> list[float]:
        """Acquire and release another lock; return the microseconds of a cycle in each turn."""

        def cycle() -> None:
            with self._other:
                pass

        return [seconds_each(cycle, BATCH) * US_PER_S for _ in range(turns)]


def _hold(url: str, takers: int, line: "Connection[Any, Any]") -> None:
    holder = cache(lambda: Holder(url, takers))
    serve(line, lambda what, *how: getattr(holder(), what)(*how))
