"""Protected tables: the triggers by which a SQLite file itself refuses, or counts, writes that present no token.

An enforced table also has an index, which refuses incremental BLOB writes, because they fire no trigger.

Promise: the existing triggers alone say which resource and mode are in force. So a renamed table stays protected under
its new name, and a dropped one counts as unprotected. The record says what was asked for, by the table's name: a table
that was rebuilt is found by it. So a new name is recorded before a rebuild drops the triggers that follow it. Triggers
without a record are found too: a migration may have dropped fencelock's own tables. Names and literals are quoted.
Never: a trigger on a table of another resource, or on an object that cannot be protected.
"""

import re
from dataclasses import replace
from typing import NamedTuple

from fencelock.errors import GuardError, SchemaError
from fencelock.model import Mark, Protection
from fencelock.protocol import guard_requests as ask
from fencelock.protocol.guard_requests import ENFORCE, OBSERVE, ORPHANED
from fencelock.stores.errors import not_protected, nothing_protected
from fencelock.stores.sqlite.guard.marks import PREFIX, SQL, SQLiteMarks
from fencelock.stores.statements import statements

TRIGGERS = statements(__package__, "triggers.sql")
KINDS = ("insert", "update", "delete")
BLOBS = "blobs"
"""The kind of write that an index refuses, where a trigger refuses the others. Observe mode cannot count it."""
_RECORD = f"{PREFIX}protected"
_NAME = re.compile(r"fencelock_(enforce|observe)_(insert|update|delete|blobs)_([0-9]+)")
_RESOURCE = re.compile(r"seal\.resource = '((?:[^']|'')*)' AND NOT mark")
"""The resource in the text of a trigger."""
_WHY_NOT = {
    "view": "a view: protect the tables that it shows",
    "virtual": "a virtual table, which can have no triggers: protect ordinary tables",
    "shadow": "part of a virtual table, which its module writes by itself: protect ordinary tables",
}


class SQLiteProtectionEntry(NamedTuple):
    """A table that was protected, and the kinds of write that it still has a trigger or its index for.

    `table` is None if it has none; `recorded` is the mode that was asked for, None if there is no record of the table.
    """

    id: int
    resource: str
    name: str
    table: str | None
    mode: str
    kinds: frozenset[str]
    recorded: str | None

    @property
    def has_triggers(self) -> bool:
        """True if there is a trigger for every kind of statement that writes."""
        return self.kinds.issuperset(KINDS)

    @property
    def is_whole(self) -> bool:
        """True if there is everything that `protect` makes in this mode."""
        return self.has_triggers and (self.mode != ENFORCE or BLOBS in self.kinds)

    @property
    def is_orphaned(self) -> bool:
        """True if the table has triggers, and there is no record of them."""
        return self.recorded is None

    @property
    def is_renamed(self) -> bool:
        """True if the table has its triggers, and another name than its record says."""
        return self.table not in (None, self.name) and not self.is_orphaned

    def is_as_asked(self, table: str, mode: str) -> bool:
        """Return whether `protect` has nothing to do for this table in this mode."""
        return self.is_whole and (self.name, self.mode, self.recorded) == (table, mode, mode)

    def is_of(self, table: str) -> bool:
        """Return whether it is about this table: by its triggers, or by its name if it has none."""
        return _is_same(table, self.table or self.name)

    def is_recorded_as(self, table: str) -> bool:
        """Return whether the table was protected under this name."""
        return _is_same(table, self.name)

    def shown(self) -> Protection:
        """Return the public view of the entry."""
        return Protection(self.table or self.name, self.resource, self.mode)


def read_entries(marks: SQLiteMarks) -> list[SQLiteProtectionEntry]:
    """Return every table that was protected and not unprotected since, and every other one that has our triggers."""
    entries = _read_made(marks)
    if _RECORD in marks.read_names():
        for entry_id, resource, name, mode in marks.ask(SQL.read_protected):
            bare = SQLiteProtectionEntry(entry_id, resource, name, None, "", frozenset(), mode)
            made = entries.get(entry_id, bare)
            entries[entry_id] = made._replace(resource=resource, name=name, recorded=mode)
    return [entries[entry_id] for entry_id in sorted(entries)]


