"""Answers a guard's requests over the guard's own connection to a SQLite file.

Promise: a transaction begins on the file that the path names at that moment, with the write lock and with the required
disk flush. A failed request leaves no transaction open.
"""

import sqlite3
from collections.abc import Callable
from typing import Any, ClassVar

from fencelock._flows.guarding import sealed_mark
from fencelock.errors import GuardError, UnfencedWriteError
from fencelock.model import Mark
from fencelock.protocol import guard_requests as ask
from fencelock.stores.errors import ended_in_part, unsupported
from fencelock.stores.sqlite.connection.errors import FAULTS
from fencelock.stores.sqlite.guard import purging
from fencelock.stores.sqlite.guard.block import SQLiteBlockConnection, is_denial
from fencelock.stores.sqlite.guard.marks import SQLiteMarks, trigger_message
from fencelock.stores.sqlite.guard.protection import check_mark_kept, protect, read_protections, unprotect


class SQLiteGuardConnection:
    """The guard's own connection. One thread at a time may use it, and any thread."""

    def __init__(self, database: SQLiteBlockConnection, give_back: Callable[["SQLiteGuardConnection"], None]) -> None:
        self.database = database
        self._give_back = give_back
        self._marks: SQLiteMarks | None = None
        self._is_in_block = False

    @property
    def native(self) -> sqlite3.Connection:
        """The sqlite3 connection that `guard.transaction` yields."""
        return self.database.native

    def perform(self, request: Any) -> Any:
        """Answer one request; a failure leaves no transaction open."""
        answer = self._ANSWERS.get(type(request))
        if answer is None:
            raise unsupported(request, f"sqlite:///{self.database.path}")
        watch = self.database.watch
        try:
            reply = answer(self, request)
            watch.raise_dropped()
        except FAULTS as error:
            self.rollback()
            watch.raise_dropped(error)
            if isinstance(error, sqlite3.IntegrityError) and isinstance(request, ask.Finish):
                # A deferred constraint of the user's own tables: sqlite3's error describes it best.
                raise
            message = trigger_message(error)
            raise GuardError(message) if message else self.database.map_error(error) from error
        except BaseException as error:
            self.rollback()
            watch.raise_dropped(error.__cause__ or error)
            raise
        return reply

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one; never raises."""
        was_in_block, self._is_in_block = self._is_in_block, False
        if was_in_block and not self.database.is_in_transaction():
            # The block ended the transaction past the authorizer. What else it did is unknown: no block gets it again.
            self.database.close()
        self.database.rollback()

    def close(self) -> None:
        """Roll back an open transaction and give the connection back for reuse; never raises."""
        self.rollback()
        self._give_back(self)

    # --- transactions ---
    def _begin(self, _: ask.Begin) -> None:
        database = self.database
        while True:
            database.flush_commits(is_flushed=True)
            database.begin_briefly()
            if self._is_begun():
                return

    def _commit(self, _: ask.Commit) -> None:
        self.database.commit()

    def _open(self, request: ask.Open) -> tuple[str, ...]:
        database = self.database
        while True:
            database.flush_commits(is_flushed=request.is_flushed)
            database.begin()
            if self._is_begun():
                break
        assert self._marks is not None
        not_ours = self._marks.present(request.resources, request.sequencer)
        database.give_to_block()
        self._is_in_block = True
        return not_ours

    def _is_begun(self) -> bool:
        """Return whether the transaction is on the file that the path names now; a restore may have replaced it."""
        native = self.database.native_on_current_file()
        if native is None:
            return False
        if self._marks is None or self._marks.native is not native:
            self._marks = SQLiteMarks(native, self.database.path)
        return True

    def _finish(self, request: ask.Finish) -> None:
        watch = self.database.watch
        watch.is_on = False
        watch.raise_dropped()
        if watch.attempt is not None:
            raise ended_inside_error(watch.attempt)
        try:
            # In a child that was forked inside the block, the connection is closed and cannot be opened.
            is_whole = self.native.in_transaction and self.marks.unpresent(request.resources)
        except sqlite3.ProgrammingError as error:
            raise GuardError(
                "the block closed the connection of its guarded transaction: nothing of it was written. Leave "
                "the connection open; the end of the block closes or keeps it"
            ) from error
        if not is_whole:
            raise rolled_back_error()
        self.database.commit()
        self._is_in_block = False

    @property
    def marks(self) -> SQLiteMarks:
        """The marks as the open transaction sees them."""
        assert self._marks is not None, "Begin or Open comes first"
        return self._marks

    # --- marks ---
    def _read_marks(self, request: ask.ReadMarks) -> dict[str, Mark]:
        return self.marks.read(request.resources)

    def _raise_marks(self, request: ask.RaiseMarks) -> None:
        for resource in request.resources:
            check_mark_kept(self.marks, resource)
            self.marks.write(sealed_mark(resource, request.sequencer))

    def _close_marks(self, request: ask.CloseMarks) -> None:
        for resource in request.resources:
            self.marks.close(resource, request.claim)

    def _change_mark(self, request: ask.ChangeMark) -> None:
        audit_id = self.marks.write_audit(request.entry, is_implausible=request.is_implausible)
        self.marks.write(request.mark, audit_id)

    def _write_audit(self, request: ask.WriteAudit) -> None:
        self.marks.write_audit(request.entry)

    # --- the floor of purged marks ---
    def _find_old_marks(self, request: ask.FindOldMarks) -> tuple[Mark, ...]:
        self.database.drop_if_replaced()
        return self.database.read(lambda: purging.find_old_marks(SQLiteMarks(self.native, self.database.path), request))

    def _purge_marks(self, request: ask.PurgeMarks) -> int:
        return purging.purge_marks(self.marks, request)

    def _set_floor(self, request: ask.SetFloor) -> None:
        purging.set_floor(self.marks, request)

    # --- effects ---
    def _begin_effect(self, request: ask.BeginEffect) -> ask.Effect | None:
        return self.marks.begin_effect(request.resource, request.effect)

    def _read_effect(self, request: ask.ReadEffect) -> ask.Effect | None:
        if self.database.is_in_transaction():
            return self.marks.read_effect(request.resource, request.key)
        marks = SQLiteMarks(self.native, self.database.path)
        return self.database.read(lambda: marks.read_effect(request.resource, request.key))

    def _write_effect(self, request: ask.WriteEffect) -> None:
        self.marks.write_effect(request.resource, request.effect)

    def _purge_effects(self, request: ask.PurgeEffects) -> int:
        self._begin(ask.Begin())
        count = self.marks.purge_effects(request.older_than_ms)
        self._commit(ask.Commit())
        return count

    # --- protection ---
    def _read_protections(self, request: ask.ReadProtections) -> tuple[Any, ...]:
        return read_protections(self.marks, request.resource)

    def _protect(self, request: ask.Protect) -> ask.Protected:
        return protect(self.marks, request)

    def _unprotect(self, request: ask.Unprotect) -> tuple[Any, ...]:
        return unprotect(self.marks, request.resource, request.tables)

    def _record_refusal(self, request: ask.RecordRefusal) -> None:
        self.marks.record_refusal(request.resource, request.kind)

    def _look(self, request: ask.InspectResources) -> ask.ResourceReport:
        self.database.drop_if_replaced()
        return self.database.read(
            lambda: read_everything(SQLiteMarks(self.native, self.database.path), request.resource)
        )

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return the GuardError for an error in the user's block; None if it is the user's own."""
        self.database.watch.raise_dropped(error)
        attempt = self.database.watch.attempt
        if attempt is not None and is_denial(error):
            return ended_inside_error(attempt)
        if self.database.watch.is_ended and is_denial(error):
            return rolled_back_error()
        message = trigger_message(error)
        return UnfencedWriteError(message) if message else None

    _ANSWERS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        ask.Begin: _begin,
        ask.Commit: _commit,
        ask.Open: _open,
        ask.Finish: _finish,
        ask.ReadMarks: _read_marks,
        ask.RaiseMarks: _raise_marks,
        ask.CloseMarks: _close_marks,
        ask.ChangeMark: _change_mark,
        ask.WriteAudit: _write_audit,
        ask.FindOldMarks: _find_old_marks,
        ask.PurgeMarks: _purge_marks,
        ask.SetFloor: _set_floor,
        ask.BeginEffect: _begin_effect,
        ask.ReadEffect: _read_effect,
        ask.WriteEffect: _write_effect,
        ask.PurgeEffects: _purge_effects,
        ask.ReadProtections: _read_protections,
        ask.Protect: _protect,
        ask.Unprotect: _unprotect,
        ask.RecordRefusal: _record_refusal,
        ask.InspectResources: _look,
    }


