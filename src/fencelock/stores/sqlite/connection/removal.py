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


def uninstall(path: Path, tables: list[str], *, drops_triggers: bool = False) -> None:
    """Drop these tables from the file, if it exists, in one transaction.

    `drops_triggers`: first the triggers and indexes that the guard has made on the protected tables.
    """
    if not path.exists():
        return
    database = Database(path)
    try:
        database.transact_flushed(lambda: _drop(database, tables, drops_triggers=drops_triggers))
    finally:
        database.close()


def _drop(database: Database, tables: list[str], *, drops_triggers: bool) -> None:
    found = database.execute(_FIND_TRIGGERS).fetchall() if drops_triggers else []
    for kind, name in found:
        database.execute(f"DROP {kind} {name}")
    for table in tables:
        database.execute(f"DROP TABLE IF EXISTS main.{table}")
