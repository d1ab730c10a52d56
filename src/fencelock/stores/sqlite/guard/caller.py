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
from fencelock.stores.errors import ended_in_part
from fencelock.stores.sqlite.connection.errors import FAULTS
from fencelock.stores.sqlite.guard.block import LEGACY_CONTROL, SQLiteBlockConnection
from fencelock.stores.sqlite.guard.marks import SQL, SQLiteMarks, trigger_message
from fencelock.stores.sqlite.guard.protection import (
    protect,
    read_entries,
    read_protections,
    record_names,
    restore,
    unprotect,
)


def _begins_by_itself(native: Any) -> bool:
    """Return whether the driver begins and commits transactions for its user, as Python's do by default."""
    is_legacy = getattr(native, "autocommit", LEGACY_CONTROL) == LEGACY_CONTROL
    return is_legacy and getattr(native, "isolation_level", None) is not None


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
        if not self.native.in_transaction:
            raise GuardError(
                "the connection is not in a transaction, so a check would not hold for the next write: execute "
                "BEGIN IMMEDIATE first, or use guard.transaction(lease)"
            )
        self._take_write_lock()
        return False

    def _take_write_lock(self) -> None:
        if self._marks.has_schema():
            self._marks.native.execute(SQL.hold_marks)

    def _hold_marks(self, _: ask.HoldMarks) -> None:
        if not self.native.in_transaction:
            if not _begins_by_itself(self.native):
                raise GuardError(
                    "the connection is not in a transaction, and a table is protected inside your own: execute BEGIN "
                    "IMMEDIATE first, or call it without connection=…"
                )
            # Python's drivers begin at the first INSERT or UPDATE, and DDL before that would commit by itself.
            self._marks.native.execute("BEGIN IMMEDIATE")
        self._check_file()
        self._take_write_lock()
        if self._marks.has_schema():
            # What follows may drop a renamed table, and with it the triggers that alone know its name.
            record_names(self._marks, read_entries(self._marks))

    def _set_savepoint(self, _: ask.SetSavepoint) -> None:
        self._marks.native.execute("SAVEPOINT fencelock")

    def _undo(self, _: ask.UndoToSavepoint) -> None:
        self._marks.native.execute("ROLLBACK TO fencelock")

    def _protect(self, request: ask.Protect) -> ask.Protected:
        return protect(self._marks, request)

    def _unprotect(self, request: ask.Unprotect) -> tuple[Any, ...]:
        return unprotect(self._marks, request.resource, request.tables)

    def _restore(self, request: ask.Restore) -> None:
        restore(self._marks, request.resource, request.tables)

    def _change_mark(self, request: ask.ChangeMark) -> None:
        audit_id = self._marks.write_audit(request.entry, is_implausible=request.is_implausible)
        self._marks.write(request.mark, audit_id)

    def _write_audit(self, request: ask.WriteAudit) -> None:
        self._marks.write_audit(request.entry)

    def _read_marks(self, request: ask.ReadMarks) -> dict[str, Mark]:
        return self._marks.read(request.resources)

    def _read_protections(self, request: ask.ReadProtections) -> tuple[Any, ...]:
        return read_protections(self._marks, request.resource)

    def _record_refusal(self, request: ask.RecordRefusal) -> None:
        self._marks.record_refusal(request.resource, request.kind)

    def _begin_effect(self, request: ask.BeginEffect) -> ask.Effect | None:
        return self._marks.begin_effect(request.resource, request.effect)

    def _read_effect(self, request: ask.ReadEffect) -> ask.Effect | None:
        return self._marks.read_effect(request.resource, request.key)

    def _write_effect(self, request: ask.WriteEffect) -> None:
        self._marks.write_effect(request.resource, request.effect)

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
        return ended_in_part(
            "the transaction ended inside the block of guard.check(): what it wrote to protected tables was rolled "
            "back, and what it wrote to other tables after that may have been committed. Leave that block first, then "
            "commit"
        )

    _ANSWERS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        ask.Join: _join,
        ask.HoldMarks: _hold_marks,
        ask.SetSavepoint: _set_savepoint,
        ask.UndoToSavepoint: _undo,
        ask.Protect: _protect,
        ask.Unprotect: _unprotect,
        ask.Restore: _restore,
        ask.ChangeMark: _change_mark,
        ask.WriteAudit: _write_audit,
        ask.Present: _present,
        ask.Unpresent: _unpresent,
        ask.BeginEffect: _begin_effect,
        ask.ReadEffect: _read_effect,
        ask.WriteEffect: _write_effect,
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
        super().__init__(native, SQLiteMarks(native, path), path)
        self._check_file()
