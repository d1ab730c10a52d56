"""Installing one part of fencelock's schema in a PostgreSQL database, and removing it: all of it, or nothing.

Promise: safe to run concurrently and repeatedly; a part of another version is refused, never changed; whatever the
database's default privileges are, no other role gets a right on the new objects. Never runs except by an operator's
explicit command.
"""

import re
from collections.abc import Iterable

import psycopg
from psycopg import sql

from fencelock.errors import SourceError
from fencelock.stores.errors import check_schema_number
from fencelock.stores.postgres.connection.client import FORKS, open_connection
from fencelock.stores.postgres.connection.errors import error_mapper
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.statements import Statements, statements

SQL = statements(__package__, "install.sql")
COMMON = statements(__package__, "common.sql")
"""What both parts call; the part that is installed first creates it."""
REQUEST_TIMEOUT_S = 60.0
_KEY = 7378697628973295215
"""The advisory lock that admits one installation at a time."""
_TABLE = re.compile(r"CREATE TABLE fencelock\.(\w+)")
_FIND_LOST = "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass('fencelock.' || name) IS NULL"
_REPEATABLE = {
    "CREATE FUNCTION": "CREATE OR REPLACE FUNCTION",
    "CREATE VIEW": "CREATE OR REPLACE VIEW",
    "CREATE TRIGGER": "CREATE OR REPLACE TRIGGER",
    "CREATE TABLE": "CREATE TABLE IF NOT EXISTS",
    "CREATE INDEX": "CREATE INDEX IF NOT EXISTS",
}
_FIND_SCHEMA = "SELECT to_regnamespace('fencelock') IS NOT NULL"
_FIND_TABLE = "SELECT to_regclass(%s) IS NOT NULL"
_FIND_COMMON = "SELECT to_regprocedure('fencelock.one_way(text)') IS NOT NULL"


def install(
    info: PostgresConnectionInfo,
    *,
    part: str,
    table: str,
    number: int,
    files: tuple[Statements, ...],
    is_repairable: bool = False,
) -> None:
    """Create a part of the schema in one transaction, unless it is installed with this number already.

    `table` is the part's own table in the schema `fencelock`; its column `schema` holds the number. `is_repairable`:
    what somebody has dropped of the part is created again, beside what is left.
    """
    connection = open_connection(info, REQUEST_TIMEOUT_S)
    try:
        with error_mapper(info):
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            connection.execute(SQL.prepare.encode(), [_KEY])
            is_whole = _is_installed(connection, info, part, table, number)
            if is_repairable and is_whole:
                is_whole = not lost_tables(connection, files)
            if not is_whole:
                connection.execute("CREATE SCHEMA IF NOT EXISTS fencelock")
                has_common = connection.execute(_FIND_COMMON).fetchone() == (True,)
                for file in files if has_common else (COMMON, *files):
                    for name in file:
                        text = _repeatable(file[name]) if is_repairable else file[name]
                        connection.execute(text.encode())
                for (revoke,) in connection.execute(SQL.list_default_grants.encode()).fetchall():
                    connection.execute(revoke.encode())
            connection.execute("COMMIT")
    finally:
        FORKS.close(connection)


def _repeatable(statement: str) -> str:
    """Return a statement of a schema that accepts what is there already."""
    for first, repeated in _REPEATABLE.items():
        if statement.startswith(first):
            return repeated + statement.removeprefix(first)
    return statement


def lost_tables(connection: psycopg.Connection[tuple[object, ...]], files: Iterable[Statements]) -> list[str]:
    """Return which tables of these files the database does not have."""
    names = [made[1] for file in files for name in file if (made := _TABLE.match(file[name]))]
    return [str(name) for (name,) in connection.execute(_FIND_LOST, [names]).fetchall()]


