"""A private server for tests, whatever it serves: started, stopped, killed, frozen and thawed by its pid alone.

Its folder, its port and its log are its own. A server that a test kills is a real one: nothing of it survives but its
data folder. Servers refuse to run as root; tests that do run as root start them as `nobody`, others as themselves.
"""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests import fix_watcher
from tests.helpers import DEADLINE_S, wait_until
from tests.servers import need

MEMORY_BYTES = 4 * 2**30
"""A server's folder takes 60 MiB at first."""
Wrap = Callable[[Sequence[str | Path]], Sequence[str | Path]]
"""Turns the command that starts a server into the one that starts it elsewhere, as an ordinary user."""
_STILL = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}


def as_runner(command: Sequence[str | Path]) -> list[str | Path]:
    """Return the command by which a program runs as an ordinary user.

    Not by Popen's own `user`: that forks, and a child of a process that speaks gRPC may die before it is the program.
    """
    if os.geteuid() != 0:
        return [*command]
    nobody = pwd.getpwnam("nobody")
    return [need("setpriv"), f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", *command]


def with_variables(variables: Mapping[str, str], command: Sequence[str | Path]) -> list[str | Path]:
    """Return the command with these variables: for the program alone, not for what starts it as another user."""
    return ["env", *(f"{name}={value}" for name, value in variables.items()), *command] if variables else [*command]


def give(path: Path) -> Path:
    """Make the runner the owner of `path`."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    return path


def environment(**more: str) -> dict[str, str]:
    """Return an environment in which nothing of the tester's own (PGHOST, a language) changes what is run."""
    return {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC", **more}


def reserve_port() -> socket.socket:
    """Return a socket bound to a free port. It does not listen: who sets SO_REUSEADDR may bind there and listen."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def watch(folder: Path, lock_file: str) -> subprocess.Popen[bytes]:
    """Start what ends the servers of `folder` when this process is killed; each writes its pid into its `lock_file`."""
    command = [sys.executable, fix_watcher.__file__, folder, lock_file]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder with all owners and modes."""
    subprocess.run(["cp", "--archive", source, target], check=True)


def roomy_folder() -> str:
    """Return a folder in memory, if there is room: a killed process loses nothing there, and flushes are quick."""
    memory = Path("/dev/shm")  # noqa: S108 - the folder in it is private
    has_room = memory.is_dir() and shutil.disk_usage(memory).free >= MEMORY_BYTES
    return str(memory) if has_room else tempfile.gettempdir()


def _is_gone(process: psutil.Process) -> bool:
    """Tell whether a process has ended. Orphans stay zombies until the system's first process reads their end."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class PrivateServer:
    """A server over the data folder `folder / "data"`; a kind of it says how it starts, and when it is ready.

    It listens on `host`; one that is not of this machine, in a network namespace for example, is started there by what
    `wrap` makes of its command.
    """

    def __init__(self, folder: Path, *, host: str = "127.0.0.1", wrap: Wrap | None = None) -> None:
        self.folder = folder
        self.host = host
        self._wrap = wrap
        self.settings: dict[str, str | int] = {}
        """Takes effect at the next start."""
        self.variables: dict[str, str] = {}
        """What the server's environment holds besides the usual; takes effect at the next start."""
        # Reserved for the server's whole life, so that it finds its port free again after a restart.
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def pid(self) -> int:
        """The server's, its first process's where it has several."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    @property
    def log(self) -> str:
        """What it wrote until now, over all its starts."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # Starting and stopping

    def command(self) -> list[str | Path]:
        """Return the command that starts it."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Tell whether it takes connections."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it, and return once it takes connections; recovery, if one is due, is over then."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start it without waiting."""
        assert not self.is_running(), "the server is running"
        command = with_variables(self.variables, self.command())
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                as_runner(command) if self._wrap is None else self._wrap(command),
                cwd=self.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until it takes connections."""
        wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        assert self.is_running(), f"the server did not start: {self.log[-4000:]}"
        return self.is_ready()

    def kill(self) -> None:
        """Kill it with SIGKILL, all its processes in one moment: the first dies when none can run any more."""
        processes = self.freeze()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._gather(processes)

    def wait_for_end(self, number: signal.Signals) -> None:
        """Send its first process a signal, and wait until nothing of the server is left."""
        processes = self.processes()
        os.kill(self.pid, number)
        self._gather(processes)

    def _gather(self, processes: list[psutil.Process]) -> None:
        assert self._process is not None
        self._process.wait(DEADLINE_S)
        # A child that outlives the first holds what is shared, and would forbid the next start.
        wait_until(lambda: all(map(_is_gone, processes)))

    def crash(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End it, in whatever state it is, and remove its folder."""
        if self.is_running():
            self.kill()
        self._reserved.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Freezing

    def processes(self) -> list[psutil.Process]:
        """Return its first process and that one's children."""
        first = psutil.Process(self.pid)
        return [first, *first.children(recursive=True)]

    def freeze(self) -> list[psutil.Process]:
        """Stop all its processes, as a frozen machine does, and return them. The kernel still accepts connections."""
        frozen: dict[int, psutil.Process] = {}
        # The first comes first. A child that it had just started is found in the next round.
        while fresh := [process for process in self.processes() if process.pid not in frozen]:
            for process in fresh:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
                    wait_until(lambda process=process: process.status() in _STILL)
                frozen[process.pid] = process
        return list(frozen.values())

    def thaw(self) -> None:
        """Let all its processes go on."""
        for process in reversed(self.processes()):
            with suppress(psutil.NoSuchProcess):
                process.resume()
