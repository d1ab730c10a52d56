"""Whether the tables of a schema are fencelock's own: `CREATE TABLE IF NOT EXISTS` is content with anybody's.

Promise: nothing is read but the names of columns, and nothing is changed.
"""

import re
from collections.abc import Iterator

import pymysql
from pymysql.constants import ER

from fencelock.errors import SchemaError
from fencelock.stores.mysql.connection.client import MySQLConnection
from fencelock.stores.mysql.connection.errors import error_number
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.statements import Statements

_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \(")
_COLUMN = re.compile(r"^ {4}([a-z_]+) ", re.MULTILINE)


def check_tables(native: MySQLConnection, place: MySQLConnectionInfo, schema: Statements) -> None:
    """Raise SchemaError unless each table of the schema is there, with just the columns that it is made with."""
    for table, columns in _tables_of(schema):
        found = _columns_of(native, table)
        if not found:
            raise SchemaError(f"{place.url} has lost its table {table}: restore it from a backup")
        if found != columns:
            raise SchemaError(
                f"{place.url} has a table {table} that is not fencelock's own (it has the columns "
                f"{', '.join(sorted(found))}): rename it, or use another database, and run the same again"
            )


def _tables_of(schema: Statements) -> Iterator[tuple[str, set[str]]]:
    """Yield the tables that a schema makes, with their columns."""
    for name in schema:
        if made := _TABLE.match(schema[name]):
            yield made[1], set(_COLUMN.findall(schema[name]))


def _columns_of(native: MySQLConnection, table: str) -> set[str]:
    """Return the names of a table's columns; none: there is no such table."""
    try:
        with native.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table} LIMIT 0")  # noqa: S608 - a name of fencelock's own
            return {column[0] for column in cursor.description}
    except pymysql.Error as error:
        if error_number(error) != ER.NO_SUCH_TABLE:
            raise
        return set()