def read_everything(marks: SQLiteMarks, resource: str | None) -> ask.ResourceReport:
    """Return everything about one resource, or about all."""
    if not marks.has_schema():
        return ask.ResourceReport((), (), ())
    return ask.ResourceReport(
        marks.read_all(resource),
        read_protections(marks, resource),
        marks.read_observed(resource),
        floors=marks.read_floors(),
    )


def ended_inside_error(attempt: str) -> GuardError:
    """Return the error for a block that tried to end its own transaction."""
    by = {
        "COMMIT": "COMMIT, commit(), executescript(), `with connection:`",
        "ROLLBACK": "ROLLBACK, rollback(), an exception out of `with connection:`",
    }
    return GuardError(
        f"the block tried to end its own guarded transaction ({by.get(attempt, attempt)}): nothing of the block "
        f"was written. The end of the block commits, and an exception out of it rolls back; inside it use SAVEPOINT"
    )


def rolled_back_error() -> GuardError:
    """Return the error for a block whose transaction ended before its end: SQLite commits what a block then repeats of
    its earlier statements, except in protected tables.
    """
    return ended_in_part(
        "the guarded transaction ended inside its block: what the block wrote until then was rolled back, and "
        "protected tables refused the rest. What it wrote after that to other tables may have been committed. A "
        "conflict clause did it (OR ROLLBACK, RAISE(ROLLBACK)), an interrupt, a full disk, or the block itself: inside "
        "it use SAVEPOINT, and after such an error leave the block"
    )
