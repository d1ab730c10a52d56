"""The recorder: one file for each process, with what it asks and is told, written before anything else happens.

Promise: a line is one write to the file, so that a process that is killed loses none. Times are nanoseconds since boot,
on the clock that all processes of a machine share and that counts suspend.
"""

import heapq
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fencelock_lab.campaigns.history import INVOKE, NEMESIS


def boottime_ns() -> int:
    """Return nanoseconds since boot, suspend included: the true time, however wrong the clock of the leases is."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Recorder:
    """Appends lines to one file."""

    def __init__(self, path: Path, process: str) -> None:
        self.process = process
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, step: str, kind: str, **facts: Any) -> None:
        """Record one step of one operation of this process."""
        self._append({"time": boottime_ns(), "process": self.process, "type": step, "f": kind} | facts)

    def invoke(self, kind: str, **facts: Any) -> None:
        """Record that an operation begins."""
        self.write(INVOKE, kind, **facts)

    def note(self, kind: str, **facts: Any) -> None:
        """Record something that is done to a process."""
        self._append({"time": boottime_ns(), "process": NEMESIS, "type": "info", "f": kind} | facts)

    def _append(self, record: dict[str, Any]) -> None:
        os.write(self._descriptor, f"{json.dumps(record)}\n".encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def merged(paths: Iterable[Path]) -> Iterator[bytes]:
    """Yield the lines of several recordings in the order of their times."""
    with ExitStack() as opened:
        files = [opened.enter_context(path.open("rb")) for path in paths]
        # Only a line that ends was written whole.
        recordings = [(line for line in file if line.endswith(b"\n")) for file in files]
        yield from heapq.merge(*recordings, key=_time_of)


def _time_of(line: bytes) -> int:
    # Each line begins with its time: reading that alone is a tenth of the work.
    return int(line[line.index(b":") + 1 : line.index(b",")])
