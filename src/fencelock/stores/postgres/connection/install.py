"""Make fencelock's schema in a database: all of one part, or nothing.

Promise: safe when run concurrently and again; a part of another version is refused, never changed; whatever the
database's default privileges are, no other role is given a right on what is made. Never: run by anything but an
explicit order of somebody who may make a schema.
"""

import psycopg
from psycopg import sql

from fencelock.errors import SchemaError
from fencelock.stores.postgres.connection.client import mapping_errors, open_connection
from fencelock.stores.postgres.connection.forks import FORKS
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.statements import Statements, statements

SQL = statements(__package__, "install.sql")
REQUEST_TIMEOUT_S = 60.0
_KEY = 7378697628973295215
"""The advisory lock that lets one installation run at a time."""
_FIND_TABLE = "SELECT to_regclass(%s) IS NOT NULL"


def install(
    place: PostgresConnectionInfo, *, part: str, table: str, number: int, parts: tuple[Statements, ...]
) -> None:
    """Make a part of the schema in one transaction, unless it is there with the same number already.

    `table` is the part's own, in the schema `fencelock`, with a column `schema` that says its number.
    """
    connection = open_connection(place, REQUEST_TIMEOUT_S)
    try:
        with mapping_errors(place):
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
            connection.execute(SQL.prepare.encode(), [_KEY])
            if not _is_installed(connection, place, part, table, number):
                connection.execute("CREATE SCHEMA IF NOT EXISTS fencelock")
                for each in parts:
                    for name in each:
                        connection.execute(each[name].encode())
                for (order,) in connection.execute(SQL.find_given_away.encode()).fetchall():
                    connection.execute(order.encode())
            connection.execute("COMMIT")
    finally:
        FORKS.close(connection)


def _is_installed(
    connection: psycopg.Connection[tuple[object, ...]],
    place: PostgresConnectionInfo,
    part: str,
    table: str,
    number: int,
) -> bool:
    if connection.execute(_FIND_TABLE, [f"fencelock.{table}"]).fetchone() != (True,):
        return False
    row = connection.execute(sql.SQL("SELECT schema FROM fencelock.{}").format(sql.Identifier(table))).fetchone()
    check_number(place, part, row[0] if row else None, number)
    return True


def check_number(place: PostgresConnectionInfo, part: str, found: object, number: int) -> None:
    """Raise SchemaError unless the part of the schema that was found has this number."""
    if found != number:
        raise SchemaError(
            f"{place.url} holds fencelock's {part} with schema {found}, and this version of fencelock has schema "
            f"{number}: use the version that made it"
        )
