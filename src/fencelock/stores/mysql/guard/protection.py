"""Protected tables: the triggers by which MySQL itself refuses, or counts, writes that present no token.

Promise: DDL commits by itself here, one statement at a time, so the steps have an order in which a table that was
protected is protected after each of them: a new mode's triggers are made before the transaction that changes the mark,
and the old ones are dropped after it; where both are there, enforcing is in force. A protection that was broken off is
completed, or undone, by protecting again. Which table belongs to which resource, and in which mode, is read
from the triggers that are there, so that a table which was renamed stays protected under its new name, and one that was
dropped counts as unprotected. Ours are the first of their kind. Never: a trigger put on a table of another resource.
"""

import re
from collections.abc import Generator
from typing import Any, NamedTuple

from fencelock.errors import GuardError
from fencelock.model import Protection
from fencelock.protocol.guard_requests import Protected
from fencelock.stores.errors import not_protected, nothing_protected
from fencelock.stores.mysql.connection.wire import Rows, literal, literals, quoted
from fencelock.stores.statements import statements

SQL = statements(__package__, "guard.sql")
TRIGGERS = statements(__package__, "triggers.sql")
KINDS = ("insert", "update", "delete")
MODES = ("enforce", "observe")
OUR_PREFIX = "fencelock_"
Talk = Generator[str, list[Rows], Any]
"""Yields one statement for each trip, and is sent the rows of each of its results."""
_PART = r"(`(?:[^`]|``)+`|[^`.]+)"
_NAME = re.compile(rf"(?:{_PART}\.)?{_PART}")


class MySQLProtectionEntry(NamedTuple):
    """One table that was protected. `table`: its name now, None if none of its triggers is there; `sound`: each trigger
    that is there, as (mode, kind), and whether it is what it should be.
    """

    id: int
    resource: str
    name: str
    table: str | None
    sound: dict[tuple[str, str], bool]

    def has(self, mode: str) -> bool:
        """Tell whether each kind of write meets a trigger of this mode."""
        return all(self.sound.get((mode, kind)) for kind in KINDS)

    def is_covered(self, kind: str) -> bool:
        """Tell whether this kind of write meets a trigger of ours, in whichever mode."""
        return any(self.sound.get((mode, kind)) for mode in MODES)

    @property
    def mode(self) -> str:
        """The mode in force; empty if a write of some kind meets no trigger. Where both are there, one refuses."""
        return next((mode for mode in MODES if self.has(mode)), "")

    def other_than(self, mode: str) -> str | None:
        """Return the mode that a table leaves, though a switch was broken off in the middle; None if it leaves none."""
        return next((other for other, _ in self.sound if other != mode), None)

    def shown(self, database: str) -> Protection:
        """Return what users see of it."""
        return Protection(f"{database}.{self.table or self.name}", self.resource, self.mode)


def entries_in(rows: Rows) -> list[MySQLProtectionEntry]:
    """Return every table that was protected and not unprotected."""
    found: dict[int, MySQLProtectionEntry] = {}
    for number, resource, name, table, trigger, is_sound, _ in rows:
        known = found.get(number) or MySQLProtectionEntry(number, bytes(resource).decode(), name, table, {})
        if trigger is not None:
            _, _, kind, mode = trigger.split("_")
            known.sound[mode, kind] = bool(is_sound)
        found[number] = known
    return list(found.values())


def protections_in(rows: Rows, database: str) -> tuple[Protection, ...]:
    """Return the tables that are protected now."""
    return tuple(entry.shown(database) for entry in entries_in(rows) if entry.mode)


