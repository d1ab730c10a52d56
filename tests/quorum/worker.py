"""One of several processes that take turns on one lock of a quorum, and add to a guarded counter, while servers fail.

Run as `python -m tests.quorum.worker SOURCE GUARD JOURNAL NAME TTL RATE`. Its journal has one JSON list a line, written
unbuffered, so that a kill loses no whole line; times are seconds of CLOCK_BOOTTIME, which is the same for all
processes. The clock by which the library itself judges leases here goes at RATE.
"""

import json
import os
import random
import sys
import time
from typing import Any

import fencelock
import fencelock.clock

LOCK = "counter"
TIMEOUT_S = 3.0
PAUSE_S = 0.02
MAX_HOLD_TTLS = 1.5
LONG_HOLDS = 0.25
"""How many of the tenures last for so long that servers fail in them."""
READ = "SELECT value FROM counter"
WRITE = "UPDATE counter SET value = {0}"
NOTE = "INSERT INTO history (value, worker, token) VALUES ({0}, {0}, {0})"


def bend_clock(rate: float) -> None:
    """Have the library's clock go at `rate` from now on."""
    real = fencelock.clock.boottime_ns
    began_ns = real()

    def bent_ns() -> int:
        return began_ns + int((real() - began_ns) * rate)

    fencelock.clock.boottime_ns = bent_ns  # type: ignore[assignment]


class Worker:
    """What one process does, and writes down."""

    def __init__(self, source: str, guard: str, journal: str, name: str, ttl: str) -> None:
        self._descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._source = fencelock.connect(source)
        self._guard = fencelock.guard(guard, resource=LOCK, lock=LOCK)
        self._parameter = "?" if guard.startswith("sqlite") else "%s"
        self._name = name
        self._ttl = float(ttl)
        self._lock = self._source.lock(LOCK, ttl=self._ttl, timeout=TIMEOUT_S, holder=name)

    def note(self, what: str, *details: Any) -> None:
        line = json.dumps([what, time.clock_gettime(time.CLOCK_BOOTTIME), *details])
        os.write(self._descriptor, f"{line}\n".encode())

    def take_turns(self) -> None:
        """Hold the lock again and again, until killed."""
        while True:
            self.note("ask")
            try:
                lease = self._lock.acquire()
                if lease is None:
                    self.note("gave up")
                    continue
                self.note("granted", lease.token)
                self._hold(lease)
                lease.release()
                self.note("released", lease.token)
            except fencelock.FencelockError as error:
                self.note("error", type(error).__name__, str(error))
                time.sleep(PAUSE_S)

    def _hold(self, lease: fencelock.Lease) -> None:
        is_long = random.random() < LONG_HOLDS
        until = time.monotonic() + (random.uniform(0, MAX_HOLD_TTLS) * self._ttl if is_long else 0)
        while True:
            before = time.clock_gettime(time.CLOCK_BOOTTIME)
            if not lease.is_valid:
                self.note("over", lease.token, lease.lost.is_set())
                return
            self.note("valid", lease.token, before)
            self._add_one(lease)
            if time.monotonic() >= until:
                return
            time.sleep(PAUSE_S)

    def _add_one(self, lease: fencelock.Lease) -> None:
        """Read in one transaction, write what was computed in another: the pattern that a stale holder breaks."""
        with self._guard.transaction(lease) as connection:
            (value,) = connection.execute(READ).fetchone()
        time.sleep(random.uniform(0, PAUSE_S))
        self.note("writing", lease.token, value + 1)
        with self._guard.transaction(lease) as connection:
            connection.execute(WRITE.format(self._parameter), (value + 1,))
            connection.execute(NOTE.format(self._parameter), (value + 1, self._name, lease.token))
        self.note("written", lease.token, value + 1)


if __name__ == "__main__":
    bend_clock(float(sys.argv.pop()))
    Worker(*sys.argv[1:]).take_turns()
