"""Ends the servers of a process that was killed: `python -m fencelock_lab.servers.watcher FOLDER`.

Promise: it waits until its standard input ends, which happens when the process that started it ends, however it ends.
Then it kills every process whose working folder is inside FOLDER, frozen ones too, and removes FOLDER. Never: touches
any other process.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_DEADLINE_S = 10.0
_PAUSE_S = 0.02
_SEGMENT_LINE = 6
"""The line of PostgreSQL's lock file that has the key and the id of its segment of shared memory."""


def processes_in(folder: Path) -> Iterator[int]:
    """Yield the ids of the processes whose working folder is inside `folder`: servers start there, and stay there."""
    prefix = f"{folder.resolve()}/"
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if f"{(entry / 'cwd').readlink()}/".startswith(prefix):
                    yield int(entry.name)


def end_all(folder: Path) -> None:
    """Kill every process that works inside the folder, and remove the folder."""
    deadline = time.monotonic() + _DEADLINE_S
    while (running := list(processes_in(folder))) and time.monotonic() < deadline:
        for pid in running:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)
    for lock_file in folder.glob("*/data/postmaster.pid"):
        remove_segment(lock_file)
    shutil.rmtree(folder, ignore_errors=True)


def remove_segment(lock_file: Path) -> None:
    """Remove the segment of shared memory by which the next start would recognise a killed PostgreSQL."""
    lines = lock_file.read_text().splitlines()
    if len(lines) > _SEGMENT_LINE and lines[_SEGMENT_LINE].strip():
        remove = shutil.which("ipcrm")
        if remove is not None:
            words = [remove, "--shmem-id", lines[_SEGMENT_LINE].split()[1]]
            subprocess.run(words, stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    sys.stdin.read()
    end_all(Path(sys.argv[1]))