def _read_made(marks: SQLiteMarks) -> dict[int, SQLiteProtectionEntry]:
    """Return what the triggers and indexes themselves say, by the number in their names."""
    made: dict[int, SQLiteProtectionEntry] = {}
    for name, table, text in marks.ask(SQL.read_parts):
        if (parts := _NAME.fullmatch(name)) is None:
            continue
        mode, kind, entry_id = parts[1], parts[2], int(parts[3])
        found = _RESOURCE.search(text)
        known = made.get(entry_id) or SQLiteProtectionEntry(entry_id, "", table, table, mode, frozenset(), None)
        resource = found[1].replace("''", "'") if found else known.resource
        made[entry_id] = known._replace(resource=resource, kinds=known.kinds | {kind})
    return made


def read_protections(marks: SQLiteMarks, resource: str | None) -> tuple[Protection, ...]:
    """Return the tables that are protected now, of one resource or of all."""
    if not marks.has_schema():
        return ()
    return tuple(
        entry.shown() for entry in read_entries(marks) if entry.has_triggers and resource in (None, entry.resource)
    )


def protect(marks: SQLiteMarks, request: ask.Protect) -> ask.Protected:
    """Bind the resource to its lock, and give each table its triggers and index; return the tables whose mode changed,
    as they were before.
    """
    marks.complete_schema()
    if request.resource not in marks.read((request.resource,)):
        marks.write(Mark(request.resource, request.lock))
    return ask.Protected(_protect(marks, request.resource, request.tables, request.mode))


def check_mark_kept(marks: SQLiteMarks, resource: str) -> None:
    """Raise SchemaError if the resource has triggers and no mark, since `protect` makes the mark first: a migration has
    dropped it, and with a new one the lease that is sealed first could be an old one.
    """
    if resource in marks.read((resource,)):
        return
    for entry in read_entries(marks):
        if entry.resource == resource and entry.table is not None:
            raise SchemaError(
                f"{marks.path} has lost the mark of resource {resource!r}: table {entry.table!r} has triggers of "
                f"fencelock for it, so a migration has dropped fencelock's own tables. An old lease could seal a new "
                f"mark: run `fencelock protect sqlite:///{marks.path} --resource … --lock … --table … "
                f"--source SOURCE`, which raises it, or `fencelock unprotect`"
            )


def _protect(marks: SQLiteMarks, resource: str, tables: tuple[str, ...], mode: str) -> tuple[Protection, ...]:
    changed: list[Protection] = []
    for table in dict.fromkeys(find_table(marks, name) for name in tables):
        entries = read_entries(marks)
        known = [entry for entry in entries if entry.is_of(table)]
        record_names(marks, entries, table)
        for entry in known:
            if entry.table is not None and entry.resource not in (resource, ""):
                raise GuardError(
                    f"table {table!r} belongs to resource {entry.resource!r} already, and a table has one "
                    f"resource: unprotect it there first, or name that resource"
                )
        if len(known) == 1 and known[0].is_as_asked(table, mode):
            continue
        for entry in known:
            _remove(marks, entry)
            if entry.is_orphaned:
                changed.append(replace(entry.shown(), mode=ORPHANED))
            elif entry.table is not None and entry.mode != mode:
                changed.append(entry.shown())
        _install(marks, resource, table, mode, highest=max((entry.id for entry in entries), default=0))
    return tuple(changed)


