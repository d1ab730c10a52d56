"""What `fencelock doctor` finds at a guarded database: whatever lets a write past the marks, as far as it can be seen.

Promise: nothing is changed. Run it with the application's own URL: what it says of a role is about that one. Not to be
seen are what a superuser has done and undone since, and rows written while a table was not protected.
"""

from collections.abc import Callable
from typing import Any

import psycopg

from fencelock.model import Finding
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.statements import statements

SQL = statements(__package__, "inspection.sql")
Rows = list[tuple[Any, ...]]


def findings(native: psycopg.Connection[Any], info: PostgresConnectionInfo) -> list[Finding]:
    """Return what in this database's set-up would break the promise."""

    def ask(statement: str) -> Rows:
        return native.execute(statement.encode()).fetchall()

    found = ask(SQL.has_schema)
    if not found or not found[0][0]:
        message = f"{info.url} holds no marks: nothing in it is guarded yet"
        remedy = f"run `fencelock protect {info.url} --resource R --lock L --table T`"
        return [Finding("no-marks", message, remedy)]
    if not found[0][1]:
        message = f"{info.url}: this role may not use the schema fencelock, so it can present no token"
        return [Finding("guard-refused", message, "as the schema's owner: GRANT USAGE ON SCHEMA fencelock TO …")]
    return [
        Finding(code, message, remedy, resource)
        for code, statement, say in _EXAMINATIONS
        for row in ask(statement)
        for message, remedy, resource in say(info.url, *row)
    ]


Said = list[tuple[str, str, str | None]]
"""What is wrong, what to do about it, and the resource that it is about."""


def _lost(url: str, table: str, resource: str) -> Said:
    message = (
        f"table {table} of resource {resource!r} was protected, and its triggers are gone, disabled or incomplete: it "
        f"was dropped or made anew, another table has its name now, or ALTER TABLE … DISABLE TRIGGER was run"
    )
    remedy = f"run `fencelock protect {url} …` again, as the last step of every migration that remakes a table"
    return [(message, remedy, resource)]


def _observed(url: str, table: str, resource: str) -> Said:
    message = f"table {table} of resource {resource!r} is only observed: stale writes are counted and let through"
    return [(message, f"see `fencelock marks {url}`, then protect it with --mode enforce", resource)]


def _truncatable(url: str, table: str, resource: str, partitions: str) -> Said:
    message = f"partitions of table {table} of resource {resource!r} can be emptied by TRUNCATE: {partitions}"
    return [
        (message, f"run `fencelock protect {url} …` again, as the last step of whatever makes partitions", resource)
    ]


def _unprotected(url: str, resource: str) -> Said:
    message = f"resource {resource!r} protects no table: only code that uses the guard is checked"
    remedy = f"run `fencelock protect {url} --resource … --lock … --table …`, unless all its data is elsewhere"
    return [(message, remedy, resource)]


def _became_unprotectable(_: str, table: str, resource: str, reason: str) -> Said:
    message = f"table {table} of resource {resource!r} has a way past its triggers: {reason}"
    return [(message, "end that, or unprotect the table and protect the one that is written", resource)]


def _references(url: str, table: str, protected: str, resource: str) -> Said:
    message = (
        f"table {table} is not protected, and has a foreign key to {protected} of resource {resource!r}: whoever "
        f"writes it can keep the holder from deleting there, and its rows follow the holder's"
    )
    remedy = f"protect it by the same resource: `fencelock protect {url} --table {table} …`, or drop the key"
    return [(message, remedy, resource)]


def _powers(_: str, role: str, is_superuser: bool, owned: list[str], may_touch_marks: bool) -> Said:
    remedy = (
        "let the application use a role that owns nothing and has USAGE on the schema fencelock, and run doctor with "
        "its URL"
    )
    if is_superuser:
        message = f"the role {role} of this URL is a superuser: it can disable triggers and write the marks"
        return [(message, remedy, None)]
    if owned:
        tables = ", ".join(owned)
        message = f"the role {role} of this URL owns {tables}: it can disable triggers, drop, detach and rewrite"
        return [(message, remedy, None)]
    if may_touch_marks:
        message = f"the role {role} of this URL may read claims or write marks: it can write as any holder may"
        return [(message, remedy, None)]
    return []


def _readers(_: str, role: str, table: str) -> Said:
    message = f"the role {role} has rights on fencelock.{table}, which shows claims or takes marks from anybody"
    remedy = f"REVOKE ALL ON fencelock.{table} FROM {role}; see to ALTER DEFAULT PRIVILEGES, too"
    return [(message, remedy, None)]


def _prepared(_: str, name: str, resource: str, since: str) -> Said:
    message = (
        f"the prepared transaction {name!r} of {since} holds the mark of resource {resource!r}: every seal waits for it"
    )
    return [(message, f"COMMIT PREPARED or ROLLBACK PREPARED '{name}'", resource)]


def _settings(_: str, setting: str) -> Said:
    message = f"{setting} is off: after a power cut marks and data may be older than what was confirmed, or damaged"
    return [(message, f"ALTER SYSTEM SET {setting} = on, and restart the server", None)]


_EXAMINATIONS: tuple[tuple[str, str, Callable[..., Said]], ...] = (
    ("lost-protection", SQL.lost, _lost),
    ("only-observed", SQL.observed, _observed),
    ("open-truncate", SQL.truncatable, _truncatable),
    ("unprotected", SQL.unprotected, _unprotected),
    ("open-side-door", SQL.became_unprotectable, _became_unprotectable),
    ("open-reference", SQL.references, _references),
    ("powerful-role", SQL.powers, _powers),
    ("open-marks", SQL.readers, _readers),
    ("prepared-transaction", SQL.prepared, _prepared),
    ("unflushed", SQL.settings, _settings),
)
