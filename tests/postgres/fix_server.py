"""One private PostgreSQL server: started, stopped, killed, frozen and thawed by its pid alone.

Its folder, its port and its log are its own. It listens on 127.0.0.1 without passwords, and flushes what it says it
flushes. A server that a test kills is a real one: nothing of it survives but its data folder.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote, urlencode

import psutil
import psycopg

from tests.helpers import DEADLINE_S, wait_until
from tests.postgres.fix_programs import Programs, environment, runner

ADMIN = "postgres"
"""The superuser of every server, and the database that it has from the start."""

STOPS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

_STILL = {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}

Settings = dict[str, str | int]


def reserve_port() -> socket.socket:
    """Return a socket bound to a free port. It does not listen: who sets SO_REUSEADDR may bind there and listen."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def _is_gone(process: psutil.Process) -> bool:
    """Tell whether a process has ended. Orphans stay zombies until the system's first process reads their end."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class PostgresServer:
    """A server over the data folder `folder / "data"`, which `initdb`, a copy or a backup has filled."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        self.programs = programs
        self.folder = folder
        self.settings: Settings = {
            "max_connections": 200,
            "recovery_init_sync_method": "syncfs",
            # Inside the data folder, so that a killed server leaves nothing behind in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
        }
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
        """The postmaster's."""
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

    def start(self) -> None:
        """Start it, and return once it takes connections; recovery, if one is due, is over then."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start it without waiting."""
        assert not self.is_running(), "the server is running"
        listen: Settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": self.port}
        options = [f"--{name}={value}" for name, value in (listen | self.settings).items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.programs.path("postgres"), "-D", self.data, *options],
                cwd=self.folder,
                env=environment(**self.variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **runner(),
            )

    def wait_until_ready(self) -> None:
        """Wait until it takes connections. A backend that dies restarts the server by itself."""
        wait_until(self._is_ready)

    def _is_ready(self) -> bool:
        assert self.is_running(), f"the server did not start: {self.log[-4000:]}"
        # Its lock file's last line answers without a connection, which it would log as refused.
        lock_file = self.data / "postmaster.pid"
        lines = lock_file.read_text().splitlines() if lock_file.exists() else []
        if len(lines) != 8 or int(lines[0]) != self.pid or lines[7].strip() != "ready":
            return False
        with suppress(psycopg.OperationalError), self.admin():
            return True
        return False

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop it as `pg_ctl stop --mode` does. Only `immediate` leaves a recovery to the next start."""
        self.wait_for_end(STOPS[mode])

    def kill(self) -> None:
        """Kill it with SIGKILL, all its processes in one moment: the first dies when none can run any more."""
        processes = self.freeze()
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._gather(processes)

    def wait_for_end(self, number: signal.Signals) -> None:
        """Send the postmaster a signal, and wait until nothing of the server is left."""
        processes = self.processes()
        os.kill(self.pid, number)
        self._gather(processes)

    def _gather(self, processes: list[psutil.Process]) -> None:
        assert self._process is not None
        self._process.wait(DEADLINE_S)
        # A child that outlives the postmaster holds the shared memory, and would forbid the next start.
        wait_until(lambda: all(map(_is_gone, processes)))

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def crash(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End it, in whatever state it is, and remove its folder."""
        if self.is_running():
            self.kill()
        self._remove_shared_memory()
        self._reserved.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _remove_shared_memory(self) -> None:
        """Remove the segment by which its next start would know a killed server; its lock file names it in line 7."""
        lock_file = self.data / "postmaster.pid"
        lines = lock_file.read_text().splitlines() if lock_file.exists() else []
        if len(lines) > 6:
            subprocess.run(["ipcrm", "--shmem-id", lines[6].split()[1]], check=True)

    # Freezing

    def processes(self) -> list[psutil.Process]:
        """Return the postmaster and its children: each backend has a session of its own, and no group unites them."""
        postmaster = psutil.Process(self.pid)
        return [postmaster, *postmaster.children(recursive=True)]

    def freeze(self) -> list[psutil.Process]:
        """Stop all its processes, as a frozen machine does, and return them. The kernel still accepts connections."""
        frozen: dict[int, psutil.Process] = {}
        # The postmaster comes first. A child that it had just started is found in the next round.
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

    # Talking to it

    def url(self, *, user: str = ADMIN, dbname: str = ADMIN, **params: str | int) -> str:
        """Return the address of a database as libpq reads it; `params` are more of its parameters."""
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        return f"postgresql://{quote(user, safe='')}@127.0.0.1:{self.port}/{quote(dbname, safe='')}{query}"

    def connect(self, *, user: str = ADMIN, dbname: str = ADMIN, **params: Any) -> psycopg.Connection:
        """Return a new connection in autocommit mode."""
        return psycopg.connect(self.url(user=user, dbname=dbname), autocommit=True, **params)

    def admin(self, dbname: str = ADMIN) -> psycopg.Connection:
        """Return a new connection of the superuser, in autocommit mode."""
        return self.connect(dbname=dbname)

    def rows(self, statement: str, *params: object, dbname: str = ADMIN) -> list[tuple[Any, ...]]:
        """Run one statement as the superuser, on a connection of its own, and return its rows."""
        with self.admin(dbname) as connection:
            cursor = connection.execute(statement, params or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *params: object, dbname: str = ADMIN) -> Any:
        """Return the first column of the only row that a statement yields."""
        [row] = self.rows(statement, *params, dbname=dbname)
        return row[0]

    def control(self, line: str) -> str:
        """Return a value that `pg_controldata` prints. The server may be down."""
        printed = self.programs.run("pg_controldata", "-D", self.data, cwd=self.folder)
        found = re.search(rf"^{re.escape(line)}:\s*(.*)$", printed, re.MULTILINE)
        assert found is not None, printed
        return found[1]