def is_installed(info: PostgresConnectionInfo, *, part: str, table: str, number: int) -> bool:
    """Return whether a part of the schema is installed; SchemaError if it has another number."""
    connection = open_connection(info, REQUEST_TIMEOUT_S)
    try:
        with error_mapper(info):
            return _is_installed(connection, info, part, table, number)
    finally:
        FORKS.close(connection)


def uninstall(info: PostgresConnectionInfo, *, files: tuple[Statements, ...], is_rehearsal: bool = False) -> bool:
    """Drop what these files create, and the triggers that call their functions, in one transaction; return whether
    anything was there.

    Nothing is dropped by CASCADE: an object of somebody else's that needs one of ours is an error, and undoes all. With
    the last part goes what the parts share, and the schema itself, unless somebody else has objects in it.
    `is_rehearsal`: the transaction is rolled back, so only an error comes of it.
    """
    was_there = False
    connection = open_connection(info, REQUEST_TIMEOUT_S)
    try:
        with error_mapper(info):
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            connection.execute(SQL.prepare.encode(), [_KEY])
            if connection.execute(_FIND_SCHEMA).fetchone() == (True,):
                was_there = _drop_part(connection, files)
            connection.execute("ROLLBACK" if is_rehearsal else "COMMIT")
    except SourceError as error:
        if isinstance(error.__cause__, psycopg.errors.DependentObjectsStillExist):
            raise _needed_error(info, error.__cause__) from error.__cause__
        raise
    finally:
        FORKS.close(connection)
    return was_there


def _drop_part(connection: psycopg.Connection[tuple[object, ...]], files: tuple[Statements, ...]) -> bool:
    """Drop a part, and the schema with the last one; return whether anything was there."""
    before = connection.execute(SQL.count_objects.encode()).fetchone()
    for file in files:
        _drop(connection, "VIEW", file.created("VIEW"))
    _drop_functions(connection, [name for file in files for name in file.created("FUNCTION")])
    for kind in ("TABLE", "TYPE", "SEQUENCE"):
        _drop(connection, kind, [name for file in files for name in file.created(kind)])
    if connection.execute(SQL.find_parts.encode()).fetchone() == (False,):
        _drop_functions(connection, COMMON.created("FUNCTION"))
    left = connection.execute(SQL.count_objects.encode()).fetchone()
    if left == (0,):
        connection.execute("DROP SCHEMA fencelock")
    return left == (0,) or left != before


def _needed_error(info: PostgresConnectionInfo, error: psycopg.Error) -> SourceError:
    """Return the error for objects of somebody else's that need ours: the server's detail names each on a line."""
    named = "; ".join((error.diag.message_detail or str(error)).splitlines())
    return SourceError(
        f"{info.url}: others need what is to be removed ({named}): drop them first, and run the same again. Nothing "
        f"was removed there"
    )


def _drop(connection: psycopg.Connection[tuple[object, ...]], kind: str, names: list[str]) -> None:
    if names:
        listed = sql.SQL(", ").join(sql.Identifier("fencelock", name) for name in names)
        connection.execute(sql.SQL("DROP {} IF EXISTS {}").format(sql.SQL(kind), listed))


def _drop_functions(connection: psycopg.Connection[tuple[object, ...]], names: list[str]) -> None:
    """Drop functions of any parameters, and before them the triggers that call them, on whichever tables."""
    for statement in (SQL.list_triggers, SQL.list_functions):
        for (drop,) in connection.execute(statement.encode(), [names]).fetchall():
            connection.execute(str(drop).encode())


def _is_installed(
    connection: psycopg.Connection[tuple[object, ...]],
    info: PostgresConnectionInfo,
    part: str,
    table: str,
    number: int,
) -> bool:
    if connection.execute(_FIND_TABLE, [f"fencelock.{table}"]).fetchone() != (True,):
        return False
    row = connection.execute(sql.SQL("SELECT schema FROM fencelock.{}").format(sql.Identifier(table))).fetchone()
    check_schema_number(info.url, part, row[0] if row else None, number)
    return True
