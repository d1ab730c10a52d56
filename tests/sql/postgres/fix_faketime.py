"""A server whose wall clock a test moves, forward and back, while it runs. Its monotonic clock stays true."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers import wait_until
from tests.private_server import give
from tests.servers import need
from tests.sql.postgres.fix_postgres import Fleet
from tests.sql.postgres.fix_server import PostgresServer

LIBRARY = "/usr/lib/*/faketime/libfaketime.so.1"

NEAR_S = 60.0
"""Two readings of a clock around a moved one are nearer than this; moves are longer."""


@dataclass(frozen=True, slots=True)
class ClockedServer:
    """A running server, and the file that says how far its clock is off."""

    server: PostgresServer
    offset: Path

    def jump(self, seconds: int) -> None:
        """Set the server's clock `seconds` apart from the true one, and return when it is; 0 is the true time."""
        fresh = self.offset.with_suffix(".new")
        fresh.write_text(f"{seconds:+d}s\n")
        give(fresh)
        fresh.replace(self.offset)
        wait_until(lambda: abs(self.ahead_s() - seconds) < NEAR_S)

    def ahead_s(self) -> float:
        """Return by how many seconds the server's clock is ahead of the true one."""
        return self.server.value("select extract(epoch from clock_timestamp())::float8") - time.time()


@pytest.fixture
def clocked_postgres(postgres_fleet: Fleet, postgres_kind: str) -> Iterator[ClockedServer]:
    """Yield a server of the test's own with a clock that jumps."""
    server = postgres_fleet.copied_server(postgres_kind)
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
        yield clocked
