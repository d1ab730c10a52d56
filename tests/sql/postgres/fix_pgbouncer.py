"""A PgBouncer before the shared server, which gives a server's connection to a client for one transaction at a time.

Whatever belongs to a session, such as LISTEN, prepared statements and session locks, does not work through it.
"""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.helpers import DEADLINE_S, wait_until
from tests.private_server import as_runner, environment, give, reserve_port
from tests.servers import need
from tests.sql.postgres.fix_postgres import Fleet
from tests.sql.postgres.fix_server import ADMIN, PostgresServer

PROGRAM = "/usr/sbin/pgbouncer"

SETTINGS = """
[databases]
* = host=127.0.0.1 port={server.port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
pool_mode = transaction
default_pool_size = {pool_size}
auth_type = trust
auth_file = {folder}/users
auth_user = {admin}
auth_query = select rolname, '' from pg_roles where rolname = $1
logfile = {folder}/log
"""


class PgBouncer:
    """A pooler of its own port before `server`; each pool, of a database and a user, has `pool_size` connections."""

    def __init__(self, server: PostgresServer, folder: Path, pool_size: int) -> None:
        self.server = server
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        text = SETTINGS.format(server=server, port=self.port, folder=folder, admin=ADMIN, pool_size=pool_size)
        for name, content in (("settings", text), ("users", f'"{ADMIN}" ""\n')):
            (folder / name).write_text(content)
            give(folder / name)

    def __enter__(self) -> Self:
        command = [need(PROGRAM), "--quiet", self._folder / "settings"]
        self._process = subprocess.Popen(
            as_runner(command), cwd=self._folder, env=environment(), start_new_session=True
        )
        wait_until(self._is_ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(DEADLINE_S)
        self._reserved.close()

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        with suppress(psycopg.OperationalError), psycopg.connect(self.url(self.server.url())):
            return True
        return False

    def url(self, server_url: str) -> str:
        """Return the address `server_url` with this pooler in the server's place."""
        parts = urlsplit(server_url)
        place = parts.netloc.replace(f":{self.server.port}", f":{self.port}")
        assert place != parts.netloc, f"{server_url} is not the server behind this pooler"
        return urlunsplit(parts._replace(netloc=place))


@pytest.fixture
def pgbouncer(postgres: PostgresServer, postgres_fleet: Fleet) -> Iterator[PgBouncer]:
    """Yield a pooler with two connections to each database of the shared server."""
    with PgBouncer(postgres, postgres_fleet.new_folder("pgbouncer"), pool_size=2) as pooler:
        yield pooler
