"""The caller connection: answers a guard's requests inside the caller's own sqlite3 transaction.

Promise: the marks that it reads stay valid until the transaction ends, because it holds the file's write lock from
`Join` on. A transaction with an older snapshot of the file is refused, and so is a connection to another file.
Never: begins, commits or rolls back the caller's transaction.
"""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from fencelock.errors import GuardError, UnfencedWriteError
from fencelock.model import Mark
from fencelock.protocol import guard_requests as ask
from fencelock.stores.sqlite.connection.errors import FAULTS
from fencelock.stores.sqlite.guard.block import SQLiteBlockConnection
from fencelock.stores.sqlite.guard.marks import SQL, SQLiteMarks, trigger_message
from fencelock.stores.sqlite.guard.protection import read_protections


class SQLiteCallerBase:
    """The common part of caller and framework connections, which are not the guard's own."""

    def __init__(self, native: Any, marks: SQLiteMarks, path: Path) -> None:
        self.native = native
        self._path = path
        self._marks = marks
        self._database = SQLiteBlockConnection(path)

    def _check_file(self) -> None:
        path = self._path
        files = {name: file for _, name, file in self._marks.ask("PRAGMA database_list")}
        main = files["main"]
        if not (main and os.path.exists(path) and os.path.samefile(main, path)):
            raise GuardError(
                f"the connection's main file is {main or 'none'}, and this guard is for {path}: pass a "
                f"connection to that file"
            )

    def perform(self, request: Any) -> Any:
        """Answer one request; the caller's transaction stays open whatever happens."""
        try:
            return self._ANSWERS[type(request)](self, request)
        except FAULTS as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT:
                raise GuardError(
                    "the transaction's snapshot of the file is older than its last change, and perhaps older than the "
                    "seal: begin it again, with BEGIN IMMEDIATE and after guard.seal(lease)"
                ) from error
            message = trigger_message(error)
            raise GuardError(message) if message else self._database.map_error(error) from error

    def rollback(self) -> None:
        """Leave the transaction to its owner."""

    def close(self) -> None:
        """Leave the connection to its owner."""

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return the guard's error if a trigger refused a write; add a note if a COMMIT ran inside the block."""
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            error.add_note("fencelock: if this was your COMMIT, leave the block of guard.check() first, then commit")
        message = trigger_message(error)
        return UnfencedWriteError(message) if message else None

    def _join(self, _: ask.Join) -> bool:
        if self._marks.has_schema():
            self._marks.native.execute(SQL.hold_marks)
        return False

    def _read_marks(self, request: ask.ReadMarks) -> dict[str, Mark]:
        return self._marks.read(request.resources)

    def _read_protections(self, request: ask.ReadProtections) -> tuple[Any, ...]:
        return read_protections(self._marks, request.resource)

    def _record_refusal(self, request: ask.RecordRefusal) -> None:
        self._marks.record_refusal(request.resource, request.kind)

    def _present(self, request: ask.Present) -> tuple[str, ...]:
        if not self._marks.ask("PRAGMA foreign_keys")[0][0]:
            raise GuardError(
                "foreign keys are off on this connection, and only they keep a seal from being committed: execute "
                "PRAGMA foreign_keys = ON before you begin, or use guard.transaction(lease)"
            )
        return self._marks.present(request.resources, request.sequencer)

    def _unpresent(self, request: ask.Unpresent) -> None:
        if not self.native.in_transaction or not self._marks.unpresent(request.resources):
            raise self._ended_error()

    def _ended_error(self) -> GuardError:
        return GuardError(
            "the transaction ended inside the block of guard.check(): what it wrote to protected tables was rolled "
            "back. Leave that block first, then commit"
        )

    _ANSWERS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        ask.Join: _join,
        ask.Present: _present,
        ask.Unpresent: _unpresent,
        ask.ReadMarks: _read_marks,
        ask.ReadProtections: _read_protections,
        ask.RecordRefusal: _record_refusal,
    }


class SQLiteCallerConnection(SQLiteCallerBase):
    """The caller's connection, inside a transaction that the caller has begun."""

    def __init__(self, native: Any, path: Path) -> None:
        if not isinstance(native, sqlite3.Connection):
            raise GuardError(
                f"connection must be the sqlite3.Connection of your own transaction, not {type(native).__name__}"
            )
        if not native.in_transaction:
            raise GuardError(
                "the connection is not in a transaction, so a check would not hold for the next write: execute "
                "BEGIN IMMEDIATE first, or use guard.transaction(lease)"
            )
        super().__init__(native, SQLiteMarks(native, path), path)
        self._check_file()
