"""The guard of a PostgreSQL database: marks beside the data, and triggers by which the database refuses stale writers.

Promise: making one opens nothing; a few connections are kept for reuse, and one that its user has changed is closed
instead. A holder that is frozen inside a guarded transaction delays others no longer than its lease: the server ends
its transaction. `examine` reports a role with the rights of the tables' owner; nothing can prevent what it does.
"""

from typing import Any, cast

import psycopg

from fencelock.errors import FencelockError
from fencelock.model import Finding
from fencelock.stores.errors import GUARD_PART
from fencelock.stores.postgres.connection.client import FORKS, is_alive, open_async_connection, open_connection
from fencelock.stores.postgres.connection.errors import error_mapper
from fencelock.stores.postgres.connection.install import install, is_installed, uninstall
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo, parse_url
from fencelock.stores.postgres.guard.block import (
    REQUEST_TIMEOUT_S,
    AsyncPostgresBlockConnection,
    PostgresBlockConnection,
)
from fencelock.stores.postgres.guard.caller import (
    AsyncPostgresCallerConnection,
    PostgresCallerConnection,
    PostgresDriverConnection,
    is_other_drivers,
)
from fencelock.stores.postgres.guard.connection import AsyncPostgresGuardConnection, PostgresGuardConnection
from fencelock.stores.postgres.guard.errors import map_request_error
from fencelock.stores.postgres.guard.framework import PostgresFrameworkConnection
from fencelock.stores.postgres.guard.inspection import findings
from fencelock.stores.postgres.guard.protection import check_tables
from fencelock.stores.sql.guard import SCHEMA_NUMBER
from fencelock.stores.sql.guard_store import AsyncIdleConnections, GuardStoreBase, IdleConnections
from fencelock.stores.sql.inspection import guard_refused
from fencelock.stores.statements import statements

SCHEMA = statements(__package__, "schema.sql")
FUNCTIONS = tuple(
    statements(__package__, f"functions_{name}.sql")
    for name in ("rights", "present", "triggers", "effects", "marks", "floors")
)
"""In the order in which they are installed."""
PROTECTION = statements(__package__, "protection.sql")


def open_block_connection(info: PostgresConnectionInfo) -> PostgresBlockConnection:
    """Return a new connection for blocks."""
    return cast("PostgresBlockConnection", open_connection(info, REQUEST_TIMEOUT_S, PostgresBlockConnection))


async def open_async_block_connection(info: PostgresConnectionInfo) -> AsyncPostgresBlockConnection:
    """Return a new connection of the running loop for blocks."""
    return cast(
        "AsyncPostgresBlockConnection",
        await open_async_connection(info, REQUEST_TIMEOUT_S, AsyncPostgresBlockConnection),
    )


class PostgresGuard(GuardStoreBase[PostgresBlockConnection, AsyncPostgresBlockConnection]):
    """A database that keeps marks and enforces them."""

    has_transactional_ddl = True

    def __init__(self, url: str) -> None:
        info = self.info = parse_url(url)
        super().__init__(
            info.url,
            IdleConnections(lambda: open_block_connection(info), is_alive, FORKS.close),
            AsyncIdleConnections(lambda: open_async_block_connection(info), is_alive, FORKS.close),
        )

    def connect(self) -> PostgresGuardConnection:
        """Return a connection of the guard's own, which opens with its first request."""
        return PostgresGuardConnection(self.info, self._idle)

    def connect_async(self) -> AsyncPostgresGuardConnection:
        """Return a connection for the running loop, which opens with its first request."""
        return AsyncPostgresGuardConnection(self.info, self._async_idle)

    def caller_connection(self, native: Any) -> PostgresCallerConnection | PostgresDriverConnection:
        """Use the caller's psycopg.Connection, or psycopg2's or pg8000's, which is inside a transaction; GuardError if
        it is not.
        """
        if is_other_drivers(native):
            return PostgresDriverConnection(native, self.info)
        return PostgresCallerConnection(native, self.info)

    def async_caller_connection(self, native: Any) -> AsyncPostgresCallerConnection:
        """Use the caller's psycopg.AsyncConnection, which is inside a transaction; GuardError if it is not."""
        return AsyncPostgresCallerConnection(native, self.info)

    def framework_connection(self, connection: Any, driver: Any, paramstyle: str) -> PostgresFrameworkConnection:
        """Use a framework's connection, with any driver."""
        return PostgresFrameworkConnection(connection, driver, self.info, paramstyle)

    def install(self) -> None:
        """Create the schema if there is none; safe to run concurrently."""
        files = (SCHEMA, *FUNCTIONS, PROTECTION)
        install(self.info, is_repairable=True, part=GUARD_PART, table="guard", number=SCHEMA_NUMBER, files=files)

    def is_installed(self) -> bool:
        """Return whether the database has the guard's half; SchemaError if it is another version's."""
        return is_installed(self.info, part=GUARD_PART, table="guard", number=SCHEMA_NUMBER)

    def check_removal(self) -> None:
        """Drop the guard's half and roll back: SourceError if somebody else's object needs one of it."""
        uninstall(self.info, files=(SCHEMA, *FUNCTIONS, PROTECTION), is_rehearsal=True)

    def uninstall(self) -> bool:
        """Drop the guard's half of the schema, with everything in it, and its triggers on all tables."""
        return uninstall(self.info, files=(SCHEMA, *FUNCTIONS, PROTECTION))

    def repair(self) -> None:
        """Create again what somebody has dropped of the schema; do nothing where there is none."""
        with open_connection(self.info, REQUEST_TIMEOUT_S) as native:
            ((is_left,),) = native.execute("SELECT to_regprocedure('fencelock.enforce()') IS NOT NULL").fetchall()
        if is_left:
            self.install()

    def check_tables(self, names: tuple[str, ...]) -> None:
        """Raise GuardError if there is no schema yet, and one of these tables does not exist."""
        if not self.is_installed():
            with error_mapper(self.info), open_connection(self.info, REQUEST_TIMEOUT_S) as native:
                check_tables(native, names)

    def examine(self) -> list[Finding]:
        """Return what in this database's setup breaks the guard's guarantees."""
        try:
            with open_connection(self.info, REQUEST_TIMEOUT_S) as native:
                return findings(native, self.info)
        except (FencelockError, psycopg.Error) as error:
            return guard_refused(map_request_error(error, self.info, is_commit=False) or error)
