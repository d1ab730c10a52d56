"""The guard of a PostgreSQL database: marks beside the data, and triggers by which the database refuses stale writers.

Promise: making one opens nothing; connections are kept for reuse, a few, and one whose user changed it is closed
instead. Whoever is frozen inside a guarded transaction holds nobody up for longer than their lease: the server ends it.
What a role with the rights of the tables' owner can do is said, and not prevented.
"""

import weakref
from typing import Any, cast

import psycopg

from fencelock.errors import FencelockError
from fencelock.model import Finding
from fencelock.stores.postgres.connection import install
from fencelock.stores.postgres.connection.client import FORKS, is_alive, open_async_connection, open_connection
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo, parse_url
from fencelock.stores.postgres.guard.block import (
    REQUEST_TIMEOUT_S,
    AsyncPostgresBlockConnection,
    PostgresBlockConnection,
)
from fencelock.stores.postgres.guard.caller import AsyncPostgresCallerConnection, PostgresCallerConnection
from fencelock.stores.postgres.guard.codec import SCHEMA_NUMBER
from fencelock.stores.postgres.guard.connection import AsyncPostgresGuardConnection, PostgresGuardConnection
from fencelock.stores.postgres.guard.errors import map_guard_error
from fencelock.stores.postgres.guard.framework import PostgresFrameworkConnection
from fencelock.stores.postgres.guard.inspection import findings
from fencelock.stores.sql.idle import AsyncIdleConnections, IdleConnections
from fencelock.stores.statements import statements

SCHEMA = statements(__package__, "schema.sql")
FUNCTIONS = statements(__package__, "functions.sql")
PROTECTION = statements(__package__, "protection.sql")
PART = "guard"


def open_block_connection(info: PostgresConnectionInfo) -> PostgresBlockConnection:
    """Return a connection for blocks."""
    return cast("PostgresBlockConnection", open_connection(info, REQUEST_TIMEOUT_S, PostgresBlockConnection))


async def open_async_block_connection(info: PostgresConnectionInfo) -> AsyncPostgresBlockConnection:
    """The same for an event loop."""
    return cast(
        "AsyncPostgresBlockConnection",
        await open_async_connection(info, REQUEST_TIMEOUT_S, AsyncPostgresBlockConnection),
    )


class PostgresGuard:
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

    def connect(self) -> PostgresGuardConnection:
        """Return a connection of the guard's own, which opens with its first request."""
        return PostgresGuardConnection(self.info, self._idle.take, self._idle.give_back)

    def connect_async(self) -> AsyncPostgresGuardConnection:
        """Return a connection for the running loop, which opens with its first request."""
        return AsyncPostgresGuardConnection(self.info, self._async_idle.take, self._async_idle.give_back)

    def caller_connection(self, native: Any) -> PostgresCallerConnection:
        """Speak over the caller's psycopg.Connection, which is inside a transaction; GuardError if it is not."""
        return PostgresCallerConnection(native, self.info)

    def async_caller_connection(self, native: Any) -> AsyncPostgresCallerConnection:
        """Speak over the caller's psycopg.AsyncConnection, which is inside a transaction; GuardError if it is not."""
        return AsyncPostgresCallerConnection(native, self.info)

    def framework_connection(self, connection: Any, driver: Any, paramstyle: str) -> PostgresFrameworkConnection:
        """Speak through a framework's connection, whichever driver it has."""
        return PostgresFrameworkConnection(connection, driver, self.info, paramstyle)

    def install(self) -> None:
        """Make the schema if there is none; safe when run concurrently."""
        files = (SCHEMA, FUNCTIONS, PROTECTION)
        install.install(self.info, part=PART, table="guard", number=SCHEMA_NUMBER, files=files)

    def examine(self) -> list[Finding]:
        """Return what in this database's set-up would break the promise."""
        try:
            with open_connection(self.info, REQUEST_TIMEOUT_S) as native:
                return findings(native, self.info)
        except (FencelockError, psycopg.Error) as error:
            said = map_guard_error(error, self.info, is_commit=False) or error
            return [Finding("guard-refused", str(said), "do what the message says, then run doctor again")]
