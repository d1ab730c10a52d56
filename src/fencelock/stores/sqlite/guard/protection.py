"""Protected tables: the triggers by which a SQLite file itself refuses, or counts, writes that present no token.

An enforced table also has an index, which refuses incremental BLOB writes, because they fire no trigger.

Promise: the existing triggers are the only record of a table's resource and mode. So a renamed table stays protected
under its new name, and a dropped one counts as unprotected. Names and literals are quoted.
Never: a trigger on a table of another resource, or on an object that cannot be protected.
"""

from typing import NamedTuple

from fencelock.errors import GuardError
from fencelock.model import Protection
from fencelock.protocol.guard_requests import ENFORCE, Protected
from fencelock.stores.errors import not_protected, nothing_protected
from fencelock.stores.sqlite.guard.marks import SQL, SQLiteMarks
from fencelock.stores.statements import statements

TRIGGERS = statements(__package__, "triggers.sql")
KINDS = ("insert", "update", "delete")
BLOBS = "blobs"
"""The kind of write that an index refuses, where a trigger refuses the others. Observe mode cannot count it."""
_OUR_PREFIX = "fencelock_"
_WHY_NOT = {
    "view": "a view: protect the tables that it shows",
    "virtual": "a virtual table, which can have no triggers: protect ordinary tables",
    "shadow": "part of a virtual table, which its module writes by itself: protect ordinary tables",
}


class SQLiteProtectionEntry(NamedTuple):
    """A table that was protected, and the kinds of write that it still has a trigger or its index for.

    `table` is None if it has none.
    """

    id: int
    resource: str
    name: str
    table: str | None
    mode: str
    kinds: frozenset[str]

    @property
    def has_triggers(self) -> bool:
        """True if there is a trigger for every kind of statement that writes."""
        return self.kinds.issuperset(KINDS)

    @property
    def is_whole(self) -> bool:
        """True if there is everything that `protect` makes in this mode."""
        return self.has_triggers and (self.mode != ENFORCE or BLOBS in self.kinds)

    def shown(self) -> Protection:
        """Return the public view of the entry."""
        return Protection(self.table or self.name, self.resource, self.mode)


def read_entries(marks: SQLiteMarks) -> list[SQLiteProtectionEntry]:
    """Return every table that was protected and not unprotected since."""
    made: dict[int, list[tuple[str, str, str]]] = {}
    for entry_id, _, table, name in marks.ask(SQL.read_parts):
        _, mode, kind, _ = name.split("_")
        made.setdefault(entry_id, []).append((table, mode, kind))
    entries = []
    for entry_id, resource, name in marks.ask(SQL.read_protected):
        found = made.get(entry_id)
        if found is None:
            entries.append(SQLiteProtectionEntry(entry_id, resource, name, None, "", frozenset()))
        else:
            table, mode, _ = found[0]
            kinds = frozenset(kind for _, _, kind in found)
            entries.append(SQLiteProtectionEntry(entry_id, resource, name, table, mode, kinds))
    return entries


def read_protections(marks: SQLiteMarks, resource: str | None) -> tuple[Protection, ...]:
    """Return the tables that are protected now, of one resource or of all."""
    if not marks.has_schema():
        return ()
    return tuple(
        entry.shown() for entry in read_entries(marks) if entry.has_triggers and resource in (None, entry.resource)
    )


def protect(marks: SQLiteMarks, resource: str, tables: tuple[str, ...], mode: str) -> Protected:
    """Give each table its triggers and index; return the tables whose mode changed, as they were before."""
    changed = []
    for table in dict.fromkeys(find_table(marks, name) for name in tables):
        entries = read_entries(marks)
        entry = next((one for one in entries if one.table == table), None)
        if entry is not None and entry.resource != resource:
            raise GuardError(
                f"table {table!r} belongs to resource {entry.resource!r} already, and a table has one "
                f"resource: unprotect it there first, or name that resource"
            )
        if entry is not None and entry.mode == mode and entry.is_whole:
            continue
        if entry is not None:
            _remove(marks, entry)
            if entry.mode != mode:
                changed.append(entry.shown())
        for gone in entries:
            if gone.table is None and gone.name == table:
                # The table was dropped with its triggers, and created again without them.
                _remove(marks, gone)
        _install(marks, resource, table, mode)
    return Protected(tuple(changed))


