"""The guard of a PostgreSQL database: marks beside the data, and triggers by which the database refuses stale writers.

Promise: making one opens nothing; connections are kept for reuse, a few, and one whose user changed it is closed
instead. Whoever is frozen inside a guarded transaction holds nobody up for longer than their lease: the server ends it.
What a role with the rights of the tables' owner can do is said, and not prevented.
"""

import asyncio
import weakref
from collections import deque
from typing import Any, cast

import psycopg

from fenceline.errors import FencelineError
from fenceline.model import Finding
from fenceline.stores.postgres import install
from fenceline.stores.postgres.adopted import AdoptedConnection, AsyncAdoptedConnection
from fenceline.stores.postgres.borrowed import BorrowedConnection
from fenceline.stores.postgres.client import is_alive, open_async_connection, open_connection
from fenceline.stores.postgres.conninfo import Place, place_of
from fenceline.stores.postgres.forks import FORKS
from fenceline.stores.postgres.guard_connection import AsyncGuardConnection, GuardConnection
from fenceline.stores.postgres.guard_errors import translated
from fenceline.stores.postgres.guard_inspection import findings
from fenceline.stores.postgres.guard_speech import SCHEMA_NUMBER
from fenceline.stores.postgres.lent import PATIENCE_S, AsyncLentConnection, LentConnection
from fenceline.stores.statements import statements

MAX_IDLE_CONNECTIONS = 16
"""Connections that one guard keeps open for its next transactions."""
SCHEMA = statements(__package__, "guard_schema.sql")
FUNCTIONS = statements(__package__, "guard_functions.sql")
PROTECTION = statements(__package__, "guard_protection.sql")
PART = "guard"


class IdleConnections:
    """The connections to one database that nobody uses at the moment."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._idle: deque[LentConnection] = deque()
        self._is_closed = False

    def take(self) -> LentConnection:
        """Return a connection that is nobody else's."""
        while self._idle:
            native = self._idle.pop()
            if is_alive(native):
                return native
            FORKS.close(native)
        return cast("LentConnection", open_connection(self._place, PATIENCE_S, LentConnection))

    def give_back(self, native: LentConnection) -> None:
        """Keep the connection for the next one, unless there are enough, or its user has changed it."""
        if not self._is_closed and len(self._idle) < MAX_IDLE_CONNECTIONS and native.is_as_lent():
            self._idle.append(native)
        else:
            FORKS.close(native)

    def close(self) -> None:
        """Close what is idle, and each other connection when it is given back."""
        self._is_closed = True
        while self._idle:
            FORKS.close(self._idle.pop())


class AsyncIdleConnections:
    """The same for event loops; a connection stays with its loop."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._idle: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, deque[AsyncLentConnection]]
        self._idle = weakref.WeakKeyDictionary()
        self._is_closed = False

    async def take(self) -> AsyncLentConnection:
        """Return a connection that is nobody else's."""
        idle = self._of_this_loop()
        while idle:
            native = idle.pop()
            if is_alive(native):
                return native
            FORKS.close(native)
        return cast("AsyncLentConnection", await open_async_connection(self._place, PATIENCE_S, AsyncLentConnection))

    def give_back(self, native: AsyncLentConnection) -> None:
        """Keep the connection for the next one, unless there are enough, or its user has changed it."""
        idle = self._of_this_loop()
        if not self._is_closed and len(idle) < MAX_IDLE_CONNECTIONS and native.is_as_lent():
            idle.append(native)
        else:
            FORKS.close(native)

    def _of_this_loop(self) -> deque[AsyncLentConnection]:
        return self._idle.setdefault(asyncio.get_running_loop(), deque())

    def close(self) -> None:
        """Close what is idle, and each other connection when it is given back."""
        self._is_closed = True
        for idle in self._idle.values():
            while idle:
                FORKS.close(idle.pop())


class PostgresGuard:
    """A database that keeps marks and enforces them."""

    speaks_asyncio = True

    def __init__(self, url: str) -> None:
        self.place = place_of(url)
        self.url = self.place.url
        self._idle = IdleConnections(self.place)
        self._async_idle = AsyncIdleConnections(self.place)
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
        except (FencelineError, psycopg.Error) as error:
            said = translated(error, self.place, is_commit=False) or error
            return [Finding("guard-refused", str(said), "do what the message says, then run doctor again")]
