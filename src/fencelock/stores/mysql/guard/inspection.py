"""What `fencelock doctor` finds at a guarded MySQL database: every visible way to write past the marks.

Promise: nothing is changed. Run it with the application's own URL for its account's rights, and with an administrator's
for every account's: a server shows each account only its own. Not visible are what an administrator has done and undone
since, and rows written while a table was not protected.
"""

from collections.abc import Callable, Iterator

import pymysql

from fencelock.model import Finding
from fencelock.stores.mysql.connection.client import MySQLConnection
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.mysql.connection.wire import Rows, decode_text, literals, quoted, results
from fencelock.stores.mysql.guard.errors import read_report
from fencelock.stores.mysql.guard.protection import KINDS, MySQLProtectionEntry, entries_in
from fencelock.stores.sql.inspection import (
    Uses,
    idle_right,
    no_marks,
    only_observed,
    open_reference,
    orphaned,
    tables_lost,
    unprotected,
)
from fencelock.stores.statements import statements

SQL = statements(__package__, "inspection.sql")
GUARD = statements(__package__, "guard.sql")
INSTALL = statements(__package__, "install.sql")
_NO_ROUTINE = {1305, 1146}
_NO_TABLE = 1146
_NOT_PERMITTED = {1044, 1142, 1143}
_IS_FIRST = "1"


def findings(native: MySQLConnection, info: MySQLConnectionInfo) -> list[Finding]:
    """Return what in this database's setup breaks the guard's guarantees."""
    values = {"here": quoted(info.database), **literals({"database": info.database, "resource": None})}

    def ask(statement: str) -> Rows:
        return results(native, statement.format(**values))[0]

    try:
        rows = ask(GUARD.show_triggers)
        marks = ask(GUARD.show_marks)
    except pymysql.Error as error:
        report = read_report(error)
        if report is None or report.number not in _NO_ROUTINE:
            raise
        if report.number == _NO_TABLE:
            orphans = {(row[0], decode_text(row[1])) for row in ask(SQL.triggered)}
            lost = [tables_lost(info.url, [report.text])]
            return lost + [orphaned(info.url, table, resource) for table, resource in sorted(orphans)]
        if "fencelock_mark" in {row[0] for row in ask(INSTALL.read_tables)}:
            return [_without_routines(info.url)]
        return no_marks(info.url, hint=" that this account can see")
    entries = entries_in(rows)
    rights = [(decode_text(row[0]), decode_text(row[1])) for row in ask(GUARD.show_rights)]
    marked = [decode_text(mark[0]) for mark in marks]
    uses = Uses(frozenset(resource for resource, _ in rights), _read_kept(ask))
    return [
        *_about_tables(entries, rows, info.url),
        *_about_marks(entries, marked, uses, info.url),
        *_about_rights(entries, marked, rights, uses, info.url),
        *_about_side_doors(ask, entries, info.url),
    ]


def _without_routines(url: str) -> Finding:
    message = f"{url} has the guard's tables and not its routines, as after a dump without them: nobody can write there"
    return Finding("no-marks", message, f"as their owner, run `fencelock install --guard {url}`")


def _about_tables(entries: list[MySQLProtectionEntry], rows: Rows, url: str) -> Iterator[Finding]:
    """Yield what is wrong with the triggers."""
    again = f"run `fencelock protect {url} …` again, as the last step of every migration that remakes a table"
    for entry in entries:
        table = entry.table or entry.name
        named = f"table {table} of resource {entry.resource!r}"
        if entry.is_orphaned:
            yield orphaned(url, table, entry.resource)
            continue
        if not entry.mode:
            left = ", ".join(sorted(kind for kind in KINDS if entry.is_covered(kind))) or "no"
            message = (
                f"{named} was protected, and only {left} writes meet a trigger of fencelock now: the table or its "
                f"triggers were dropped or recreated"
            )
            yield Finding("lost-protection", message, again, entry.resource)
        elif entry.mode == "observe":
            yield only_observed(url, table, entry.resource)
        elif entry.other_than(entry.mode) is not None:
            message = f"{named} is between two modes: a switch was interrupted, and enforcing is in force"
            remedy = f"run `fencelock protect {url} …` again, in the mode that you want"
            yield Finding("broken-off", message, remedy, entry.resource)
        if any(row[0] == entry.id and str(row[6]) != _IS_FIRST for row in rows if row[4] is not None and entry.mode):
            message = f"another trigger of {named} runs before fencelock's: what it does in other engines stays done"
            yield Finding("late-trigger", message, again, entry.resource)


