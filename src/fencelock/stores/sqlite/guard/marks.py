"""Marks, seals and audit entries in one SQLite file: the statements of `guard.sql`, over any connection to it.

Promise: a file without the guard's schema reads as one whose resources were never sealed. The first mark creates the
schema; a schema with another number is refused. Never: a decision about a token.
"""

import os
import sqlite3
import time
from pathlib import Path
from typing import Any

from fencelock.errors import UnprotectedTableError
from fencelock.model import Mark, Sequencer, digest_of_claim, token_ceiling
from fencelock.protocol.guard_requests import AuditEntry, Effect, Floor, Observation
from fencelock.stores.errors import GUARD_PART, below_floor, check_schema_number, implausible
from fencelock.stores.statements import statements

SQL = statements(__package__, "guard.sql")
SCHEMA = statements(__package__, "schema.sql")
SCHEMA_NUMBER = 3
PREFIX = "fencelock_"
_FIRST_ROW = "guard_row"
"""The statement that creates nothing: it belongs to the table `guard`."""
TABLES = frozenset(f"{PREFIX}{name}" for name in SCHEMA if SCHEMA[name].startswith("CREATE TABLE"))
_TRIGGER_PREFIX = "fencelock: "
_IMPLAUSIBLE = "this token is implausible"
"""How the message of the triggers `plausible_raise` and `plausible_first` begins."""
_BELOW_FLOOR = "this resource has no mark of this source"
"""The same for `above_floor_first` and `above_floor_bound`."""


