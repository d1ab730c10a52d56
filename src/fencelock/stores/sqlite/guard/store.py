"""The guard of a SQLite file: marks beside the data, and triggers by which the file itself refuses stale writers.

Promise: making one opens nothing and creates no file; connections are kept for reuse, a few. One that a user changed
is closed instead, and one that a user still refers to is nobody else's: what was kept of it writes in no later block.
What SQLite cannot give is said: a holder frozen *inside* a write transaction keeps everybody else out of the file until
it is ended, so keep other work out of it.
"""

import os
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from fencelock.errors import SourceError
from fencelock.model import Finding
from fencelock.protocol.guard_requests import OBSERVE
from fencelock.stores.sqlite.connection.database import path_of
from fencelock.stores.sqlite.guard.block import SQLiteBlockConnection
from fencelock.stores.sqlite.guard.caller import SQLiteCallerConnection
from fencelock.stores.sqlite.guard.connection import SQLiteGuardConnection
from fencelock.stores.sqlite.guard.framework import SQLiteFrameworkConnection
from fencelock.stores.sqlite.guard.marks import SQL, SQLiteMarks
from fencelock.stores.sqlite.guard.protection import SQLiteProtectionEntry, read_entries

MAX_IDLE_CONNECTIONS = 8
"""Two for each of a few threads: the variable of a `with` block refers to one until the next block has the other."""


class SQLiteIdleConnections:
    """The connections to one file that no block uses at the moment, the one that was used last on the right."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._idle: deque[SQLiteGuardConnection] = deque()
        self._is_closed = False

    def take(self) -> SQLiteGuardConnection:
        """Return a connection that is nobody else's, which opens when it is first used."""
        for _ in range(len(self._idle)):
            with suppress(IndexError):  # Another thread was faster.
                # The last one has its cache filled. One that is kept goes where it is closed first.
                connection = self._idle.pop()
                if connection.database.is_ready():
                    return connection
                self._idle.appendleft(connection)
        return SQLiteGuardConnection(SQLiteBlockConnection(self._path), self.give_back)

    def give_back(self, connection: SQLiteGuardConnection) -> None:
        """Keep the connection for the next one, unless its user has changed it; of too many, close the leftmost."""
        watch = connection.database.watch
        if self._is_closed or watch.is_changed:
            connection.database.close()
            return
        watch.is_idle = True
        self._idle.append(connection)
        if len(self._idle) > MAX_IDLE_CONNECTIONS:
            self._close_leftmost()

    def _close_leftmost(self) -> None:
        with suppress(IndexError):  # Another thread was faster.
            self._idle.popleft().database.close()

    def close(self) -> None:
        """Close what is idle, and each other connection when it is given back."""
        self._is_closed = True
        while self._idle:
            self._close_leftmost()


class SQLiteGuard:
    """A file that keeps marks and enforces them."""

    speaks_asyncio = False

    def __init__(self, url: str) -> None:
        self.path = Path(os.path.realpath(path_of(url)))
        self.url = f"sqlite:///{self.path}"
        self._idle = SQLiteIdleConnections(self.path)
        weakref.finalize(self, self._idle.close)

    def connect(self) -> SQLiteGuardConnection:
        """Return a connection of the guard's own, which opens when it is first used."""
        return self._idle.take()

    def caller_connection(self, native: Any) -> SQLiteCallerConnection:
        """Speak over the caller's sqlite3 connection, which is inside a transaction; GuardError if it is not."""
        return SQLiteCallerConnection(native, self.path)

    def framework_connection(self, connection: Any, driver: Any, paramstyle: str) -> SQLiteFrameworkConnection:
        """Speak through a framework's connection; every driver of SQLite understands SQLite's own parameters."""
        return SQLiteFrameworkConnection(connection, driver, self.path)

    def install(self) -> None:
        """Do nothing: the schema is made when the first mark is written."""

    def examine(self) -> list[Finding]:
        """Return what in this file's set-up would break the promise."""
        database = SQLiteBlockConnection(self.path)
        try:
            return database.read(lambda: _findings(SQLiteMarks(database.native, self.path), self.url))
        except SourceError as error:
            return [Finding("guard-refused", str(error), "do what the message says, then run doctor again")]
        finally:
            database.close()


def _findings(marks: SQLiteMarks, url: str) -> list[Finding]:
    if not marks.has_schema():
        message = f"{url} holds no marks: nothing in it is guarded yet"
        return [Finding("no-marks", message, f"run `fencelock protect {url} --resource R --lock L --table T`")]
    entries = read_entries(marks)
    findings = [finding for entry in entries for finding in _entry_findings(entry, url)]
    guarded = {entry.resource for entry in entries}
    for mark in marks.read_all(None):
        if mark.resource not in guarded:
            message = f"resource {mark.resource!r} protects no table: only code that uses the guard is checked"
            remedy = f"run `fencelock protect {url} --resource … --lock … --table …`, unless all its data is elsewhere"
            findings.append(Finding("unprotected", message, remedy, mark.resource))
    if marks.ask(SQL.count_seals)[0][0]:
        message = f"{url} holds a committed seal: some client presented a token without PRAGMA foreign_keys = ON"
        remedy = "find that client; the next guarded transaction of the resource removes the seal"
        findings.append(Finding("committed-seal", message, remedy))
    return findings


def _entry_findings(entry: SQLiteProtectionEntry, url: str) -> list[Finding]:
    name = entry.table or entry.name
    if not entry.is_whole:
        message = (
            f"table {name!r} of resource {entry.resource!r} was protected, and its triggers are gone: it was dropped"
        )
        remedy = f"run `fencelock protect {url} …` again, as the last step of every migration that remakes a table"
        return [Finding("lost-protection", f"{message} or remade", remedy, entry.resource)]
    if entry.mode == OBSERVE:
        message = (
            f"table {name!r} of resource {entry.resource!r} is only observed: stale writes are counted and let through"
        )
        remedy = f"see `fencelock marks {url}`, then protect it with --mode enforce"
        return [Finding("only-observed", message, remedy, entry.resource)]
    return []