def _read_kept(ask: Callable[[str], Rows]) -> frozenset[str] | None:
    """Return the resources that keep keys; None if this account may not read them."""
    try:
        return frozenset(decode_text(row[0]) for row in ask(SQL.kept))
    except pymysql.Error as error:
        report = read_report(error)
        if report is None or report.number not in _NOT_PERMITTED:
            raise
        return None


def _about_marks(entries: list[MySQLProtectionEntry], marked: list[str], uses: Uses, url: str) -> Iterator[Finding]:
    """Yield the resources without tables, unless they need none."""
    protected = {entry.resource for entry in entries}
    for resource in marked:
        if resource not in protected and not uses.need_no_table(resource):
            yield unprotected(url, resource)


def _about_rights(
    entries: list[MySQLProtectionEntry], marked: list[str], rights: list[tuple[str, str]], uses: Uses, url: str
) -> Iterator[Finding]:
    """Yield the rights to resources without tables, marks and keys."""
    used = {*(entry.resource for entry in entries), *marked}
    for resource, account in rights:
        if uses.is_idle(resource, used):
            yield idle_right(url, resource, account)


def _about_side_doors(ask: Callable[[str], Rows], entries: list[MySQLProtectionEntry], url: str) -> Iterator[Finding]:
    """Yield what passes the triggers: cascades, engines, rights, settings."""
    resources = {entry.table: entry.resource for entry in entries if entry.mode and entry.table is not None}
    for table, parent, rule in ask(SQL.cascades):
        if table in resources and resources.get(parent) != resources[table]:
            yield _cascade(table, parent, rule, resources[table])
        elif parent in resources and table not in resources:
            yield open_reference(url, table, parent, resources[parent])
    for table, engine in ask(SQL.engines):
        if table in resources:
            message = (
                f"table {table} of resource {resources[table]!r} has the engine {engine} now, which cannot roll back"
            )
            yield Finding("not-transactional", message, "ALTER TABLE … ENGINE = InnoDB", resources[table])
    yield from _rights(ask, resources)
    for code, name, value, why in ask(SQL.settings):
        yield Finding(code, f"{name} is {value}: {why}", f"change {name}")


def _cascade(table: str, parent: str, rule: str, resource: str) -> Finding:
    message = (
        f"a foreign key of table {table} of resource {resource!r} changes its rows ({rule}) when {parent} changes, and "
        f"cascades meet no trigger: any writer of {parent} writes here"
    )
    remedy = f"protect {parent} by the same resource, or make the key RESTRICT"
    return Finding("open-cascade", message, remedy, resource)


def _rights(ask: Callable[[str], Rows], resources: dict[str, str]) -> Iterator[Finding]:
    """Yield the accounts that can pass the triggers, as far as this account may see them."""
    if not resources:
        return
    for (account, rights), tables in _powers(ask(SQL.powers), set(resources)).items():
        named = ", ".join(sorted(tables))
        message = (
            f"{account} can pass the triggers of {named}, by {rights}: TRUNCATE, DROP, ALTER and DELETE HISTORY "
            f"meet none"
        )
        remedy = (
            "let the application use an account with no more than SELECT, INSERT, UPDATE and DELETE on its own tables "
            "and EXECUTE on the routines fencelock_…"
        )
        yield Finding("powerful-role", message, remedy)
    for account, other in ask(SQL.namesakes):
        yield _namesake(account, other)
    for account, rights, table in ask(SQL.readers):
        message = f"{account} has {rights} on {table}: marks, rights and keys are only for their operator"
        yield Finding("open-marks", message, "grant rights on single tables, not on the database: REVOKE these")


def _namesake(account: str, other: str | None) -> Finding:
    if other is None:
        message = f"a session of {account} may log in by any name, and then has the rights of the account of that name"
        return Finding("namesake", message, f"DROP USER {account}")
    message = (
        f"{account} counts as {other}, who owns the routines and so has every right: they know the name and the host "
        f"with which a session has logged in, and not its account"
    )
    return Finding("namesake", message, f"let {account} have another name, or drop it")


def _powers(rows: Rows, protected: set[str]) -> dict[tuple[str, str], set[str]]:
    """Return which protected tables an account reaches by which rights."""
    powers: dict[tuple[str, str], set[str]] = {}
    for account, rights, table in rows:
        if reached := protected if table is None else protected & {table}:
            powers.setdefault((account, rights), set()).update(reached)
    return powers