class SQLiteMarks:
    """Reads and writes what a guard stores in a file, over one sqlite3 connection; its caller controls transactions."""

    def __init__(self, native: sqlite3.Connection, path: Path) -> None:
        self.native = native
        self.path = path
        self._whole_at: dict[str, int] = {}

    def ask(self, statement: str, parameters: Any = ()) -> list[Any]:
        """Run a query and return its rows as tuples, whatever factories the user set on the connection."""
        native = self.native
        cursor = native.cursor()
        text_factory, native.text_factory = native.text_factory, str
        try:
            cursor.row_factory = None
            return cursor.execute(statement, parameters).fetchall()
        finally:
            cursor.close()  # An interrupted query would keep the file's read lock as long as the exception lives.
            native.text_factory = text_factory

    def is_wal(self) -> bool:
        """Return whether the file is in WAL mode."""
        return bool(self.ask("PRAGMA journal_mode")[0][0] == "wal")

    def has_schema(self) -> bool:
        """Return whether the file has the guard's schema; SchemaError if it has another version of it."""
        if not self.ask(SQL.has_schema)[0][0]:
            return False
        rows = self.ask(SQL.read_schema_number)
        check_schema_number(os.fspath(self.path), GUARD_PART, rows[0][0] if rows else None, SCHEMA_NUMBER)
        return True

    def ensure_schema(self) -> None:
        """Create the guard's own tables and triggers if they do not exist."""
        if not self.has_schema():
            self.complete_schema()

    def complete_schema(self) -> None:
        """Create those of the guard's own tables and triggers that do not exist: somebody may have dropped some."""
        names = self.read_names()
        for name in SCHEMA:
            if PREFIX + ("guard" if name == _FIRST_ROW else name) not in names:
                self.native.execute(SCHEMA[name])
        self.native.execute(SQL.forget_records)

    def read_names(self) -> set[str]:
        """Return the name of everything in the file that begins as fencelock's do."""
        return {name for (name,) in self.ask(SQL.read_names)}

    def read(self, resources: tuple[str, ...]) -> dict[str, Mark]:
        """Return the marks of those of these resources that have one."""
        if not self.has_schema():
            return {}
        rows = (self.ask(SQL.read_mark, {"resource": resource}) for resource in resources)
        return {row[0][0]: mark_of(row[0]) for row in rows if row}

    def read_all(self, resource: str | None) -> tuple[Mark, ...]:
        """Return the mark of one resource, or all marks."""
        return tuple(map(mark_of, self.ask(SQL.read_marks, {"resource": resource})))

    def write(self, mark: Mark, audit_id: int | None = None) -> None:
        """Write a mark; triggers in the file refuse an illegal change, and an implausible token."""
        self.ensure_schema()
        row = {
            "resource": mark.resource,
            "lock": mark.lock,
            "token": mark.token,
            "source_id": mark.source_id,
            "history_id": mark.history_id,
            "digest": mark.digest,
            "is_closed": mark.is_closed,
            "audit_id": audit_id,
        }
        try:
            if self.native.execute(SQL.update_mark, row).rowcount == 0:
                self.native.execute(SQL.insert_mark, row)
        except sqlite3.IntegrityError as error:
            refusal = trigger_message(error) or ""
            if refusal.startswith(_BELOW_FLOOR) and mark.source_id is not None:
                floor = Floor(mark.source_id, self.floor_of(mark.source_id))
                raise below_floor(mark.resource, mark.token, floor) from error
            if not refusal.startswith(_IMPLAUSIBLE):
                raise
            before = self.read((mark.resource,)).get(mark.resource)
            ceiling = token_ceiling(time.time(), before.token if before else 0)
            raise implausible(mark.resource, mark.token, ceiling) from error

    def close(self, resource: str, claim: str) -> None:
        """Close the resource's mark, if it belongs to the lease with this claim."""
        self.native.execute(SQL.close_mark, {"resource": resource, "digest": digest_of_claim(claim)})

    def read_floors(self) -> tuple[Floor, ...]:
        """Return the floor of each source of which marks were purged."""
        return tuple(Floor(*row) for row in self.ask(SQL.read_floors))

    def floor_of(self, source_id: str) -> int:
        """Return the floor of a source; 0 if it has none."""
        return dict(self.read_floors()).get(source_id, 0)

    def write_audit(self, entry: AuditEntry, *, is_implausible: bool = False) -> int | None:
        """Add an audit entry and return its number."""
        self.ensure_schema()
        row = {**entry._asdict(), "is_implausible": is_implausible}
        return self.native.execute(SQL.write_audit, row).lastrowid

    def present(self, resources: tuple[str, ...], sequencer: Sequencer) -> tuple[str, ...]:
        """Present the lease to each resource whose mark is exactly its own; return the others."""
        not_ours: tuple[str, ...] = ()
        digest = sequencer.digest
        tenure = (sequencer.token, digest, sequencer.lock, sequencer.source_id, sequencer.history_id)
        for resource in resources:
            row = (resource, resource, *tenure, digest)
            try:
                self.native.execute(SQL.present, row)
            except sqlite3.IntegrityError as error:
                # The statement writes NULL as the token if the mark is not the lease's.
                if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_NOTNULL:
                    raise
                not_ours += (resource,)
            except sqlite3.OperationalError:
                # No table: the file was overwritten in place by one that is not guarded.
                if self.has_schema():
                    raise
                return resources
            else:
                self._check_tables(resource)
        return not_ours

    def _check_tables(self, resource: str) -> None:
        """Raise UnprotectedTableError, and present nothing, if a protected table was rebuilt without its triggers.

        Rule G16. The file's schema is read only if its version has changed since the last time.
        """
        ((version,),) = self.ask(SQL.schema_version)
        if self._whole_at.get(resource) == version:
            return
        if bare := self.ask(SQL.find_bare, {"resource": resource}):
            self.native.execute(SQL.unpresent, (resource,))
            raise self._unprotected_error(resource, *bare[0])
        self._whole_at[resource] = version

    def _unprotected_error(self, resource: str, table: str, renamed: str | None) -> UnprotectedTableError:
        if renamed is None:
            why, instead = "it was rebuilt", "`fencelock unprotect`"
        else:
            why = f"the table that was protected under this name is {renamed!r} now"
            instead = f"if {table!r} needs no protection, the same with --table {renamed}"
        return UnprotectedTableError(
            f"table {table!r} of resource {resource!r} exists, and its rows meet no trigger of fencelock: {why}, so "
            f"any writer gets in. Run `fencelock protect sqlite:///{self.path} --resource … --lock … "
            f"--table {table}`, or {instead}. The next time rebuild it inside guard.rebuilding(…)"
        )

    def unpresent(self, resources: tuple[str, ...]) -> bool:
        """Withdraw what was presented; return whether all of it was still there."""
        is_whole = True
        for resource in resources:
            if self.native.execute(SQL.unpresent, (resource,)).rowcount != 1:
                is_whole = False
        return is_whole

    def read_effect(self, resource: str, key: str) -> Effect | None:
        """Return what the resource keeps under this key."""
        found = self.ask(SQL.read_effect, {"resource": resource, "key": key})
        return Effect(*found[0]) if found else None

    def begin_effect(self, resource: str, effect: Effect) -> Effect | None:
        """Keep an intent, or return what the resource keeps under its key. Triggers refuse a transaction that presents
        nothing.
        """
        row = {"resource": resource, **effect._asdict()}
        if self.native.execute(SQL.begin_effect, row).rowcount == 1:
            return None
        return self.read_effect(resource, effect.key)

    def write_effect(self, resource: str, effect: Effect) -> None:
        """Insert or replace an effect; forget it if it has no holder. Triggers refuse a transaction that presents
        nothing.
        """
        statement = SQL.write_effect if effect.holder else SQL.forget_effect
        self.native.execute(statement, {"resource": resource, **effect._asdict()})

    def purge_effects(self, older_than_ms: int) -> int:
        """Forget old results, and return how many there were."""
        if not self.has_schema():
            return 0
        return self.native.execute(SQL.purge_effects, {"older_than_ms": older_than_ms}).rowcount

    def record_refusal(self, resource: str, kind: str) -> None:
        """Count a lease that enforcement would have refused."""
        self.native.execute(SQL.record_refusal, {"resource": resource, "kind": kind})

    def read_observed(self, resource: str | None) -> tuple[Observation, ...]:
        """Return what observe mode let pass."""
        rows = self.ask(SQL.read_observed, {"resource": resource})
        return tuple(Observation(*row) for row in rows)


def mark_of(row: tuple[Any, ...]) -> Mark:
    """Return the mark of a row."""
    resource, lock, token, source_id, history_id, digest, is_closed = row
    return Mark(resource, lock, token, source_id, history_id, digest, bool(is_closed))


def trigger_message(error: BaseException) -> str | None:
    """Return the message that a trigger of the guard raised; None for any other error."""
    is_trigger = (
        isinstance(error, sqlite3.IntegrityError)
        and getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CONSTRAINT_TRIGGER
    )
    text = str(error)
    return text.removeprefix(_TRIGGER_PREFIX) if is_trigger and text.startswith(_TRIGGER_PREFIX) else None