def record_names(marks: SQLiteMarks, entries: list[SQLiteProtectionEntry], protecting: str = "") -> None:
    """Record the names that renamed tables have now.

    A record keeps the old name if an unprotected table has it, because it stops guarded blocks (G16), until somebody
    protects that table.
    """
    for entry in entries:
        if entry.is_renamed and (entry.is_recorded_as(protecting) or not is_replaced(marks, entry, entries)):
            marks.native.execute(SQL.rename_protected, {"id": entry.id, "name": entry.table})


def is_replaced(marks: SQLiteMarks, entry: SQLiteProtectionEntry, entries: list[SQLiteProtectionEntry]) -> bool:
    """Return whether the table was renamed, and another one, which is not protected, has its recorded name."""
    return (
        entry.is_renamed
        and not any(one.table is not None and one.is_of(entry.name) for one in entries)
        and any(kind != "view" for _, kind in marks.ask(SQL.find_table, {"name": entry.name}))
    )


def unprotect(marks: SQLiteMarks, resource: str, tables: tuple[str, ...]) -> tuple[Protection, ...]:
    """Drop the triggers and indexes of these tables of the resource, or of all its tables, and their records."""
    known = read_entries(marks)
    entries = [entry for entry in known if entry.resource == resource]
    if not (known if tables else entries):
        raise nothing_protected(resource)
    chosen = dict.fromkeys(
        entry for name in tables for entry in _entries_of(marks, entries, name, resource)
    ) or dict.fromkeys(entries)
    for entry in chosen:
        _remove(marks, entry)
    return tuple(entry.shown() for entry in chosen)


def restore(marks: SQLiteMarks, resource: str, tables: tuple[str, ...]) -> None:
    """Protect rebuilt tables again, in their recorded modes."""
    entries = [entry for entry in read_entries(marks) if entry.resource == resource and not entry.is_orphaned]
    for name in tables:
        table = find_table(marks, name)
        known = [entry for entry in entries if entry.is_of(table)]
        # The old table may still exist under another name, with its triggers.
        known = known or [entry for entry in entries if entry.is_recorded_as(table)]
        if not known:
            raise not_protected(table, resource)
        # A dropped table, whose name this one took, may have a record of another mode.
        is_enforced = any(entry.recorded == ENFORCE for entry in known)
        _protect(marks, resource, (table,), ENFORCE if is_enforced else OBSERVE)


def _entries_of(
    marks: SQLiteMarks, entries: list[SQLiteProtectionEntry], name: str, resource: str
) -> list[SQLiteProtectionEntry]:
    """Return what is known of a table, which may have been dropped; GuardError if that is nothing."""
    if not (found := [entry for entry in entries if entry.table is None and entry.is_of(name)]):
        table = find_table(marks, name)
        found = [entry for entry in entries if entry.is_of(table)]
        if not found:
            raise not_protected(table, resource)
    return found


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
    if table.lower().startswith((PREFIX, "sqlite_")):
        raise GuardError(f"{table!r} cannot be protected: names that begin with fencelock_ or sqlite_ are reserved")
    return str(table)


def _install(marks: SQLiteMarks, resource: str, table: str, mode: str, *, highest: int) -> None:
    row = {"highest": highest, "resource": resource, "name": table, "mode": mode}
    entry_id = marks.native.execute(SQL.add_protected, row).lastrowid
    message = (
        f"fencelock: table {table} belongs to resource {resource} and takes writes only with its newest "
        f"sealed token: write inside `with guard.transaction(lease)`; `fencelock marks` shows its lock"
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
    if not entry.is_orphaned:
        marks.native.execute(SQL.remove_protected, {"id": entry.id})


def _part(mode: str, kind: str, entry_id: int | None) -> str:
    """Return the quoted name of one trigger, or of the index."""
    return quoted(f"{PREFIX}{mode}_{kind}_{entry_id}")


def _is_same(one: str, other: str) -> bool:
    # Bytes: SQLite ignores the case of ASCII letters only.
    return one.encode().lower() == other.encode().lower()


def quoted(identifier: str) -> str:
    """Return the identifier as SQL writes it."""
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return the text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"
