"""One private MariaDB server: started, stopped, killed, frozen and thawed by its pid alone.

It listens on 127.0.0.1 and on a socket in its folder, without passwords but for those that a test sets, and flushes
what it says it flushes.
"""

import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pymysql

from tests.private_server import PrivateServer, as_runner, environment
from tests.servers import need

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

PROGRAM = "/usr/sbin/mariadbd"
ADMIN = "root"
"""The superuser of every server."""
LOCK_FILE = "pid"


class MySQLServer(PrivateServer):
    """A server over the data folder `folder / "data"`, which `initialise` or a copy has filled."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.settings |= {
            "max_connections": 200,
            "innodb_buffer_pool_size": "32M",
            "innodb_log_file_size": "8M",
            "innodb_flush_log_at_trx_commit": 1,
        }

    @property
    def socket(self) -> Path:
        """The path of its socket."""
        return self.folder / "s"

    def command(self) -> list[str | Path]:
        """Return the command that starts it."""
        listen: dict[str, str | int] = {"bind_address": "127.0.0.1", "port": self.port, "socket": str(self.socket)}
        options = [f"--{name.replace('_', '-')}={value}" for name, value in (listen | self.settings).items()]
        # A starting server removes other servers' temporary tables from the folder for those.
        folder = [f"--datadir={self.data}", f"--tmpdir={self.folder}", f"--pid-file={self.data / LOCK_FILE}"]
        return [need(PROGRAM), "--no-defaults", "--skip-name-resolve", *folder, *options]

    def is_ready(self) -> bool:
        """Tell whether it takes connections."""
        with suppress(pymysql.OperationalError), self.admin():
            return True
        return False

    def stop(self) -> None:
        """Stop it as its own programs do; its connections end, and nothing is left to recover."""
        self.wait_for_end(signal.SIGTERM)

    def restart(self) -> None:
        self.stop()
        self.start()

    # Talking to it

    def url(self, *, user: str = ADMIN, password: str = "", database: str = "mysql", **params: str | int) -> str:
        """Return the address of a database as fencelock reads it; `params` are more of its parameters."""
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
        return f"mysql://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}{query}"

    def connect(self, *, user: str = ADMIN, database: str = "mysql", **params: Any) -> "pymysql.Connection[Cursor]":
        """Return a new connection in autocommit mode."""
        given = {"connect_timeout": 5, "autocommit": True, "charset": "utf8mb4", **params}
        return pymysql.connect(host="127.0.0.1", port=self.port, user=user, database=database, **given)

    def admin(self, database: str = "mysql") -> "pymysql.Connection[Cursor]":
        """Return a new connection of the superuser, in autocommit mode."""
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


def initialise(folder: Path) -> None:
    """Fill `folder / "data"` with an empty server's data."""
    need(PROGRAM)
    options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
    command = ["mariadb-install-db", "--no-defaults", f"--datadir={folder / 'data'}", "--innodb-log-file-size=8M"]
    command += [f"--tmpdir={folder}"]
    done = subprocess.run(
        as_runner([*command, *options]),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stdout}{done.stderr}"
