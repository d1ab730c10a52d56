"""Protected tables: the triggers by which MySQL itself refuses, or counts, writes that present no token.

Promise: DDL commits by itself here, one statement at a time, so the steps have an order that keeps a protected table
protected after each of them: the triggers of a new mode are created before the transaction that changes the mark, and
the old ones are dropped after it; where both exist, enforcing is in force. Protecting again completes or undoes an
interrupted run. The existing triggers alone say which table belongs to which resource, and in which mode, so a renamed
table stays protected under its new name, and a dropped one counts as unprotected. fencelock's triggers run before all
others of their kind. Never puts a trigger on a table of another resource.
"""

import re
from collections.abc import Generator
from typing import Any, NamedTuple

from fencelock.errors import GuardError
from fencelock.model import Protection
from fencelock.protocol.guard_requests import ORPHANED, Protected
from fencelock.stores.errors import not_protected, nothing_protected
from fencelock.stores.mysql.connection.expressions import expand
from fencelock.stores.mysql.connection.wire import Rows, Value, decode_text, literal, literals, quoted
from fencelock.stores.statements import statements

SQL = statements(__package__, "guard.sql")
TRIGGERS = statements(__package__, "triggers.sql")
KINDS = ("insert", "update", "delete")
MODES = ("enforce", "observe")
OUR_PREFIX = "fencelock_"
Statements = Generator[str, list[Rows], Any]
"""Yields the statement of one round trip, and is sent the rows of each of its results."""
_PART = r"(`(?:[^`]|``)+`|[^`.]+)"
_NAME = re.compile(rf"(?:{_PART}\.)?{_PART}")


class MySQLProtectionEntry(NamedTuple):
    """One table that was protected. `table` is its name now, None if it has no trigger of fencelock; `intact` has each
    existing trigger, as (mode, kind), and whether it is intact.
    """

    id: int
    resource: str
    name: str
    table: str | None
    intact: dict[tuple[str, str], bool]
    is_orphaned: bool = False
    """Whether it has triggers, and there is no record of it."""

    def has(self, mode: str) -> bool:
        """Return whether every kind of write meets a trigger of this mode."""
        return all(self.intact.get((mode, kind)) for kind in KINDS)

    def is_covered(self, kind: str) -> bool:
        """Return whether this kind of write meets a trigger of fencelock, of any mode."""
        return any(self.intact.get((mode, kind)) for mode in MODES)

    @property
    def mode(self) -> str:
        """The mode in force; empty if some kind of write meets no trigger. With both modes, enforcing refuses."""
        return next((mode for mode in MODES if self.has(mode)), "")

    def other_than(self, mode: str) -> str | None:
        """Return the mode that a switch to `mode` leaves, also an interrupted switch; None if there is no other."""
        return next((other for other, _ in self.intact if other != mode), None)

    def as_protection(self, database: str) -> Protection:
        """Return the public description."""
        return Protection(f"{database}.{self.table or self.name}", self.resource, self.mode)


def entries_in(rows: Rows) -> list[MySQLProtectionEntry]:
    """Return every table that was protected and not unprotected, from the rows of show_triggers."""
    found: dict[int, MySQLProtectionEntry] = {}
    for number, resource, name, table, trigger, is_sound, _ in rows:
        known = found.get(number) or MySQLProtectionEntry(
            number, decode_text(resource), name or table, table, {}, is_orphaned=name is None
        )
        if trigger is not None:
            _, _, kind, mode = trigger.split("_")
            known.intact[mode, kind] = bool(is_sound)
        found[number] = known
    return list(found.values())


def protections_in(rows: Rows, database: str) -> tuple[Protection, ...]:
    """Return the tables that are protected now."""
    return tuple(entry.as_protection(database) for entry in entries_in(rows) if entry.mode)


