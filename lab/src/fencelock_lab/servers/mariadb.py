"""Private MariaDB servers.

Promise: a server listens on 127.0.0.1 and on a socket in its folder, without passwords, and flushes each commit, as by
default: a crash loses nothing that was acknowledged.
"""

import socket
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from fencelock_lab.servers.cluster import Cluster
from fencelock_lab.servers.fleet import Fleet, copied
from fencelock_lab.servers.programs import MARIADBD, need, run
from fencelock_lab.servers.server import Server

if TYPE_CHECKING:
    import pymysql
    from pymysql.cursors import Cursor

ADMIN = "root"
"""The superuser of every server."""
_LOCK_FILE = "pid"
_LOG_FILE_SIZE = "8M"
_ANSWER_S = 2.0
_GREETING_BYTES = 5
_IS_ERROR = 0xFF
"""The byte after the four of the length in the server's greeting, if it refuses a connection."""


class MariaDBServer(Server):
    """A server over a data folder that mariadb-install-db or a copy has filled."""

    def __init__(self, folder: Path, *, name: str = "") -> None:
        super().__init__(folder, name=name)
        self.settings |= {
            "max_connections": 200,
            "innodb_buffer_pool_size": "32M",
            "innodb_log_file_size": _LOG_FILE_SIZE,
            "innodb_flush_log_at_trx_commit": 1,
        }

    # --- starting -----------------------------------------------------------------------------------------------------
    @property
    def socket(self) -> Path:
        """The path of its socket."""
        return self.folder / "s"

    def prepare(self) -> None:
        """Make an empty server's data; it takes five seconds."""
        initialise(self.folder)

    def command(self) -> list[object]:
        """Return the command that starts it."""
        options = {"bind_address": self.host, "port": self.port, "socket": self.socket, **self.settings}
        # A starting server removes other servers' temporary tables from tmpdir.
        folders = [f"--datadir={self.data}", f"--tmpdir={self.folder}", f"--pid-file={self.data / _LOCK_FILE}"]
        named = (f"--{name.replace('_', '-')}={value}" for name, value in options.items())
        return [need(MARIADBD), "--no-defaults", "--skip-name-resolve", *folders, *named]

    def is_ready(self) -> bool:
        """Return whether it greets a client, which it does once it can answer."""
        with suppress(OSError), socket.create_connection((self.host, self.port), _ANSWER_S) as connection:
            greeting = connection.recv(_GREETING_BYTES)
            return len(greeting) == _GREETING_BYTES and greeting[-1] != _IS_ERROR
        return False

    # --- using it -----------------------------------------------------------------------------------------------------
    def url(self, *, user: str = ADMIN, password: str = "", database: str = "mysql", **params: str | int) -> str:
        """Return the URL of a database as fencelock reads it; `params` are further parameters of it."""
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
        return f"mysql://{login}@{self.address}/{quote(database, safe='')}{query}"

    def connect(self, *, user: str = ADMIN, database: str = "mysql", **params: Any) -> "pymysql.Connection[Cursor]":
        """Return a new connection in autocommit mode."""
        import pymysql

        # A client that is ready for TLS reads all the system's certificates first, which takes 50 ms.
        given = {"connect_timeout": 5, "autocommit": True, "charset": "utf8mb4", "ssl_disabled": True, **params}
        return pymysql.connect(host=self.host, port=self.port, user=user, database=database, **given)

    def admin(self, database: str = "mysql") -> "pymysql.Connection[Cursor]":
        """Return a new connection of the superuser in autocommit mode."""
        return self.connect(database=database)

    def rows(self, statement: str, *params: object, database: str = "mysql") -> list[tuple[Any, ...]]:
        """Run one statement as the superuser, on a connection of its own, and return its rows."""
        with self.admin(database) as connection, connection.cursor() as cursor:
            cursor.execute(statement, params or None)
            return list(cursor.fetchall())

    def value(self, statement: str, *params: object, database: str = "mysql") -> Any:
        """Return the first column of the only row that a statement yields."""
        [row] = self.rows(statement, *params, database=database)
        return row[0]

    def dump(self, database: str) -> bytes:
        """Return a dump of a database as of one moment."""
        options = ["--single-transaction", "--routines", "--databases", database]
        return run([need("mariadb-dump"), *self._login(), *options], self.folder)

    def execute(self, script: bytes) -> None:
        """Run a script of statements, a dump for example."""
        run([need("mariadb"), *self._login()], self.folder, stdin=script)

    def _login(self) -> list[str]:
        return ["--no-defaults", f"--host={self.host}", f"--port={self.port}", f"--user={ADMIN}"]


def initialise(folder: Path) -> None:
    """Fill `folder / "data"` with an empty server's data."""
    need(MARIADBD)
    options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
    folders = [f"--datadir={folder / 'data'}", f"--tmpdir={folder}", f"--innodb-log-file-size={_LOG_FILE_SIZE}"]
    run([need("mariadb-install-db"), "--no-defaults", *folders, *options], folder)


class MariaDBFleet(Fleet[MariaDBServer]):
    """Makes MariaDB servers; each begins as a copy of one template."""

    kind = "mariadb"

    def new_server(self) -> MariaDBServer:
        """Return a server, not started yet."""
        return self.own(self._server())

    def copy_of(self, data: Path) -> MariaDBServer:
        """Return a server over a copy of a data folder, not started yet."""
        server = self.own(MariaDBServer(self.new_folder("server")))
        copied(data, server.data, _LOCK_FILE)
        return server

    def shared(self) -> MariaDBServer:
        """Return the running server that all users of the folder share."""

        def find(folders: list[Path]) -> Cluster[MariaDBServer]:
            return Cluster(MariaDBServer(folder) for folder in folders)

        return self.shared_cluster("", lambda: Cluster([self._server()]), find).servers[0]

    def _server(self) -> MariaDBServer:
        server = MariaDBServer(self.new_folder("server"))
        copied(self.template("", initialise) / "data", server.data)
        return server
