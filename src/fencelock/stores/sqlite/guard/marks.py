"""Marks, seals and audit entries in one SQLite file: the statements of `guard.sql`, over any connection to it.

Promise: a file without our schema reads as one whose resources were never sealed; the schema is made
when the first mark is written; a schema of another number is refused. Never: a decision about a token.
"""

import sqlite3
from pathlib import Path
from typing import Any

from fencelock.errors import SchemaError
from fencelock.model import Mark, Sequencer
from fencelock.protocol.guard_requests import AuditEntry, Observation
from fencelock.stores.statements import statements

SQL = statements(__package__, "guard.sql")
SCHEMA = statements(__package__, "schema.sql")
SCHEMA_NUMBER = 1


class SQLiteMarks:
    """What a guard keeps in a file, through one sqlite3 connection whose transactions are somebody else's."""

    def __init__(self, native: sqlite3.Connection, path: Path) -> None:
        self.native = native
        self._path = path

    def ask(self, statement: str, parameters: Any = ()) -> list[Any]:
        """Run a query and return its rows as tuples, whatever the user made of the connection."""
        native = self.native
        text_factory, native.text_factory = native.text_factory, str
        try:
            cursor = native.cursor()
            cursor.row_factory = None
            return cursor.execute(statement, parameters).fetchall()
        finally:
            native.text_factory = text_factory

    def has_schema(self) -> bool:
        """Return whether the file holds marks; SchemaError if they are of another version."""
        if not self.ask(SQL.has_schema)[0][0]:
            return False
        found = [row[0] for row in self.ask(SQL.read_schema_number)]
        if found != [SCHEMA_NUMBER]:
            number = found[0] if found else "nothing"
            raise SchemaError(
                f"{self._path} holds guard schema {number}, and this fencelock knows schema {SCHEMA_NUMBER} "
                f"only: use the version of fencelock that protected the file"
            )
        return True

    def ensure_schema(self) -> None:
        """Make the tables and triggers of the guard's own, if they are not there."""
        if not self.has_schema():
            for name in SCHEMA:
                self.native.execute(SCHEMA[name])

    def read(self, resources: tuple[str, ...]) -> dict[str, Mark]:
        """Return the marks that are known of these resources."""
        if not self.has_schema():
            return {}
        rows = (self.ask(SQL.read_mark, {"resource": resource}) for resource in resources)
        return {row[0][0]: _mark(row[0]) for row in rows if row}

    def read_all(self, resource: str | None) -> tuple[Mark, ...]:
        """Return the mark of one resource, or all marks."""
        return tuple(map(_mark, self.ask(SQL.read_marks, {"resource": resource})))

    def write(self, mark: Mark, audit_id: int | None = None) -> None:
        """Write a mark; the file itself refuses a change that nothing entitles to."""
        self.ensure_schema()
        row = {
            "resource": mark.resource,
            "lock": mark.lock,
            "token": mark.token,
            "source_id": mark.source_id,
            "history_id": mark.history_id,
            "claim": mark.claim,
            "is_closed": mark.is_closed,
            "audit_id": audit_id,
        }
        if self.native.execute(SQL.update_mark, row).rowcount == 0:
            self.native.execute(SQL.insert_mark, row)

    def write_audit(self, entry: AuditEntry) -> int | None:
        """Add an audit entry and return its number."""
        self.ensure_schema()
        return self.native.execute(SQL.write_audit, entry._asdict()).lastrowid

    def present(self, resources: tuple[str, ...], sequencer: Sequencer) -> tuple[str, ...]:
        """Present the lease to each resource whose mark is exactly its own; return the others."""
        not_ours: tuple[str, ...] = ()
        for resource in resources:
            tenure = (sequencer.token, sequencer.claim, sequencer.lock, sequencer.source_id, sequencer.history_id)
            row = (resource, resource, *tenure, sequencer.claim)
            try:
                self.native.execute(SQL.present, row)
            except sqlite3.IntegrityError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_NOTNULL:
                    raise
                not_ours += (resource,)
            except sqlite3.OperationalError:
                # The file was replaced in place by one without our tables.
                if self.has_schema():
                    raise
                return resources
        return not_ours

    def unpresent(self, resources: tuple[str, ...]) -> bool:
        """Take back what was presented; return whether all of it was still there."""
        is_whole = True
        for resource in resources:
            if self.native.execute(SQL.unpresent, (resource,)).rowcount != 1:
                is_whole = False
        return is_whole

    def record_refusal(self, resource: str, kind: str) -> None:
        """Count a lease that enforcement would have refused."""
        self.native.execute(SQL.record_refusal, {"resource": resource, "kind": kind})

    def read_observed(self, resource: str | None) -> tuple[Observation, ...]:
        """Return what observe mode let pass."""
        rows = self.ask(SQL.read_observed, {"resource": resource})
        return tuple(Observation(*row) for row in rows)


def _mark(row: tuple[Any, ...]) -> Mark:
    resource, lock, token, source_id, history_id, claim, is_closed = row
    return Mark(resource, lock, token, source_id, history_id, claim, bool(is_closed))
