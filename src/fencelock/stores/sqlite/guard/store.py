"""The guard of a SQLite file: marks beside the data, and triggers by which the file itself refuses stale writers.

Promise: constructing a guard opens nothing and creates no file. A few connections are kept for reuse. A connection that
a user changed is closed instead, and one that a user still refers to is given to no other block (G11), so that a kept
reference cannot write in a later block.
Limit: a holder that is frozen *inside* a write transaction blocks the file for all others until its process ends, so
keep slow work out of guarded blocks.
"""

import os
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from fencelock.errors import SourceError
from fencelock.model import Finding
from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.draining import drained
from fencelock.stores.errors import refused_finding
from fencelock.stores.sqlite.connection.database import path_of
from fencelock.stores.sqlite.connection.removal import uninstall
from fencelock.stores.sqlite.guard import inspection
from fencelock.stores.sqlite.guard.block import SQLiteBlockConnection, check_exists
from fencelock.stores.sqlite.guard.caller import SQLiteCallerConnection
from fencelock.stores.sqlite.guard.connection import SQLiteGuardConnection
from fencelock.stores.sqlite.guard.framework import SQLiteFrameworkConnection
from fencelock.stores.sqlite.guard.marks import SCHEMA, TABLES, SQLiteMarks

MAX_IDLE_CONNECTIONS = 8
"""Two per thread for a few threads: the variable of a `with` block refers to one until the next block gets another."""


class SQLiteIdleConnections:
    """The connections to one file that no block uses at the moment; the most recently used one is on the right."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: deque[SQLiteGuardConnection] = deque()
        self._is_closed = False

    def take(self) -> SQLiteGuardConnection:
        """Return a connection that no other block uses; it opens at its first use."""
        for _ in range(len(self._idle)):
            with suppress(IndexError):  # Another thread took the last one.
                # The rightmost has the warmest cache. One that a user still refers to goes to the left, where
                # connections are closed first.
                connection = self._idle.pop()
                if connection.database.is_ready():
                    return connection
                self._idle.appendleft(connection)
        return SQLiteGuardConnection(SQLiteBlockConnection(self._path), self.give_back)

    def give_back(self, connection: SQLiteGuardConnection) -> None:
        """Keep the connection for reuse, unless its user has changed it; close the leftmost if there are too many."""
        if not connection.database.is_unchanged():
            connection.database.close()
            return
        connection.database.watch.is_idle = True
        self._idle.append(connection)
        if len(self._idle) > MAX_IDLE_CONNECTIONS:
            with suppress(IndexError):  # Another thread took it.
                self._idle.popleft().database.close()
        # Looked at last: a `close` before the append has not seen this connection.
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Close the idle connections now, and each other one when it is given back."""
        self._is_closed = True
        for connection in drained(self._idle):
            connection.database.close()


class SQLiteGuard:
    """A file that keeps marks and enforces them."""

    capabilities = GuardCapabilities(enforced_by="store")
    has_transactional_ddl = True

    def __init__(self, url: str) -> None:
        self.path = Path(os.path.realpath(path_of(url)))
        self.url = f"sqlite:///{self.path}"
        self._idle = SQLiteIdleConnections(self.path)
        weakref.finalize(self, self._idle.close)

    def connect(self) -> SQLiteGuardConnection:
        """Return a connection of the guard's own; it opens at its first use."""
        return self._idle.take()

    def caller_connection(self, native: Any) -> SQLiteCallerConnection:
        """Return a guard connection over the caller's sqlite3 connection; GuardError if it is in no transaction."""
        return SQLiteCallerConnection(native, self.path)

    def framework_connection(self, connection: Any, driver: Any, paramstyle: str) -> SQLiteFrameworkConnection:
        """Return a guard connection over a framework's; all drivers of SQLite accept SQLite's own parameter style."""
        return SQLiteFrameworkConnection(connection, driver, self.path)

    def install(self) -> None:
        """Check that the file is there; the schema is created with the first mark."""
        # Not opened: a caller's transaction may hold its locks, and it may use another library of SQLite.
        check_exists(self.path)

    def check_tables(self, names: tuple[str, ...]) -> None:
        """Do nothing: the schema and the triggers are made in one transaction."""

    def is_installed(self) -> bool:
        """Return whether the file has the guard's half; SchemaError if it is another version's."""
        if not self.path.exists():
            return False
        database = SQLiteBlockConnection(self.path)
        try:
            return database.read(lambda: SQLiteMarks(database.native, self.path).has_schema())
        finally:
            database.close()

    def check_removal(self) -> None:
        """Do nothing: SQLite drops a table whatever refers to it."""

    def uninstall(self) -> bool:
        """Drop the guard's tables, with everything in them, and its triggers on all tables; the file stays."""
        return uninstall(self.path, SCHEMA.created("TABLE"), drops_triggers=True)

    def repair(self) -> None:
        """Create again what somebody has dropped of the schema; do nothing where there is none."""
        database = SQLiteBlockConnection(self.path)
        try:
            database.transact(lambda: _repair(SQLiteMarks(database.native, self.path)), to_write=True)
        finally:
            database.close()

    def examine(self) -> list[Finding]:
        """Return the findings about this file's setup."""
        database = SQLiteBlockConnection(self.path)
        try:
            return database.read(lambda: inspection.examine(SQLiteMarks(database.native, self.path), self.url))
        except SourceError as error:
            return [refused_finding("guard-refused", error)]
        finally:
            database.close()


def _repair(marks: SQLiteMarks) -> None:
    if 0 < len(TABLES - marks.read_names()) < len(TABLES):
        marks.complete_schema()
