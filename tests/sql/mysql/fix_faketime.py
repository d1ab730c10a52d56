"""A MariaDB server whose clock jumps, by the means of PostgreSQL's."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers import wait_until
from tests.private_server import give
from tests.servers import need
from tests.sql.mysql.fix_mysql import Fleet
from tests.sql.mysql.fix_server import MySQLServer
from tests.sql.postgres.fix_faketime import LIBRARY, NEAR_S


@dataclass(frozen=True, slots=True)
class ClockedServer:
    """A running server, and the file that says how far its clock is off."""

    server: MySQLServer
    offset: Path

    @property
    def url(self) -> str:
        """The address of a database on it."""
        return self.server.url(database="clocked")

    def jump(self, seconds: int) -> None:
        """Set the server's clock `seconds` apart from the true one, and return when it is; 0 is the true time."""
        fresh = self.offset.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}s\n")
        give(fresh)
        fresh.replace(self.offset)
        wait_until(lambda: abs(self.ahead_s() - seconds) < NEAR_S)

    def ahead_s(self) -> float:
        """Return by how many seconds the server's clock is ahead of the true one."""
        return float(self.server.value("select unix_timestamp(sysdate(6))")) - time.time()


@pytest.fixture
def clocked_mysql(mysql_fleet: Fleet) -> Iterator[ClockedServer]:
    """Yield a server of the test's own with a clock that jumps."""
    server = mysql_fleet.new_server()
    clocked = ClockedServer(server, server.folder / "offset")
    clocked.offset.write_text("+0s\n")
    give(clocked.offset)
    server.variables |= {
        "LD_PRELOAD": need(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clocked.offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with server:
        server.rows("create database clocked")
        yield clocked
