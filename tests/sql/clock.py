"""A server whose wall clock a test moves, forward and back, while it runs; the monotonic clock stays true."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fencelock_lab.servers.faketime import ServerClock
from tests.sql.dialect import SqlDialect
from tests.support.helpers import wait_until

NEAR_S = 60.0
"""Two readings of a clock around a moved one are nearer than this; moves are longer."""


class ClockedServer:
    """A server, not started yet, with a clock that jumps."""

    def __init__(self, sql: SqlDialect) -> None:
        self.sql = sql
        self.server: Any = sql.new_server()
        self.database: Any = None
        self._clock = ServerClock(self.server)

    def jump(self, seconds: int) -> None:
        """Set the server's clock `seconds` apart from the true one, and return when it is; 0 is the true time."""
        self._clock.set(seconds)
        wait_until(lambda: abs(self.ahead_s() - seconds) < NEAR_S)

    def ahead_s(self) -> float:
        """Return by how many seconds the server's clock is ahead of the true one."""
        return float(self.server.value(self.sql.clock_s)) - time.time()


@contextmanager
def clocked_server(sql: SqlDialect) -> Iterator[ClockedServer]:
    """Have a running server of the test's own with a clock that jumps, and a database on it."""
    clocked = ClockedServer(sql)
    with clocked.server as server:
        clocked.database = sql.new_database(server, "clocked")
        yield clocked
