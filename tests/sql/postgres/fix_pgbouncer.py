"""A PgBouncer before the shared server, which gives a server's connection to a client for one transaction at a time.

What belongs to a session, such as LISTEN, prepared statements and session locks, does not work through it.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from fencelock_lab.servers.postgres import ADMIN, PostgresFleet, PostgresServer
from fencelock_lab.servers.programs import PGBOUNCER, give, need
from fencelock_lab.servers.server import Server

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
"""


class PgBouncer(Server):
    """A pooler of its own port before `server`; each pool, of a database and a user, has `pool_size` connections."""

    def __init__(self, server: PostgresServer, folder: Path, pool_size: int) -> None:
        super().__init__(folder)
        self.server = server
        text = SETTINGS.format(server=server, port=self.port, folder=folder, admin=ADMIN, pool_size=pool_size)
        for name, content in (("settings", text), ("users", f'"{ADMIN}" ""\n')):
            (folder / name).write_text(content)
            give(folder / name)

    def command(self) -> list[object]:
        """Return the command that starts it."""
        return [need(PGBOUNCER), self.folder / "settings"]

    def is_ready(self) -> bool:
        """Return whether it takes connections."""
        with suppress(psycopg.OperationalError), psycopg.connect(self.url(self.server.url())):
            return True
        return False

    def url(self, server_url: str) -> str:
        """Return the address `server_url` with this pooler in the server's place."""
        parts = urlsplit(server_url)
        netloc = parts.netloc.replace(f":{self.server.port}", f":{self.port}")
        assert netloc != parts.netloc, f"{server_url} is not the server behind this pooler"
        return urlunsplit(parts._replace(netloc=netloc))


@pytest.fixture
def pgbouncer(postgres: PostgresServer, postgres_fleet: PostgresFleet) -> Iterator[PgBouncer]:
    """Yield a pooler with two connections to each database of the shared server."""
    with PgBouncer(postgres, postgres_fleet.new_folder("pgbouncer"), pool_size=2) as pooler:
        yield pooler
