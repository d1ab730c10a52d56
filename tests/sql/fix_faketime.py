"""Fixtures: servers whose wall clock a test moves, forward and back, while they run; the monotonic clock stays true."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from fencelock_lab.servers.faketime import ServerClock
from fencelock_lab.servers.mariadb import MariaDBFleet, MariaDBServer
from fencelock_lab.servers.postgres import PostgresFleet, PostgresServer
from tests.helpers import wait_until

NEAR_S = 60.0
"""Two readings of a clock around a moved one are nearer than this; moves are longer."""
MYSQL_DATABASE = "clocked"


class ClockedServer:
    """A server, not started yet, with a clock that jumps; `now` is the SQL that reads it, in seconds since 1970."""

    def __init__(self, server: Any, now: str) -> None:
        self.server = server
        self._now = now
        self._clock = ServerClock(server)

    def jump(self, seconds: int) -> None:
        """Set the server's clock `seconds` apart from the true one, and return when it is; 0 is the true time."""
        self._clock.set(seconds)
        wait_until(lambda: abs(self.ahead_s() - seconds) < NEAR_S)

    def ahead_s(self) -> float:
        """Return by how many seconds the server's clock is ahead of the true one."""
        return float(self.server.value(f"select {self._now}")) - time.time()

    @property
    def url(self) -> str:
        """The address of a database on it."""
        if isinstance(self.server, PostgresServer):
            return self.server.url()
        server: MariaDBServer = self.server
        return server.url(database=MYSQL_DATABASE)


@pytest.fixture
def clocked_postgres(postgres_fleet: PostgresFleet, postgres_kind: str) -> Iterator[ClockedServer]:
    """Yield a server of the test's own with a clock that jumps."""
    server = postgres_fleet.copied_server(postgres_kind)
    clocked = ClockedServer(server, "extract(epoch from clock_timestamp())::float8")
    with server:
        yield clocked


@pytest.fixture
def clocked_mysql(mysql_fleet: MariaDBFleet) -> Iterator[ClockedServer]:
    """Yield a server of the test's own with a clock that jumps, and a database on it."""
    server = mysql_fleet.new_server()
    clocked = ClockedServer(server, "unix_timestamp(sysdate(6))")
    with server:
        server.rows(f"create database {MYSQL_DATABASE}")
        yield clocked
