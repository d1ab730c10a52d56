"""Clocks for tests: one that stands still until a test moves it, and this process's own at a wrong rate."""

import threading

from fencelock import clock

_US_PER_MS = 1000
_US_PER_S = 1_000_000
_START_US = 1_000_000_000
"""Not zero: a clock of a machine that runs shows some time, and 0 often means "never"."""


class ManualClock:
    """Shows the time that a test has set, which only goes forward.

    Pass `now_us` or `now_ms` where a clock is a parameter: `MemorySource(url, now_us=clock.now_us)`. Any thread may
    read and move it.
    """

    def __init__(self, now_us: int = _START_US) -> None:
        self._now_us = now_us
        self._mutex = threading.Lock()

    def now_us(self) -> int:
        """Return the time in microseconds."""
        return self._now_us

    def now_ms(self) -> int:
        """Return the time in milliseconds, rounded down."""
        return self._now_us // _US_PER_MS

    def advance(self, seconds: float) -> None:
        """Move the clock forward; ValueError for a negative step."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s")
        with self._mutex:
            self._now_us += round(seconds * _US_PER_S)


def skew_clock(rate: float) -> None:
    """Have the clock by which this process judges leases go at `rate` from now on, as a bad oscillator does.

    1.1 is a tenth too fast. It cannot be undone: call it once, in a process of the test's own, before the first lock.
    """
    true_ns = clock.boottime_ns
    began_ns = true_ns()

    def skewed_ns() -> int:
        return began_ns + int((true_ns() - began_ns) * rate)

    clock.boottime_ns = skewed_ns
