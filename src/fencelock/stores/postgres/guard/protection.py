"""Encodes the requests to a PostgreSQL guard that protect tables, in its own transaction or in the caller's.

Promise: as for `codec.py`. The mark is locked before any table, in the order in which guarded blocks lock them. Names
of tables are looked up in the session's own search_path.
"""

from abc import abstractmethod
from collections.abc import Generator, Sequence
from typing import Any, ClassVar

from psycopg import Connection
from psycopg.errors import (  # PostgreSQL's SyntaxError, not Python's.
    InvalidName,
    SyntaxError,  # noqa: A004
)

from fencelock.errors import GuardError
from fencelock.model import Protection
from fencelock.protocol import guard_requests as ask
from fencelock.stores.errors import not_protected, nothing_protected
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Statement
from fencelock.stores.postgres.guard.rights import SQL, Trips, entry_row, ordered
from fencelock.stores.sql.guard import GuardCodecBase

_FIND_MISSING = "SELECT wanted.name FROM unnest(%s::text[]) AS wanted (name) WHERE to_regclass(wanted.name) IS NULL"


class PostgresProtectionCodec(GuardCodecBase):
    """Requests that change which tables are protected."""

    @abstractmethod
    def _flush(self, *more: Statement) -> tuple[Statement, ...]:
        """Return the unsent statements of the transaction, followed by these."""

    def _protect(self, request: ask.Protect) -> Trips:
        tables = yield from self._tables(request.tables)
        making = [Statement(SQL.make_mark, (request.resource, request.lock.encode()))]
        making += [Statement(SQL.protect_table, (table, request.resource, request.mode)) for table in tables]
        answers = yield self._flush(*making)
        rows = [answer.rows[0] for answer in answers[-len(tables) :]]
        changed = [Protection(name, request.resource, mode) for mode, name in rows if mode not in (None, request.mode)]
        return ask.Protected(tuple(changed))

    def _unprotect(self, request: ask.Unprotect) -> Trips:
        answers = yield self._flush(Statement(SQL.read_protected, (request.resource,)))
        known = {table: Protection(name, request.resource, mode) for table, name, mode in answers[-1].rows}
        if not known:
            raise nothing_protected(request.resource)
        chosen = (yield from self._known_tables(request, known)) or list(known)
        yield self._flush(*(Statement(SQL.unprotect_table, (table,)) for table in chosen))
        return tuple(known[table] for table in chosen)

    def _known_tables(
        self, request: ask.Unprotect, known: dict[int, Protection]
    ) -> Generator[Sequence[Statement], list[PostgresAnswer], list[int]]:
        """Return the tables that are meant, by themselves, or by their recorded names if they are gone or rebuilt."""
        chosen = {}
        for name, table in (yield from self._found(request.tables)):
            bare = name.rpartition(".")[2]
            recorded = (one for one, was in known.items() if not was.mode and was.table.rpartition(".")[2] == bare)
            meant = table if table in known else next(recorded, None)
            if meant is None:
                raise _no_table(repr(name)) if table is None else not_protected(name, request.resource)
            chosen[meant] = True
        return list(chosen)

    def _restore(self, request: ask.Restore) -> Trips:
        tables = yield from self._tables(request.tables)
        answers = yield self._flush(*(Statement(SQL.read_record, (table, request.resource)) for table in tables))
        for (table, name), answer in zip(tables.items(), answers[-len(tables) :], strict=True):
            if not answer.rows:
                raise not_protected(name, request.resource)
            yield self._flush(Statement(SQL.protect_table, (table, request.resource, answer.rows[0][0])))

    def _tables(self, names: Sequence[str]) -> Generator[Sequence[Statement], list[PostgresAnswer], dict[int, str]]:
        """Return the tables that the names mean in this session, by their OIDs; GuardError if one means none."""
        found = {}
        for name, table in (yield from self._found(names)):
            if table is None:
                raise _no_table(repr(name))
            found[table] = name
        return found

    def _found(
        self, names: Sequence[str]
    ) -> Generator[Sequence[Statement], list[PostgresAnswer], list[tuple[str, int | None]]]:
        """Return each name with the table that it means in this session."""
        if not names:
            return []
        try:
            answers = yield self._flush(Statement(SQL.find_tables, (list(names),)))
        except (InvalidName, SyntaxError) as error:
            raise _no_table(" or ".join(map(repr, names))) from error
        return [(name, table) for name, table in answers[-1].rows]

    ENCODERS: ClassVar = {ask.Protect: _protect, ask.Unprotect: _unprotect, ask.Restore: _restore}


class PostgresMigrationCodec(PostgresProtectionCodec):
    """The same inside the caller's own transaction, where each statement is sent at once."""

    def _flush(self, *more: Statement) -> tuple[Statement, ...]:
        return more

    def _hold_marks(self, request: ask.HoldMarks) -> Trips:
        hold = Statement(SQL.read_marks, (ordered(request.resources), None, "alone", None))
        answers = yield (Statement(SQL.note_transaction), hold, Statement(SQL.read_note))
        if answers[-1].rows[0][0] is not True:
            raise GuardError(
                "the connection is in autocommit mode, so each statement is a transaction of its own, and a table is "
                "protected inside yours: begin one, or call it without connection=…"
            )
        # What follows may drop a renamed table, and with it all that tells its name.
        (renamed,) = yield (Statement(SQL.find_renamed, (ordered(request.resources),)),)
        for row in renamed.rows:
            yield (Statement(SQL.rename_protected, tuple(row)),)

    def _set_savepoint(self, _: ask.SetSavepoint) -> Trips:
        yield (Statement(SQL.set_savepoint),)

    def _undo(self, _: ask.UndoToSavepoint) -> Trips:
        yield (Statement(SQL.undo_to_savepoint),)

    def _change_mark(self, request: ask.ChangeMark) -> Trips:
        yield (change_of(request),)

    def _write_audit(self, request: ask.WriteAudit) -> Trips:
        yield (Statement(SQL.write_audit, entry_row(request.entry)),)

    ENCODERS: ClassVar = {
        **PostgresProtectionCodec.ENCODERS,
        ask.HoldMarks: _hold_marks,
        ask.SetSavepoint: _set_savepoint,
        ask.UndoToSavepoint: _undo,
        ask.ChangeMark: _change_mark,
        ask.WriteAudit: _write_audit,
    }


def check_tables(native: Connection[Any], names: Sequence[str]) -> None:
    """Raise GuardError unless these tables exist, where there is no schema yet."""
    try:
        missing = native.execute(_FIND_MISSING, (list(names),)).fetchall()
    except (InvalidName, SyntaxError) as error:
        raise _no_table(" or ".join(map(repr, names))) from error
    if missing:
        raise _no_table(repr(missing[0][0]))


def change_of(request: ask.ChangeMark) -> Statement:
    """Return the statement that changes a mark for an operator."""
    mark, sequencer = request.mark, None if request.sequencer is None else str(request.sequencer)
    identity = (mark.source_id, mark.history_id, mark.digest, mark.is_closed)
    columns = (mark.resource, mark.lock.encode(), mark.token, *identity)
    return Statement(SQL.change_mark, (*columns, sequencer, request.is_implausible, *entry_row(request.entry)))


def _no_table(named: str) -> GuardError:
    return GuardError(
        f"there is no table {named} in this database: write it as SQL does, schema.table, with quotes if the name "
        f"needs them; create it first, then protect it"
    )