class Protector:
    """What is said to protect tables, and to unprotect them: before the open transaction is committed, `afterwards`,
    and if it is not (`undoing`).
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._here = quoted(database)
        self.afterwards: list[str] = []
        self.undoing: list[str] = []

    def protect(self, resource: str, names: tuple[str, ...], mode: str) -> Talk:
        """Give each table its triggers; return the tables whose mode changed, as they were before."""
        tables = yield from self._tables(names)
        changed = []
        for table in tables:
            before = yield from self._entry(resource, table)
            yield from self._make(before, table, mode)
            if (other := before.other_than(mode)) is not None:
                shown = before._replace(table=table).shown(self._database)
                changed.append(Protection(shown.table, resource, other))
        return Protected(tuple(changed))

    def unprotect(self, resource: str, names: tuple[str, ...]) -> Talk:
        """Take the triggers off these tables of the resource, or off all of them."""
        tables = yield from self._tables(names)
        rows = (yield self._said(SQL.show_triggers, resource=resource))[0]
        entries = {entry.table or entry.name: entry for entry in entries_in(rows)}
        if not entries:
            raise nothing_protected(resource)
        for table in tables:
            if table not in entries:
                raise not_protected(table, resource)
        chosen = [entries[table] for table in tables or entries]
        for entry in chosen:
            self.afterwards += [self._drop(entry, kind, mode) for mode, kind in entry.sound]
            self.afterwards.append(self._said(SQL.drop_protection, id=entry.id))
        return tuple(entry.shown(self._database) for entry in chosen)

    def _entry(self, resource: str, table: str) -> Generator[str, list[Rows], MySQLProtectionEntry]:
        """Return what is known of a table; take note of it first if nothing is."""
        rows = (yield self._said(SQL.show_triggers, resource=None))[0]
        # A table that was dropped, with its triggers, and made anew has its name, and nothing else, in common.
        for entry in sorted(entries_in(rows), key=lambda entry: entry.table is None):
            if (entry.table or entry.name) != table:
                continue
            if entry.resource == resource:
                if entry.name != table:
                    yield self._said(SQL.rename_protection, id=entry.id, table=table)
                return entry
            if entry.table is not None:
                raise GuardError(
                    f"table {table!r} belongs to resource {entry.resource!r} already, and a table has one resource: "
                    f"unprotect it there first, or name that resource"
                )
            yield self._said(SQL.drop_protection, id=entry.id)
        yield self._said(SQL.add_protection, table=table, resource=resource)
        ((number,),) = (yield SQL.added_protection)[0]
        return MySQLProtectionEntry(number, resource, table, None, {})

    def _make(self, before: MySQLProtectionEntry, table: str, mode: str) -> Talk:
        """Make the triggers of a mode; those of the other are dropped afterwards, or else these."""
        other = before.other_than(mode)
        for kind in KINDS:
            if before.sound.get((mode, kind)):
                continue
            if (mode, kind) in before.sound:
                yield self._drop(before, kind, mode)
            first = (yield self._said(SQL.first_trigger, database=self._database, table=table, kind=kind))[0]
            yield TRIGGERS[mode].format(
                trigger=f"{self._here}.{quoted(_trigger(before, kind, mode))}",
                kind=kind,
                table=f"{self._here}.{quoted(table)}",
                order=f"PRECEDES {quoted(first[0][0])}" if first else "",
                resource=before.resource.encode().hex().upper(),
                table_text=f"CONVERT({literal(table)} USING utf8mb4)",
            )
        if other is not None:
            self.afterwards += [self._drop(before, kind, one) for one, kind in before.sound if one == other]
            if before.has(other):
                self.undoing += [self._drop(before, kind, mode) for kind in KINDS]

    def _drop(self, entry: MySQLProtectionEntry, kind: str, mode: str) -> str:
        return SQL.drop_trigger.format(here=self._here, trigger=quoted(_trigger(entry, kind, mode)))

    def _tables(self, names: tuple[str, ...]) -> Generator[str, list[Rows], list[str]]:
        """Return what the names mean, once each; GuardError says why one cannot be protected."""
        found = {}
        for name in names:
            table = self._named(name)
            rows = (yield self._said(SQL.find_table, database=self._database, table=table))[0]
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
        """Return the table that a name, `table` or `database.table`, means."""
        match = _NAME.fullmatch(name)
        if match is None:
            raise GuardError(f"{name!r} is no name of a table: write TABLE or DATABASE.TABLE, in backticks if need be")
        database, table = (_plain(part) for part in match.groups())
        if database not in (None, self._database):
            raise GuardError(
                f"table {name!r} is not in database {self._database!r}, where this guard's marks are: open a guard on "
                f"its own database"
            )
        return table or ""

    def _check(self, table: str, kind: str, engine: str | None) -> None:
        """Raise GuardError if triggers cannot protect it."""
        why = None
        if table.lower().startswith(OUR_PREFIX):
            why = "one of fencelock's own"
        elif kind.endswith("VIEW"):
            why = "a view: protect the tables that it shows"
        elif not kind.endswith("TABLE") and kind != "SYSTEM VERSIONED":
            why = f"no ordinary table but a {kind.lower()}"
        elif engine != "InnoDB":
            why = f"of the engine {engine}, which cannot undo what a refused statement has written: use InnoDB"
        if why is not None:
            raise GuardError(f"table {table!r} cannot be protected: it is {why}")

    def _said(self, template: str, **values: Any) -> str:
        return template.format(here=self._here, **literals(values))


def _trigger(entry: MySQLProtectionEntry, kind: str, mode: str) -> str:
    return f"{OUR_PREFIX}{entry.id}_{kind}_{mode}"


def _plain(part: str | None) -> str | None:
    return None if part is None else part[1:-1].replace("``", "`") if part.startswith("`") else part
