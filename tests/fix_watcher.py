"""Ends the servers of a test session that was killed: run with their folder and their lock
file's name, it waits until its standard input ends.

A test session keeps the other end of that pipe, which closes with it, however it ends. No other process is touched:
a server's lock file names a process, and that process must have the server's folder on its command line.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

DEADLINE_S = 10.0


def servers(folder: Path, name: str) -> Iterator[int]:
    """Yield the process ids of the servers whose folders are in `folder`, and which still run."""
    for lock_file in folder.glob(f"*/data/{name}"):
        with suppress(OSError, ValueError, IndexError):
            pid = int(lock_file.read_text().splitlines()[0])
            if str(lock_file.parent).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid


def end_servers(folder: Path, name: str) -> None:
    """End all servers, also frozen ones, and remove the folder."""
    deadline = time.monotonic() + DEADLINE_S
    while (running := list(servers(folder, name))) and time.monotonic() < deadline:
        for pid in running:
            for number in (signal.SIGQUIT, signal.SIGCONT):
                with suppress(OSError):
                    os.kill(pid, number)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    end_servers(Path(sys.argv[1]), sys.argv[2])
