"""What `fencelock doctor` finds at a guarded PostgreSQL database: every visible way to write past the marks.

Promise: nothing is changed. Run it with the application's own URL: the findings about a role are about that URL's role.
Not visible are what a superuser has done and undone since, and rows written while a table was not protected.
"""

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from fencelock.model import Finding
from fencelock.stores.postgres.connection.inspection import open_functions
from fencelock.stores.postgres.connection.install import lost_tables
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
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
SCHEMA = statements(__package__, "schema.sql")
Rows = list[tuple[Any, ...]]


def findings(native: psycopg.Connection[Any], info: PostgresConnectionInfo) -> list[Finding]:
    """Return what in this database's setup breaks the guard's guarantees."""

    def ask(statement: str) -> Rows:
        return native.execute(statement.encode()).fetchall()

    found = ask(SQL.has_schema)
    if ask(SQL.is_left) == [(True,)] and (lost := lost_tables(native, (SCHEMA,))):
        findings = ask(SQL.orphaned if ask(SQL.has_records) == [(True,)] else SQL.triggered)
        return [tables_lost(info.url, lost), *(orphaned(info.url, *row) for row in findings)]
    if not found or not found[0][0]:
        return no_marks(info.url)
    if not found[0][1]:
        message = f"{info.url}: this role may not use the schema fencelock, so it can present no token"
        return [Finding("guard-refused", message, "as the schema's owner: GRANT USAGE ON SCHEMA fencelock TO …")]
    if found[0][2]:
        return [open_functions(info.url, "write to protected tables without a token")]
    uses = _read_uses(ask)
    return [
        *(unprotected(info.url, resource) for (resource,) in ask(SQL.unprotected) if not uses.need_no_table(resource)),
        *_idle_rights(ask, uses, info.url),
        *_examine(ask, info.url),
    ]


def _examine(ask: Callable[[str], Rows], url: str) -> list[Finding]:
    return [
        finding
        for statement, find in _EXAMINATIONS
        for row in ask(statement)
        if (finding := find(url, *row)) is not None
    ]


def _lost(url: str, table: str, resource: str) -> Finding:
    message = (
        f"table {table} of resource {resource!r} was protected, and its triggers are gone, disabled or incomplete: it "
        f"was dropped or recreated, another table has its name now, or ALTER TABLE … DISABLE TRIGGER was run"
    )
    remedy = f"run `fencelock protect {url} …` again, as the last step of every migration that remakes a table"
    return Finding("lost-protection", message, remedy, resource)


def _truncatable(url: str, table: str, resource: str, partitions: str) -> Finding:
    message = f"partitions of table {table} of resource {resource!r} can be emptied by TRUNCATE: {partitions}"
    remedy = f"run `fencelock protect {url} …` again, as the last step of everything that creates partitions"
    return Finding("open-truncate", message, remedy, resource)


def _became_unprotectable(_: str, table: str, resource: str, reason: str) -> Finding:
    message = f"table {table} of resource {resource!r} can be written past its triggers: {reason}"
    return Finding(
        "open-side-door", message, "end that, or unprotect the table and protect the one that is written", resource
    )


def _powers(
    _: str, role: str, is_superuser: bool, owned: list[str], replaceable: list[str], may_touch_marks: bool
) -> Finding | None:
    remedy = (
        "let the application use a role that owns nothing and has USAGE on the schema fencelock, and run doctor with "
        "its URL"
    )
    if is_superuser:
        message = f"the role {role} of this URL is a superuser: it can disable triggers and write the marks"
    elif owned:
        tables = ", ".join(owned)
        message = f"the role {role} of this URL owns {tables}: it can disable triggers, drop, detach and rewrite"
    elif replaceable:
        tables = ", ".join(replaceable)
        message = (
            f"the role {role} of this URL has TRIGGER on {tables}: it can replace the triggers, and make some that run "
            f"in other sessions"
        )
        remedy = f"REVOKE TRIGGER ON {tables} FROM {role}, or from the role or PUBLIC that has it; GRANT ALL gives it"
    elif may_touch_marks:
        message = f"the role {role} of this URL may read the guard's secrets or write marks: it can write as any holder"
    else:
        return None
    return Finding("powerful-role", message, remedy)


def _readers(_: str, role: str, table: str) -> Finding:
    message = f"the role {role} has rights on fencelock.{table}, which only the schema's owner needs"
    remedy = f"REVOKE ALL ON fencelock.{table} FROM {role}, and check ALTER DEFAULT PRIVILEGES, too"
    return Finding("open-marks", message, remedy)


def _read_uses(ask: Callable[[str], Rows]) -> Uses:
    may_read = ask(SQL.may_read_keys) == [(True,)]
    kept = frozenset(resource for (resource,) in ask(SQL.kept)) if may_read else None
    return Uses(frozenset(resource for (resource,) in ask(SQL.rights)), kept)


def _idle_rights(ask: Callable[[str], Rows], uses: Uses, url: str) -> Iterator[Finding]:
    for resource, role, is_known in ask(SQL.idle_rights):
        if not is_known:
            message = f"the role {role} has a right to resource {resource!r}, and there is no such role: who gets its "
            remedy = f"run `fencelock revoke {url} --resource {shlex.quote(resource)} --role {role} --reason …`"
            yield Finding("idle-right", f"{message}name may raise the mark", remedy, resource)
        elif uses.is_idle(resource, ()):
            yield idle_right(url, resource, role)


def _prepared(_: str, name: str, resource: str, since: str) -> Finding:
    message = f"the prepared transaction {name!r} of {since} locks the mark of resource {resource!r}: every seal waits"
    return Finding("prepared-transaction", message, f"COMMIT PREPARED or ROLLBACK PREPARED '{name}'", resource)


def _settings(_: str, setting: str) -> Finding:
    message = f"{setting} is off: after a power cut marks and data may be older than acknowledged, or damaged"
    return Finding("unflushed", message, f"ALTER SYSTEM SET {setting} = on, and restart the server")


_EXAMINATIONS: tuple[tuple[str, Callable[..., Finding | None]], ...] = (
    (SQL.lost, _lost),
    (SQL.orphaned, orphaned),
    (SQL.observed, only_observed),
    (SQL.truncatable, _truncatable),
    (SQL.became_unprotectable, _became_unprotectable),
    (SQL.references, open_reference),
    (SQL.powers, _powers),
    (SQL.readers, _readers),
    (SQL.prepared, _prepared),
    (SQL.settings, _settings),
)
"""Each statement, and the finding of one of its rows."""