class Protector:
    """The DDL to protect and unprotect tables: what runs at once, what runs after the open transaction has committed
    (`afterwards`), and what runs if it is rolled back (`undoing`).
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._here = quoted(database)
        self.afterwards: list[str] = []
        self.undoing: list[str] = []

    def protect(self, resource: str, names: tuple[str, ...], mode: str) -> Statements:
        """Create the triggers of each table; return the tables whose mode changes, as they were before."""
        tables = yield from self._tables(names)
        changed = []
        for table in tables:
            before = yield from self._entry(resource, table, mode)
            yield from self._create(before, table, mode)
            # A record comes last: what is interrupted before is orphaned still.
            if before.is_orphaned:
                adopt = self._fill(SQL.adopt_protection, id=before.id, table=table, resource=resource, mode=mode)
                self.afterwards.append(adopt)
            other = ORPHANED if before.is_orphaned else before.other_than(mode)
            if other is not None:
                protection = before._replace(table=table).as_protection(self._database)
                changed.append(Protection(protection.table, resource, other))
        return Protected(tuple(changed))

    def check(self, names: tuple[str, ...]) -> Statements:
        """Raise GuardError if one of these tables does not exist, or cannot be protected."""
        yield from self._tables(names)

    def unprotect(self, resource: str, names: tuple[str, ...]) -> Statements:
        """Drop the triggers of these tables of the resource, or of all its tables."""
        rows = (yield self._fill(SQL.show_triggers, resource=resource))[0]
        entries = {entry.table or entry.name: entry for entry in entries_in(rows)}
        # A table that was dropped is known by its name alone.
        tables = dict.fromkeys(map(self._named, names))
        yield from self._tables(tuple(table for table in tables if table not in entries))
        if not entries:
            raise nothing_protected(resource)
        for table in tables:
            if table not in entries:
                raise not_protected(table, resource)
        chosen = [entries[table] for table in tables or entries]
        for entry in chosen:
            # A block that finds a recorded table without triggers is stopped, so the record changes first.
            table = entry.table or entry.name
            self.afterwards.append(self._fill(SQL.change_protection, id=entry.id, table=table, mode=""))
            self.afterwards += [self._drop(entry, kind, mode) for mode, kind in entry.intact]
            self.afterwards.append(self._fill(SQL.drop_protection, id=entry.id))
        return tuple(entry.as_protection(self._database) for entry in chosen)

    def _entry(self, resource: str, table: str, mode: str) -> Generator[str, list[Rows], MySQLProtectionEntry]:
        """Return the entry of a table; add it if there is none."""
        rows = (yield self._fill(SQL.show_triggers, resource=None))[0]
        # Entries without triggers come last: a re-created table shares only the name with the entry of the dropped one.
        for entry in sorted(entries_in(rows), key=lambda entry: entry.table is None):
            if (entry.table or entry.name) != table:
                if entry.table is not None and entry.name == table:
                    yield self._fill(SQL.rename_protection, id=entry.id, table=entry.table)
                continue
            if entry.resource == resource:
                if not entry.is_orphaned:
                    yield self._fill(SQL.change_protection, id=entry.id, table=table, mode=mode)
                return entry
            if entry.table is not None:
                raise GuardError(
                    f"table {table!r} belongs to resource {entry.resource!r} already, and a table has one resource: "
                    f"unprotect it there first, or name that resource"
                )
            yield self._fill(SQL.drop_protection, id=entry.id)
        if orphaned := [entry.id for entry in entries_in(rows) if entry.is_orphaned]:
            yield self._fill(SQL.skip_numbers, next=max(orphaned) + 1)
        yield self._fill(SQL.add_protection, table=table, resource=resource, mode="")
        ((number,),) = (yield SQL.added_protection)[0]
        self.afterwards.append(self._fill(SQL.change_protection, id=number, table=table, mode=mode))
        return MySQLProtectionEntry(number, resource, table, None, {})

    def _create(self, before: MySQLProtectionEntry, table: str, mode: str) -> Statements:
        """Create the triggers of a mode. Those of the other mode are dropped afterwards, or these if it is undone."""
        other = before.other_than(mode)
        for kind in KINDS:
            if before.intact.get((mode, kind)):
                continue
            if (mode, kind) in before.intact:
                yield self._drop(before, kind, mode)
            # What another trigger does in a table of another engine stays done when ours refuses: so ours comes first.
            first = (yield self._fill(SQL.first_trigger, database=self._database, table=table, kind=kind))[0]
            yield expand(TRIGGERS[mode]).format(
                trigger=f"{self._here}.{quoted(_trigger(before, kind, mode))}",
                kind=kind,
                table=f"{self._here}.{quoted(table)}",
                order=f"PRECEDES {quoted(first[0][0])}" if first else "",
                resource=before.resource.encode().hex().upper(),
                table_text=f"CONVERT({literal(table)} USING utf8mb4)",
            )
        if other is not None:
            self.afterwards += [self._drop(before, kind, one) for one, kind in before.intact if one == other]
            if before.has(other):
                self.undoing += [self._drop(before, kind, mode) for kind in KINDS]

    def _drop(self, entry: MySQLProtectionEntry, kind: str, mode: str) -> str:
        return SQL.drop_trigger.format(here=self._here, trigger=quoted(_trigger(entry, kind, mode)))

    def _tables(self, names: tuple[str, ...]) -> Generator[str, list[Rows], list[str]]:
        """Return the tables of the names, once each; GuardError if one cannot be protected."""
        found = {}
        for name in names:
            table = self._named(name)
            rows = (yield self._fill(SQL.find_table, database=self._database, table=table))[0]
            known = {row[0]: row for row in rows}
            if table not in known:
                raise GuardError(
                    f"there is no table {table!r} in database {self._database!r}: create it first, in the server's own "
                    f"spelling, then protect it"
                )
            self._check(*known[table])
            found[table] = True
        return list(found)

    def _named(self, name: str) -> str:
        """Return the table of a name, `table` or `database.table`."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise GuardError(
                f"{name!r} is not the name of a table: write TABLE or DATABASE.TABLE, in backticks if needed"
            )
        database, table = (_plain(part) for part in match.groups())
        if database not in (None, self._database):
            raise GuardError(
                f"table {name!r} is not in database {self._database!r}, where this guard's marks are: open a guard on "
                f"its own database"
            )
        return table or ""

    def _check(self, table: str, kind: str, engine: str | None) -> None:
        """Raise GuardError if triggers cannot protect it."""
        reason = None
        if table.lower().startswith(OUR_PREFIX):
            reason = "one of fencelock's own"
        elif kind.endswith("VIEW"):
            reason = "a view: protect the tables that it shows"
        elif not kind.endswith("TABLE") and kind != "SYSTEM VERSIONED":
            reason = f"not an ordinary table but a {kind.lower()}"
        elif engine != "InnoDB":
            reason = f"of the engine {engine}, which cannot roll back a refused statement: use InnoDB"
        if reason is not None:
            raise GuardError(f"table {table!r} cannot be protected: it is {reason}")

    def _fill(self, template: str, **values: Value) -> str:
        return template.format(here=self._here, **literals(values))


def _trigger(entry: MySQLProtectionEntry, kind: str, mode: str) -> str:
    return f"{OUR_PREFIX}{entry.id}_{kind}_{mode}"


def _plain(part: str | None) -> str | None:
    return None if part is None else part[1:-1].replace("``", "`") if part.startswith("`") else part
