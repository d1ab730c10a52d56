"""The guard of a MySQL or MariaDB database: marks beside the data, and triggers by which the database refuses stale
writers.

Promise: making one opens nothing; connections are kept for reuse, a few, and one whose user changed it is closed
instead. Whoever is frozen inside a guarded transaction holds nobody up for longer than their lease: the server ends it.
What an account with rights on the tables' definitions can do is said, and not prevented.
"""

import weakref
from typing import Any, cast

import pymysql

from fencelock.errors import FencelockError
from fencelock.model import Finding
from fencelock.stores.mysql.connection.client import FORKS, is_alive, open_async_connection, open_connection
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo, parse_url
from fencelock.stores.mysql.connection.wire import results, results_async
from fencelock.stores.mysql.guard import install as guard_install
from fencelock.stores.mysql.guard.block import REQUEST_TIMEOUT_S, AsyncMySQLBlockConnection, MySQLBlockConnection
from fencelock.stores.mysql.guard.caller import AsyncMySQLCallerConnection, MySQLCallerConnection
from fencelock.stores.mysql.guard.codec import SQL
from fencelock.stores.mysql.guard.connection import AsyncMySQLGuardConnection, MySQLGuardConnection
from fencelock.stores.mysql.guard.errors import map_guard_error
from fencelock.stores.mysql.guard.framework import MySQLFrameworkConnection
from fencelock.stores.mysql.guard.inspection import findings
from fencelock.stores.sql.idle import AsyncIdleConnections, IdleConnections


def open_block_connection(info: MySQLConnectionInfo) -> MySQLBlockConnection:
    """Return a connection that meets the server's own defaults, but for autocommit."""
    native = cast("MySQLBlockConnection", open_connection(info, REQUEST_TIMEOUT_S, MySQLBlockConnection))
    results(native, SQL.settle_lent)
    return native


async def open_async_block_connection(info: MySQLConnectionInfo) -> AsyncMySQLBlockConnection:
    """The same for an event loop."""
    native = cast(
        "AsyncMySQLBlockConnection", await open_async_connection(info, REQUEST_TIMEOUT_S, AsyncMySQLBlockConnection)
    )
    await results_async(native, SQL.settle_lent)
    return native


class MySQLGuard:
    """A database that keeps marks and enforces them."""

    speaks_asyncio = True

    def __init__(self, url: str) -> None:
        self.info = parse_url(url)
        self.url = self.info.url
        info = self.info
        self._idle = IdleConnections(lambda: open_block_connection(info), is_alive, FORKS.close)
        self._async_idle = AsyncIdleConnections(lambda: open_async_block_connection(info), is_alive, FORKS.close)
        weakref.finalize(self, self._idle.close)
        weakref.finalize(self, self._async_idle.close)

    def connect(self) -> MySQLGuardConnection:
        """Return a connection of the guard's own, which opens with its first request."""
        return MySQLGuardConnection(self.info, self._idle.take, self._idle.give_back)

    def connect_async(self) -> AsyncMySQLGuardConnection:
        """Return a connection for the running loop, which opens with its first request."""
        return AsyncMySQLGuardConnection(self.info, self._async_idle.take, self._async_idle.give_back)

    def caller_connection(self, native: Any) -> MySQLCallerConnection:
        """Speak over the caller's connection, which is inside a transaction; GuardError if it is not."""
        return MySQLCallerConnection(native, self.info)

    def async_caller_connection(self, native: Any) -> AsyncMySQLCallerConnection:
        """Speak over the caller's aiomysql connection, which is inside a transaction; GuardError if it is not."""
        return AsyncMySQLCallerConnection(native, self.info)

    def framework_connection(self, connection: Any, driver: Any, paramstyle: str) -> MySQLFrameworkConnection:
        """Speak through a framework's connection, whichever driver it has."""
        return MySQLFrameworkConnection(connection, self.info)

    def install(self) -> None:
        """Make the schema if there is none; safe when run concurrently."""
        guard_install.install(self.info)

    def examine(self) -> list[Finding]:
        """Return what in this database's set-up would break the promise."""
        try:
            native = open_connection(self.info, REQUEST_TIMEOUT_S)
            try:
                return findings(native, self.info)
            finally:
                FORKS.close(native)
        except (FencelockError, pymysql.Error) as error:
            said = map_guard_error(error, self.info, is_commit=False) or error
            return [Finding("guard-refused", str(said), "do what the message says, then run doctor again")]
