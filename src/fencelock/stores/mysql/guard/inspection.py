"""What `fencelock doctor` finds at a guarded database: whatever lets a write past the marks, as far as it can be seen.

Promise: nothing is changed. Run it with the application's own URL for what its account may do, and with an
administrator's for what every account may: a server shows each account no more than its own. Not to be seen are what an
administrator has done and undone since, and rows written while a table was not protected.
"""

from collections.abc import Callable, Iterator

import pymysql

from fencelock.model import Finding
from fencelock.stores.mysql.connection.client import MySQLConnection
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.mysql.connection.wire import Rows, literals, quoted, results
from fencelock.stores.mysql.guard.errors import read_report
from fencelock.stores.mysql.guard.protection import KINDS, MySQLProtectionEntry, entries_in
from fencelock.stores.statements import statements

SQL = statements(__package__, "inspection.sql")
SHOWN = statements(__package__, "guard.sql")
Said = list[tuple[str, str]]
_NO_ROUTINE = {1305, 1146}
_STARTS_ALL = "1"


def findings(native: MySQLConnection, info: MySQLConnectionInfo) -> list[Finding]:
    """Return what in this database's set-up would break the promise."""
    values = {"here": quoted(info.database), **literals({"database": info.database, "resource": None})}

    def ask(statement: str) -> Rows:
        return results(native, statement.format(**values))[0]

    try:
        rows = ask(SHOWN.show_triggers)
        marks = ask(SHOWN.show_marks)
    except pymysql.Error as error:
        report = read_report(error)
        if report is None or report.number not in _NO_ROUTINE:
            raise
        message = f"{info.url} holds no marks that this account can see: nothing in it is guarded yet"
        return [Finding("no-marks", message, f"run `fencelock protect {info.url} --resource R --lock L --table T`")]
    entries = entries_in(rows)
    return [*_of_tables(entries, marks, rows, info), *_of_the_rest(ask, entries, info)]


def _of_tables(
    entries: list[MySQLProtectionEntry], marks: Rows, rows: Rows, info: MySQLConnectionInfo
) -> Iterator[Finding]:
    """Tell what is wrong with the triggers."""
    for entry in entries:
        named = f"table {entry.table or entry.name} of resource {entry.resource!r}"
        again = f"run `fencelock protect {info.url} …` again, as the last step of every migration that remakes a table"
        if not entry.mode:
            there = ", ".join(sorted(kind for kind in KINDS if entry.is_met(kind))) or "no"
            message = (
                f"{named} was protected, and {there} writes meet a trigger of ours now: it was dropped, made anew, or "
                f"its triggers were"
            )
            yield Finding("lost-protection", message, again, entry.resource)
        elif entry.mode == "observe":
            message = f"{named} is only observed: stale writes are counted and let through"
            remedy = f"see `fencelock marks {info.url}`, then protect it with --mode enforce"
            yield Finding("only-observed", message, remedy, entry.resource)
        elif entry.other_than(entry.mode) is not None:
            message = f"{named} is between two modes: a switch was broken off, and enforcing is in force"
            remedy = f"run `fencelock protect {info.url} …` again, in the mode that you want"
            yield Finding("broken-off", message, remedy, entry.resource)
        if any(row[0] == entry.id and str(row[6]) != _STARTS_ALL for row in rows if row[4] is not None and entry.mode):
            message = f"another trigger of {named} sees a row before ours: what it does in other engines is not undone"
            yield Finding("late-trigger", message, again, entry.resource)
    known = {entry.resource for entry in entries}
    for resource in (bytes(mark[0]).decode() for mark in marks):
        if resource not in known:
            message = f"resource {resource!r} protects no table: only code that uses the guard is checked"
            remedy = f"run `fencelock protect {info.url} --resource … --lock … --table …`, unless its data is elsewhere"
            yield Finding("unprotected", message, remedy, resource)


def _of_the_rest(
    ask: Callable[[str], Rows], entries: list[MySQLProtectionEntry], info: MySQLConnectionInfo
) -> Iterator[Finding]:
    """Tell what goes past triggers: cascades, engines, rights, settings."""
    resources = {entry.table: entry.resource for entry in entries if entry.mode and entry.table is not None}
    for table, parent, rule in ask(SQL.cascades):
        if table in resources and resources.get(parent) != resources[table]:
            yield _cascade(table, parent, rule, resources[table])
        elif parent in resources and table not in resources:
            yield _reference(table, parent, resources[parent], info)
    for table, engine in ask(SQL.engines):
        if table in resources:
            message = (
                f"table {table} of resource {resources[table]!r} is of the engine {engine} now, which undoes nothing"
            )
            yield Finding("not-transactional", message, "ALTER TABLE … ENGINE = InnoDB", resources[table])
    yield from _rights(ask, resources)
    for name, value, why in ask(SQL.settings):
        yield Finding("unflushed" if "flush" in name else "replication", f"{name} is {value}: {why}", f"see to {name}")


def _cascade(table: str, parent: str, rule: str, resource: str) -> Finding:
    message = (
        f"a foreign key of table {table} of resource {resource!r} changes its rows ({rule}) when {parent} changes, and "
        f"cascades meet no trigger: whoever writes {parent} writes here"
    )
    remedy = f"protect {parent} by the same resource, or make the key RESTRICT"
    return Finding("open-cascade", message, remedy, resource)


def _reference(table: str, parent: str, resource: str, info: MySQLConnectionInfo) -> Finding:
    message = (
        f"table {table} is not protected and has a foreign key to {parent} of resource {resource!r}: whoever writes it "
        f"can keep the holder from deleting there, and its rows follow the holder's"
    )
    remedy = f"protect it too: `fencelock protect {info.url} --table {table} …`"
    return Finding("open-reference", message, remedy, resource)


def _rights(ask: Callable[[str], Rows], resources: dict[str, str]) -> Iterator[Finding]:
    """Tell which accounts can go past the triggers, as far as this one is shown them."""
    if not resources:
        return
    for (account, rights), tables in _powers(ask(SQL.powers), set(resources)).items():
        named = ", ".join(sorted(tables))
        message = (
            f"{account} can go past the triggers of {named}, by {rights}: TRUNCATE, DROP, ALTER and DELETE HISTORY "
            f"meet none, and a temporary table fencelock_mark of a session's own hides the marks from it"
        )
        remedy = (
            "let the application use an account with no more than SELECT, INSERT, UPDATE and DELETE on its own tables "
            "and EXECUTE on the routines fencelock_…"
        )
        yield Finding("powerful-role", message, remedy)
    for account, rights, table in ask(SQL.readers):
        message = f"{account} has {rights} on {table}, where claims and marks are"
        yield Finding("open-marks", message, "grant rights on single tables, not on the database: REVOKE these")


def _powers(rows: Rows, protected: set[str]) -> dict[tuple[str, str], set[str]]:
    """Return which protected tables an account reaches by which rights."""
    powers: dict[tuple[str, str], set[str]] = {}
    for account, rights, table in rows:
        if reached := protected if table is None else protected & {table}:
            powers.setdefault((account, rights), set()).update(reached)
    return powers
