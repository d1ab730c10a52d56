"""One private server of any kind: started, stopped, killed, frozen and thawed by its process ids alone.

Promise: kill and freeze hit the server with all its processes, in one moment. A server keeps its ports for its whole
life, also while it is down. What is started anew finds nothing of the former run but the data folder. Never: touches a
process that was not started here.
"""

import os
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

from fencelock.errors import SourceError
from fencelock_lab.servers.processes import DEADLINE_S, GONE, STOPPED, family_of, state_of, wait_for
from fencelock_lab.servers.programs import Wrap, as_runner, environment, with_variables

HOST = "127.0.0.1"
CLIENT_PORT, _PRIVATE_PORT = "client", "private"
_LOG_TAIL_CHARACTERS = 2000


class Server:
    """A server over the data folder `folder / "data"`; a subclass says how it starts, and when it is ready.

    `wrap` turns its command into the one that starts it as an ordinary user, in a network namespace for example; `host`
    is then the address there.
    """

    stop_signal: ClassVar = signal.SIGTERM

    def __init__(self, folder: Path, *, name: str = "", host: str = HOST, wrap: Wrap = as_runner) -> None:
        self.folder = folder
        self.name = name or folder.name
        self.host = host
        self._wrap = wrap
        self.settings: dict[str, str | int] = {}
        """Options of the server; they take effect at the next start."""
        self.variables: dict[str, str] = {}
        """Additions to the server's environment; they take effect at the next start."""
        self.ports: dict[str, int] = {}
        self._reserved: list[socket.socket] = []
        self._public_port = self.reserve_port(CLIENT_PORT)
        self._pid: int | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- what a subclass says -----------------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Fill the new server's folder with what its first start needs."""

    def command(self) -> list[object]:
        """Return the command that starts it."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Return whether it takes requests."""
        raise NotImplementedError

    def is_leader(self) -> bool:
        """Return whether it leads its cluster, or believes so; a server without a cluster does."""
        return True

    # --- what it is ---------------------------------------------------------------------------------------------------
    @property
    def data(self) -> Path:
        """The folder that holds all that it keeps."""
        return self.folder / "data"

    @property
    def port(self) -> int:
        """The port for clients."""
        return self.ports[CLIENT_PORT]

    @property
    def address(self) -> str:
        """Host and port for clients."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The id of its first process."""
        assert self._pid is not None, f"{self.name} was not started"
        return self._pid

    @property
    def log(self) -> str:
        """Everything that it has written to its log, over all its starts."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def reserve_port(self, name: str) -> int:
        """Return a free port, which stays this server's own: the socket is bound, and does not listen."""
        reserved = reserve_port()
        self._reserved.append(reserved)
        self.ports[name] = reserved.getsockname()[1]
        return self.ports[name]

    def hide(self, *, is_hidden: bool) -> None:
        """Make it listen, from its next start on, on a port that no client knows, or on the known one again."""
        if is_hidden and _PRIVATE_PORT not in self.ports:
            self.reserve_port(_PRIVATE_PORT)
        self.ports[CLIENT_PORT] = self.ports[_PRIVATE_PORT] if is_hidden else self._public_port

    # --- starting and ending ------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start it, and return once it takes requests; a recovery, if one is due, is over then."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start it without waiting."""
        assert not self.is_running(), f"{self.name} is running"
        command = self._wrap(with_variables(self.variables, self.command()))
        with (self.folder / "log").open("ab") as log:
            # In a session of its own, so that Ctrl-C does not reach it.
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._pid = self._process.pid

    def is_running(self) -> bool:
        """Return whether its first process lives."""
        if self._process is not None:
            return self._process.poll() is None
        return self._pid is not None and state_of(self._pid) not in GONE

    def is_frozen(self) -> bool:
        """Return whether its first process is stopped."""
        return self.is_running() and state_of(self.pid) == "T"

    def wait_until_ready(self) -> None:
        """Wait until it takes requests; SourceError, with the end of its log, if it ends or takes too long."""
        wait_for(self._is_ready, f"{self.name} did not become ready")

    def _is_ready(self) -> bool:
        if not self.is_running():
            raise SourceError(f"{self.name} ended by itself; the end of its log: {self.log[-_LOG_TAIL_CHARACTERS:]}")
        return self.is_ready()

    def stop(self) -> None:
        """Ask it to end, as an operator does, and wait until it has."""
        self.end_by(self.stop_signal)

    def end_by(self, number: signal.Signals) -> None:
        """Send its first process a signal, and wait until all its processes have ended."""
        processes = self.processes()
        os.kill(self.pid, number)
        self._wait_until_gone(processes)

    def kill(self) -> None:
        """Kill all its processes in one moment: they are all stopped before the first one dies."""
        processes = self.freeze()
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait_until_gone(processes)

    def _wait_until_gone(self, processes: list[int]) -> None:
        if self._process is not None:
            self._process.wait(DEADLINE_S)
        # A child that outlives the first process holds what they share, and would forbid the next start.
        wait_for(lambda: all(state_of(pid) in GONE for pid in processes), f"{self.name} did not end")

    def restart(self) -> None:
        """Stop it and start it again."""
        self.stop()
        self.start()

    def crash(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End it, whatever state it is in, and remove its folder."""
        if self.is_running():
            self.kill()
        for reserved in self._reserved:
            reserved.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def leave(self) -> None:
        """Let it run on, and be ended by others: this process asks nothing more of it."""
        for reserved in self._reserved:
            reserved.close()
        if self._process is not None:
            self._process.returncode = 0  # Popen warns of a process that it has not seen end.

    # --- freezing -----------------------------------------------------------------------------------------------------
    def processes(self) -> list[int]:
        """Return the ids of its first process and of all that descend from it."""
        return family_of(self.pid)

    def freeze(self) -> list[int]:
        """Stop all its processes, as a frozen machine does, and return their ids. The kernel still accepts clients."""
        frozen: list[int] = []
        # The first process stops first; a child that it had just started is found in the next round.
        while fresh := [pid for pid in self.processes() if pid not in frozen]:
            for pid in fresh:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                wait_for(lambda pid=pid: state_of(pid) in STOPPED, f"{self.name} did not stop")  # type: ignore[misc]
            frozen += fresh
        return frozen

    def thaw(self) -> None:
        """Let all its processes go on."""
        for pid in reversed(self.processes()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # --- the same server in another process ---------------------------------------------------------------------------
    def as_json(self) -> dict[str, Any]:
        """Return what another process needs to use this running server."""
        return {"folder": str(self.folder), "pid": self.pid, "ports": self.ports}

    def attach(self, state: dict[str, Any]) -> None:
        """Be the running server that another process has started."""
        for reserved in self._reserved:
            reserved.close()
        self._reserved.clear()
        self._pid, self.ports = state["pid"], state["ports"]


def reserve_port() -> socket.socket:
    """Return a socket that is bound to a free port and does not listen: who sets SO_REUSEADDR may listen there."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return reserved
