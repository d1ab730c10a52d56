"""Removing fencelock's tables from a SQLite file, and its triggers and indexes from the tables of others.

Promise: one flushed transaction removes all of it; what has no name of fencelock's stays. Never: a file created, or
deleted.
"""

from pathlib import Path

from fencelock.stores.sqlite.connection.database import Database

_FIND_TRIGGERS = """
    SELECT type, name FROM main.sqlite_schema
    WHERE type IN ('trigger', 'index') AND name GLOB 'fencelock_*' AND tbl_name NOT GLOB 'fencelock_*'
"""
_FIND_TABLES = "SELECT name FROM main.sqlite_schema WHERE type = 'table'"


def uninstall(path: Path, tables: list[str], *, drops_triggers: bool = False) -> bool:
    """Drop these tables from the file, if it exists, in one transaction, and return whether any was there.

    `drops_triggers`: first the triggers and indexes that the guard has made on the protected tables.
    """
    if not path.exists():
        return False
    database = Database(path)
    try:
        return database.transact_flushed(lambda: _drop(database, tables, drops_triggers=drops_triggers))
    finally:
        database.close()


def _drop(database: Database, tables: list[str], *, drops_triggers: bool) -> bool:
    found = database.execute(_FIND_TRIGGERS).fetchall() if drops_triggers else []
    for kind, name in found:
        database.execute(f"DROP {kind} {name}")
    names = {name for (name,) in database.execute(_FIND_TABLES).fetchall()}
    there = [table for table in tables if table in names]
    for table in there:
        database.execute(f"DROP TABLE main.{table}")
    return bool(found or there)
