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
from fencelock.stores.postgres.connection.client import is_alive, open_async_connection, open_connection
from fencelock.stores.postgres.connection.forks import FORKS
from fencelock.stores.postgres.connection.url import Place, place_of
from fencelock.stores.postgres.guard.block import PATIENCE_S, AsyncLentConnection, LentConnection
from fencelock.stores.postgres.guard.caller import AdoptedConnection, AsyncAdoptedConnection
from fencelock.stores.postgres.guard.codec import SCHEMA_NUMBER
from fencelock.stores.postgres.guard.connection import AsyncGuardConnection, GuardConnection
from fencelock.stores.postgres.guard.errors import translated
from fencelock.stores.postgres.guard.framework import BorrowedConnection
from fencelock.stores.postgres.guard.inspection import findings
from fencelock.stores.sql.idle import AsyncIdleConnections, IdleConnections
from fencelock.stores.statements import statements

SCHEMA = statements(__package__, "schema.sql")
FUNCTIONS = statements(__package__, "functions.sql")
PROTECTION = statements(__package__, "protection.sql")
PART = "guard"


def open_lent(place: Place) -> LentConnection:
    """Return a connection for blocks."""
    return cast("LentConnection", open_connection(place, PATIENCE_S, LentConnection))


async def open_async_lent(place: Place) -> AsyncLentConnection:
    """The same for an event loop."""
    return cast("AsyncLentConnection", await open_async_connection(place, PATIENCE_S, AsyncLentConnection))


class PostgresGuard:
    """A database that keeps marks and enforces them."""

    speaks_asyncio = True

    def __init__(self, url: str) -> None:
        self.place = place_of(url)
        self.url = self.place.url
        place = self.place
        self._idle = IdleConnections(lambda: open_lent(place), is_alive, FORKS.close)
        self._async_idle = AsyncIdleConnections(lambda: open_async_lent(place), is_alive, FORKS.close)
        weakref.finalize(self, self._idle.close)
        weakref.finalize(self, self._async_idle.close)

    def connect(self) -> GuardConnection:
        """Return a connection of the guard's own, which opens with its first request."""
        return GuardConnection(self.place, self._idle.take, self._idle.give_back)

    def connect_async(self) -> AsyncGuardConnection:
        """Return a connection for the running loop, which opens with its first request."""
        return AsyncGuardConnection(self.place, self._async_idle.take, self._async_idle.give_back)

    def adopt(self, native: Any) -> AdoptedConnection:
        """Speak over the caller's psycopg.Connection, which is inside a transaction; GuardError if it is not."""
        return AdoptedConnection(native, self.place)

    def adopt_async(self, native: Any) -> AsyncAdoptedConnection:
        """Speak over the caller's psycopg.AsyncConnection, which is inside a transaction; GuardError if it is not."""
        return AsyncAdoptedConnection(native, self.place)

    def borrow(self, connection: Any, driver: Any, paramstyle: str) -> BorrowedConnection:
        """Speak through a framework's connection, whichever driver it has."""
        return BorrowedConnection(connection, driver, self.place, paramstyle)

    def install(self) -> None:
        """Make the schema if there is none; safe when run concurrently."""
        parts = (SCHEMA, FUNCTIONS, PROTECTION)
        install.install(self.place, part=PART, table="guard", number=SCHEMA_NUMBER, parts=parts)

    def examine(self) -> list[Finding]:
        """Return what in this database's set-up would break the promise."""
        try:
            with open_connection(self.place, PATIENCE_S) as native:
                return findings(native, self.place)
        except (FencelockError, psycopg.Error) as error:
            said = translated(error, self.place, is_commit=False) or error
            return [Finding("guard-refused", str(said), "do what the message says, then run doctor again")]
