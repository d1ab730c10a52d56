"""The one clock by which leases are judged: time since boot, suspend included.

Promise: `boottime_ms` never goes back while this kernel runs, and counts the time for which the machine was suspended,
so that a lease ends during a suspend too. Values of two kernels are never compared: see
`stores/sqlite/connection/file_identity.py`.
"""

import time
from functools import partial

_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
HAS_BOOTTIME = _CLOCK is not None
"""False on macOS and Windows, whose clocks are not known to count suspend; stores that need that refuse to open."""

_CLOCK_ID: int = time.CLOCK_MONOTONIC if _CLOCK is None else _CLOCK
_NS_PER_MS = 1_000_000
_NS_PER_US = 1_000


# A partial object has no Python frame: SQLite calls this in the middle of a statement. If a signal handler ran and
# raised in such a frame, SQLite would report a failed statement, and the handler's exception would be lost.
boottime_ns = partial(time.clock_gettime_ns, _CLOCK_ID)
"""Return nanoseconds since boot."""


def boottime_us() -> int:
    """Return whole microseconds since boot, rounded down."""
    return boottime_ns() // _NS_PER_US


def boottime_ms() -> int:
    """Return whole milliseconds since boot, rounded down, so that a deadline computed from it is never too late."""
    return boottime_ns() // _NS_PER_MS
