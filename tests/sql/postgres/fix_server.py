"""One private PostgreSQL server: started, stopped, killed, frozen and thawed by its pid alone.

Its folder, its port and its log are its own. It listens on 127.0.0.1 without passwords, and flushes what it says it
flushes. A server that a test kills is a real one: nothing of it survives but its data folder.
"""

import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode

import psycopg

from tests.private_server import PrivateServer
from tests.sql.postgres.fix_programs import Programs

ADMIN = "postgres"
"""The superuser of every server, and the database that it has from the start."""

STOPS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

Settings = dict[str, str | int]


class PostgresServer(PrivateServer):
    """A server over the data folder `folder / "data"`, which `initdb`, a copy or a backup has filled."""

    def __init__(self, programs: Programs, folder: Path) -> None:
        super().__init__(folder)
        self.programs = programs
        self.settings |= {
            "max_connections": 200,
            "recovery_init_sync_method": "syncfs",
            # Inside the data folder, so that a killed server leaves nothing behind in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
        }

    # Starting and stopping

    def command(self) -> list[str | Path]:
        """Return the command that starts it."""
        listen: Settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "port": self.port}
        options = [f"--{name}={value}" for name, value in (listen | self.settings).items()]
        return [self.programs.path("postgres"), "-D", self.data, *options]

    def is_ready(self) -> bool:
        """Tell whether it takes connections. A backend that dies restarts the server by itself."""
        # Its lock file's last line answers without a connection, which it would log as refused.
        lock_file = self.data / "postmaster.pid"
        lines = []
        with suppress(FileNotFoundError):  # A server that begins replaces the one of a server that was killed.
            lines = lock_file.read_text().splitlines()
        if len(lines) != 8 or int(lines[0]) != self.pid or lines[7].strip() != "ready":
            return False
        with suppress(psycopg.OperationalError), self.admin():
            return True
        return False

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop it as `pg_ctl stop --mode` does. Only `immediate` leaves a recovery to the next start."""
        self.wait_for_end(STOPS[mode])

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """End it, in whatever state it is, and remove its folder."""
        if self.is_running():
            self.kill()
        self._remove_shared_memory()
        super().close()

    def _remove_shared_memory(self) -> None:
        """Remove the segment by which its next start would know a killed server; its lock file names it in line 7."""
        lock_file = self.data / "postmaster.pid"
        lines = lock_file.read_text().splitlines() if lock_file.exists() else []
        if len(lines) > 6:
            subprocess.run(["ipcrm", "--shmem-id", lines[6].split()[1]], check=True)

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
