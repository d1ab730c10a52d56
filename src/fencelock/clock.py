"""The one clock by which leases are judged: time since boot, suspend included.

Promise: `boottime_ms` never goes back while this kernel runs, and counts the time for which the machine was suspended,
so that a lease ends during a suspend too. Values of two kernels are never compared: see
`stores/sqlite/connection/file_identity.py`.
"""

from fencelock._platform import clock_ns

_NS_PER_MS = 1_000_000
_NS_PER_US = 1_000


# Neither a partial object nor a built-in function has a Python frame: SQLite calls this in the middle of a statement.
# If a signal handler ran and raised in such a frame, SQLite would report a failed statement, and the exception of the
# handler would be lost.
boottime_ns, COUNTS_SUSPEND = clock_ns()
"""Return nanoseconds since boot. A store whose deadlines are on a clock that does not count suspend refuses to open."""


def boottime_us() -> int:
    """Return whole microseconds since boot, rounded down."""
    return boottime_ns() // _NS_PER_US


def boottime_ms() -> int:
    """Return whole milliseconds since boot, rounded down, so that a deadline computed from it is never too late."""
    return boottime_ns() // _NS_PER_MS
