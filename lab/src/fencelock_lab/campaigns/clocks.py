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
    before = time.time() - time.monotonic()
    offset = Path(os.environ[OFFSET])
    moved = seconds - float(offset.read_text().rstrip("s\n"))
    write_offset(offset, seconds)
    if abs(time.time() - time.monotonic() - before - moved) > _NEAR_S:
        raise RuntimeError(f"the clock did not jump by {moved:g} s")


def forget(pid: int) -> None:
    """Remove the shared memory that libfaketime leaves behind when a process is killed."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        Path("/dev/shm", name).unlink(missing_ok=True)  # noqa: S108 - its own place
