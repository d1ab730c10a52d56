"""A private MariaDB server, which holds the locks and the guarded tables.

Promise: it flushes each commit, as by default, so that a crash takes nothing with it that was acknowledged.
"""

import socket
from contextlib import suppress
from pathlib import Path

from fencelock_lab.servers.programs import MARIADBD, need, run
from fencelock_lab.servers.server import HOST, Server
from fencelock_lab.servers.setup import Setup

DATABASE = "app"
_LOOK_S = 2.0
_IS_ERROR = 0xFF
"""What the server's greeting begins with, after its length, when it refuses a connection."""


class MariaDBServer(Server):
    """One server over a data folder that mariadb-install-db has filled."""

    def command(self) -> list[object]:
        """Return the command that starts it."""
        options = {
            "datadir": self.data,
            # A starting server removes other servers' temporary tables from this folder.
            "tmpdir": self.folder,
            "socket": self.folder / "socket",
            "pid-file": self.folder / "pid",
            "bind-address": HOST,
            "port": self.port,
            "max-connections": 300,
            "innodb-buffer-pool-size": "32M",
            "innodb-log-file-size": "8M",
            "innodb-flush-log-at-trx-commit": 1,
        }
        named = (f"--{name}={value}" for name, value in options.items())
        return [need(MARIADBD), "--no-defaults", "--skip-name-resolve", *named]

    def is_ready(self) -> bool:
        """Tell whether it greets who connects: it does so once it can answer."""
        with suppress(OSError), socket.create_connection((HOST, self.port), _LOOK_S) as talking:
            greeting = talking.recv(5)
            return len(greeting) == 5 and greeting[4] != _IS_ERROR  # noqa: PLR2004 - a header of four bytes, and one
        return False


class MariaDBSetup(Setup):
    """One server. It notices no restore: the operator raises the epoch."""

    name = "mariadb"
    shown = ("mysql://127.0.0.1/app", "mysql://127.0.0.1/app")

    def make(self, number: int) -> Server:
        """Return the server, not started yet."""
        return MariaDBServer(self.folder / f"mariadb-{number}", self.name)

    def prepare(self, server: Server) -> None:
        """Make an empty server's data."""
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        folder = [f"--datadir={server.data}", f"--tmpdir={server.folder}", "--innodb-log-file-size=8M"]
        run([need("mariadb-install-db"), "--no-defaults", *folder, *options], server.folder)

    def start(self) -> None:
        """Start it, with a database for locks and tables."""
        super().start()
        self._client(f"CREATE DATABASE IF NOT EXISTS {DATABASE}".encode())

    @property
    def url(self) -> str:
        """The URL of the database."""
        return f"mysql://root@{HOST}:{self.servers[0].port}/{DATABASE}"

    def save(self, backup: Path) -> None:
        """Take a dump, as of one moment."""
        options = ["--single-transaction", "--routines", "--databases", DATABASE]
        (backup / "dump.sql").write_bytes(run([need("mariadb-dump"), *self._login(), *options], backup))

    def load(self, backup: Path) -> None:
        """Read the dump into the server."""
        self._client((backup / "dump.sql").read_bytes())

    def _client(self, said: bytes) -> None:
        run([need("mariadb"), *self._login()], self.folder, said)

    def _login(self) -> list[str]:
        return ["--no-defaults", f"--host={HOST}", f"--port={self.servers[0].port}", "--user=root"]
