"""Wall clocks that jump: each worker has its own, by libfaketime, and steps it as an operator or NTP does.

Promise: only the time of day moves. The clocks that count from the boot, which leases and histories use, stay true, as
they do when a real clock is set. Where libfaketime is missing no clock jumps.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any

from fencelock_lab.servers.faketime import OFFSET, write_offset

_NEAR_S = 1.0


def prepare() -> None:
    """Have this process sleep as it does without libfaketime, which refuses the call by which Python sleeps."""
    if OFFSET in os.environ:
        time.sleep = _sleep


def _sleep(seconds: Any, /) -> None:
    threading.Event().wait(seconds)


def jump(seconds: float) -> None:
    """Set this process's clock so many seconds apart from the true one; RuntimeError if that has no effect."""
    earliest, latest = _ahead()
    offset = Path(os.environ[OFFSET])
    moved = seconds - float(offset.read_text().rstrip("s\n"))
    write_offset(offset, seconds)
    least, most = _ahead()
    if most < earliest + moved - _NEAR_S or least > latest + moved + _NEAR_S:
        raise RuntimeError(f"the clock did not jump by {moved:g} s")


def _ahead() -> tuple[float, float]:
    """Return between which bounds the time of day is ahead of the clock that counts from the boot.

    A loaded machine may let the process wait between two readings.
    """
    before, now, after = time.monotonic(), time.time(), time.monotonic()
    return now - after, now - before


def forget(pid: int) -> None:
    """Remove the shared memory that libfaketime leaves behind when a process is killed."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        Path("/dev/shm", name).unlink(missing_ok=True)  # noqa: S108 - its own place
