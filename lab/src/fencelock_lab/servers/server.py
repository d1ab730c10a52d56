"""One private server, whatever it serves: started, stopped, killed, frozen and thawed by its process ids alone.

Promise: what is killed or frozen is the server with all its processes, in one moment. It keeps its ports for its whole
life, also while it is down. Never: a process that was not started here.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fencelock.errors import SourceError
from fencelock_lab.servers.programs import as_runner, environment
from fencelock_lab.servers.watcher import remove_segment

HOST = "127.0.0.1"
DEADLINE_S = 60.0
"""How long a server may take to start or to end, on a loaded machine."""
_PAUSE_S = 0.02
_LOG_TAIL_CHARACTERS = 2000
_STILL = "TZX"
"""The states of a process that does not run: stopped, a zombie, dead."""


class Server:
    """A server over the folder `folder / "data"`; a kind of it says how it starts, and when it is ready."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self._reserved: list[socket.socket] = []
        self._public_port = self.port = self.reserve_port()
        self._private_port = self.reserve_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        """The folder that holds all that it knows."""
        return self.folder / "data"

    def reserve_port(self) -> int:
        """Return a free port, which stays this server's own: it is bound, and does not listen."""
        reserved = socket.socket()
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((HOST, 0))
        self._reserved.append(reserved)
        port: int = reserved.getsockname()[1]
        return port

    def hide(self, *, is_hidden: bool) -> None:
        """Have it listen, from its next start on, where no client looks for it, or where all do."""
        self.port = self._private_port if is_hidden else self._public_port

    # --- what kinds of servers say ------------------------------------------------------------------------------------
    def command(self) -> list[object]:
        """Return the command that starts it."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Tell whether it takes requests."""
        raise NotImplementedError

    stop_signal = signal.SIGTERM

    # --- starting and ending ------------------------------------------------------------------------------------------
    def launch(self) -> None:
        """Start it without waiting."""
        command = as_runner(self.command())
        with (self.folder / "log").open("ab") as log:
            # In a session of its own: Ctrl-C does not reach it.
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Tell whether its first process lives."""
        return self._process is not None and self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Wait until it takes requests; SourceError, with the end of its log, if it does not."""
        wait_for(self._is_ready, f"{self.name} did not become ready")

    def _is_ready(self) -> bool:
        if not self.is_running():
            raise SourceError(f"{self.name} ended by itself. Its log ends so: {self.log()}")
        return self.is_ready()

    def log(self) -> str:
        """Return the end of what it wrote."""
        return (self.folder / "log").read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:].strip()

    def stop(self) -> None:
        """Ask it to end, as an operator does, and wait until it has."""
        processes = self.processes()
        os.kill(self._pid, self.stop_signal)
        self._wait_until_gone(processes)

    def kill(self) -> None:
        """Kill all its processes in one moment: the first dies when none can run any more."""
        processes = self.freeze()
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait_until_gone(processes)

    def _wait_until_gone(self, processes: list[int]) -> None:
        assert self._process is not None
        self._process.wait(DEADLINE_S)
        # A child that outlives the first holds what they share, and would forbid the next start.
        wait_for(lambda: all(state_of(pid) in "ZX" for pid in processes), f"{self.name} did not end")

    def close(self) -> None:
        """End it, in whatever state it is, and remove its folder."""
        if self.is_running():
            self.kill()
        for reserved in self._reserved:
            reserved.close()
        lock_file = self.data / "postmaster.pid"
        if lock_file.exists():
            remove_segment(lock_file)
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- freezing -----------------------------------------------------------------------------------------------------
    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def processes(self) -> list[int]:
        """Return its first process, and all that come from it."""
        found = [self._pid]
        for pid in found:
            found += children_of(pid)
        return found

    def freeze(self) -> list[int]:
        """Stop all its processes, as a machine that is frozen does, and return them. The kernel still answers SYN."""
        frozen: list[int] = []
        # The first comes first; a child that it had just started is found in the next round.
        while fresh := [pid for pid in self.processes() if pid not in frozen]:
            for pid in fresh:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                wait_for(lambda pid=pid: state_of(pid) in _STILL, f"{self.name} did not stop")  # type: ignore[misc]
            frozen += fresh
        return frozen

    def thaw(self) -> None:
        """Let all its processes go on."""
        for pid in reversed(self.processes()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that have not ended."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def state_of(pid: int) -> str:
    """Return the letter that proc(5) has for a process's state; X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def wait_for(is_so: Callable[[], bool], complaint: str) -> None:
    """Wait until it is so; SourceError after a minute."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise SourceError(f"{complaint} within {DEADLINE_S:g} s")
        time.sleep(_PAUSE_S)
