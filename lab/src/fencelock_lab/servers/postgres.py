"""A private PostgreSQL server, which holds the locks and the guarded tables.

Promise: as Debian ships it, with no setting that makes it forget more or less than it does anywhere.
"""

import shutil
import signal
from contextlib import suppress
from pathlib import Path

from fencelock_lab.servers.programs import POSTGRES, need, run
from fencelock_lab.servers.server import HOST, Server
from fencelock_lab.servers.setup import Setup

ADMIN = "postgres"
_STATUS_LINE = 7
"""Of its lock file: says ready when it takes connections."""


class PostgresServer(Server):
    """One server over a data folder that initdb, or a base backup, has filled."""

    stop_signal = signal.SIGINT  # A fast stop: connections are ended, and nothing is left to recover.

    def command(self) -> list[object]:
        """Return the command that starts it."""
        listen = {"listen_addresses": HOST, "unix_socket_directories": "", "port": self.port, "max_connections": 300}
        # Inside the data folder, so that a killed server leaves nothing behind in /dev/shm.
        listen["dynamic_shared_memory_type"] = "mmap"
        return [need(POSTGRES), "-D", self.data, *(f"--{name}={value}" for name, value in listen.items())]

    def is_ready(self) -> bool:
        """Tell whether it takes connections."""
        lines = []
        with suppress(FileNotFoundError):
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        is_own = lines[:1] == [str(self._pid)]
        return is_own and len(lines) > _STATUS_LINE and lines[_STATUS_LINE].strip() == "ready"


class PostgresSetup(Setup):
    """One server. It notices a restored base backup by itself; a crash may take unflushed grants with it."""

    name = "postgres"
    shown = ("postgresql://127.0.0.1/postgres", "postgresql://127.0.0.1/postgres")
    notices_restores = True
    forgets_s = 1.0

    def make(self, number: int) -> Server:
        """Return the server, not started yet."""
        return PostgresServer(self.folder / f"postgres-{number}", self.name)

    def prepare(self, server: Server) -> None:
        """Make an empty cluster."""
        options = ["--auth=trust", f"--username={ADMIN}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        run([_program("initdb"), "-D", server.data, *options], server.folder)

    @property
    def url(self) -> str:
        """The URL of the database that every cluster has."""
        return f"postgresql://{ADMIN}@{HOST}:{self.servers[0].port}/{ADMIN}"

    def save(self, backup: Path) -> None:
        """Take a base backup."""
        options = ["--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        run([_program("pg_basebackup"), "-D", backup / "data", "-d", self.url, *options], backup)

    def put_back(self, backup: Path) -> None:
        """Have the base backup be the data folder."""
        (server,) = self.servers
        shutil.rmtree(server.data)
        run(["cp", "--archive", backup / "data", server.data], backup)


def _program(name: str) -> Path:
    return Path(need(POSTGRES)).with_name(name)
