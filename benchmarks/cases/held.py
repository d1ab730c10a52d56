"""Up to 100 000 leases in one process: the memory of each, what renewing all of them takes of a core, in the process
and in the server, and what a lock costs beside them.

If they are not all taken in time, those that are there are measured.
"""

import multiprocessing
import sys
import time
from contextlib import closing
from functools import cache
from typing import TYPE_CHECKING, Any

import psutil  # type: ignore[import-untyped]

import fenceline
from benchmarks.child import Child, serve
from benchmarks.measure import US_PER_S, Result, resident_bytes, seconds_each, summarise
from benchmarks.stores import Site

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tests.private_server import PrivateServer

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
BATCH = 50
AIMS = {RENEWAL: 3.0, MEMORY: 2048.0}
AIMED = 10_000
"""The number of leases that the aims are about."""
LEAST_S = 0.2
_SLACK_S = 60.0


def run(site: Site, seconds: float) -> list[Result]:
    """Take more and more leases, and measure at each size; the next is begun only while there is time."""
    results: list[Result] = []
    until = time.monotonic() + seconds
    with closing(Child(multiprocessing.get_context("spawn"), _hold, site.url)) as child:
        for count in COUNTS:
            try:
                results += _measure(site, child, count, until)
            except ChildProcessError as error:
                print(f"{count:,} leases: {error}", file=sys.stderr)
                break
            if time.monotonic() > until - BEATS * BEAT_S:
                break
    return results


def _measure(site: Site, child: Child, count: int, until: float) -> list[Result]:
    left = max(until - time.monotonic(), 0.0)
    held, bytes_each = child.ask("take", count, max(left - 2 * BEATS * BEAT_S, 0.0), patience_s=left + _SLACK_S)
    served = _cpu_s(site.server)
    seconds = max(min(BEATS * BEAT_S, left), LEAST_S)
    share = child.ask("keep", seconds, patience_s=seconds + _SLACK_S)
    name = f"{held:,} lease{'s' * (held > 1)}"
    is_aimed = held == AIMED
    results = [summarise(RENEWAL, name, "% of a core", [share * 100], aim=AIMS[RENEWAL] if is_aimed else None)]
    if site.server is not None:
        results.append(summarise(SERVING, name, "% of a core", [(_cpu_s(site.server) - served) / seconds * 100]))
    if held >= COUNTS[1]:
        results.append(summarise(MEMORY, name, "bytes", [bytes_each], aim=AIMS[MEMORY] if is_aimed else None))
    return [*results, summarise(BESIDE, name, "us", child.ask("cycles", 5, patience_s=_SLACK_S))]


def _cpu_s(server: "PrivateServer | None") -> float:
    """Return the processor time that the processes of a server have used."""
    return sum(sum(_times(process)) for process in server.processes()) if server else 0.0


def _times(process: psutil.Process) -> tuple[float, float]:
    try:
        user, system, *_ = process.cpu_times()
    except psutil.NoSuchProcess:
        return (0.0, 0.0)
    return user, system


class _Holder:
    """Holds leases of one source."""

    def __init__(self, url: str) -> None:
        self._source = fenceline.connect(url)
        self._leases: list[Any] = []
        self._other = self._source.lock("beside", ttl=TTL_S)
        self.cycles(1)
        self._before = resident_bytes()

    def take(self, count: int, seconds: float) -> tuple[int, float]:
        """Hold so many leases if there is time; return how many they are, and the bytes that each takes."""
        until = time.monotonic() + seconds
        while len(self._leases) < count and (len(self._leases) < COUNTS[0] or time.monotonic() < until):
            self._leases.append(self._source.lock(f"held-{len(self._leases)}", ttl=TTL_S).acquire())
        return len(self._leases), (resident_bytes() - self._before) / len(self._leases)

    def keep(self, seconds: float) -> float:
        """Do nothing else for some time; return the share of a core that it took."""
        began_s, cpu_s = time.monotonic(), time.process_time()
        time.sleep(seconds)
        share = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
        assert all(lease.is_valid for lease in self._leases), "a lease was lost"
        return share

    def cycles(self, turns: int) -> list[float]:
        """Acquire and release another lock; return the microseconds of a cycle in each turn."""

        def cycle() -> None:
            with self._other:
                pass

        return [seconds_each(cycle, BATCH) * US_PER_S for _ in range(turns)]


def _hold(url: str, line: "Connection[Any, Any]") -> None:
    holder = cache(lambda: _Holder(url))
    serve(line, lambda what, *how: getattr(holder(), what)(*how))