def unprotect(marks: SQLiteMarks, resource: str, tables: tuple[str, ...]) -> tuple[Protection, ...]:
    """Drop the triggers and indexes of these tables of the resource, or of all its tables."""
    if not marks.has_schema():
        raise nothing_protected(resource)
    entries = [entry for entry in read_entries(marks) if entry.resource == resource]
    if not tables:
        chosen = entries
    else:
        wanted = dict.fromkeys(find_table(marks, name) for name in tables)
        by_table = {entry.table: entry for entry in entries}
        chosen = []
        for table in wanted:
            if table not in by_table:
                raise not_protected(table, resource)
            chosen.append(by_table[table])
    if not chosen:
        raise nothing_protected(resource)
    for entry in chosen:
        _remove(marks, entry)
    return tuple(entry.shown() for entry in chosen)


def find_table(marks: SQLiteMarks, name: str) -> str:
    """Return the table's name as the schema spells it; GuardError if the table cannot be protected."""
    found = marks.ask(SQL.find_table, {"name": name})
    schema, dot, bare = name.partition(".")
    if not found and dot:
        if schema.lower() != "main":
            raise GuardError(
                f"table {name!r}: only tables of the file itself can be protected, so the name is main.TABLE "
                f"or TABLE; for another file open a guard on that file"
            )
        found = marks.ask(SQL.find_table, {"name": bare})
    if not found:
        raise GuardError(f"there is no table {name!r} in this file: create it first, then protect it")
    table, kind = found[0]
    if kind in _WHY_NOT:
        raise GuardError(f"{table!r} cannot be protected: it is {_WHY_NOT[kind]}")
    if table.lower().startswith((_OUR_PREFIX, "sqlite_")):
        raise GuardError(f"{table!r} cannot be protected: names that begin with fencelock_ or sqlite_ are reserved")
    return str(table)


def _install(marks: SQLiteMarks, resource: str, table: str, mode: str) -> None:
    row = {"resource": resource, "name": table}
    entry_id = marks.native.execute(SQL.add_protected, row).lastrowid
    message = (
        f"fencelock: table {table} belongs to resource {resource} and takes writes only from the holder of its "
        f"lock: write inside `with guard.transaction(lease)`; `fencelock marks` shows which lock it is"
    )
    for kind in KINDS:
        marks.native.execute(
            TRIGGERS[mode].format(
                trigger=_part(mode, kind, entry_id),
                kind=kind.upper(),
                table=quoted(table),
                resource=literal(resource),
                table_text=literal(table),
                kind_text=literal(kind),
                message=literal(message),
            )
        )
    if mode == ENFORCE:
        marks.native.execute(TRIGGERS.refuse_blobs.format(index=_part(mode, BLOBS, entry_id), table=quoted(table)))


def _remove(marks: SQLiteMarks, entry: SQLiteProtectionEntry) -> None:
    for kind in entry.kinds:
        is_index = kind == BLOBS
        marks.native.execute(f"DROP {'INDEX' if is_index else 'TRIGGER'} main.{_part(entry.mode, kind, entry.id)}")
    marks.native.execute(SQL.remove_protected, {"id": entry.id})


def _part(mode: str, kind: str, entry_id: int | None) -> str:
    """Return the quoted name of one trigger, or of the index."""
    return quoted(f"{_OUR_PREFIX}{mode}_{kind}_{entry_id}")


def quoted(identifier: str) -> str:
    """Return the identifier as SQL writes it."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return the text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
