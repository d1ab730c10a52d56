"""Installing and removing one part of fencelock's schema in a MySQL database, which commits each DDL by itself.

Promise: safe to run concurrently and repeatedly. A run that was interrupted is completed by the next one, since the row
that marks a part as whole is written last. A later run checks that the part can be used, and creates the routines anew
if it cannot. A part of another version is refused, never changed, and so is another program's table of the same name.
Never runs except by an operator's explicit command.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pymysql
from pymysql.constants import ER

from fencelock.errors import SchemaError, SourceError, SourceUnavailableError
from fencelock.stores.errors import check_schema_number
from fencelock.stores.mysql.connection.client import FORKS, MySQLConnection
from fencelock.stores.mysql.connection.errors import error_mapper, error_number
from fencelock.stores.mysql.connection.expressions import expand
from fencelock.stores.mysql.connection.opening import open_connection
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.statements import Statements

REQUEST_TIMEOUT_S = 60.0
_FIND_TRIGGERS = """
    SELECT TRIGGER_NAME FROM information_schema.TRIGGERS
    WHERE TRIGGER_SCHEMA = %s AND TRIGGER_NAME LIKE 'fencelock\\_%%'
"""
_FIND_TABLES = "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME IN %s LIMIT 1"
_FIND_REFERENCES = """
    SELECT CONCAT(CONSTRAINT_SCHEMA, '.', TABLE_NAME, ' references ', REFERENCED_TABLE_NAME)
    FROM information_schema.REFERENTIAL_CONSTRAINTS
    WHERE UNIQUE_CONSTRAINT_SCHEMA = %s AND REFERENCED_TABLE_NAME IN %s
        AND NOT (CONSTRAINT_SCHEMA = UNIQUE_CONSTRAINT_SCHEMA AND TABLE_NAME IN %s)
"""
_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \(")
_COLUMN = re.compile(r"^ {4}([a-z_]+) ", re.MULTILINE)


def install(
    info: MySQLConnectionInfo,
    *,
    part: str,
    table: str,
    number: int,
    tables: Statements,
    routines: Sequence[Statements],
    probe: str,
    finish: tuple[str, Sequence[Any]],
) -> None:
    """Create a part of the schema, unless it is installed with this number already and can be used.

    `table` is the part's own table; the statement `finish` fills its column `schema_number`. A routine's statement is
    named `create_` and the routine's name; `probe` calls one. SchemaError if a table is not fencelock's.
    """
    native = open_connection(info, REQUEST_TIMEOUT_S)
    try:
        with error_mapper(info):
            _lock(native, info)
            is_installed = _is_installed(native, info, part, table, number)
            if not is_installed:
                for name in tables:
                    _run(native, tables[name])
            check_tables(native, info, tables)
            if not (is_installed and _is_usable(native, probe)):
                for file in routines:
                    _create_routines(native, file)
            if not is_installed:
                # Last, since DDL commits by itself: an interrupted run leaves no number, and the next one completes it.
                _run(native, *finish)
    finally:
        FORKS.close(native)


def is_installed(info: MySQLConnectionInfo, *, part: str, table: str, number: int) -> bool:
    """Return whether a part of the schema is installed; SchemaError if it has another number."""
    native = open_connection(info, REQUEST_TIMEOUT_S)
    try:
        with error_mapper(info):
            return _is_installed(native, info, part, table, number)
    finally:
        FORKS.close(native)


def check_removal(info: MySQLConnectionInfo, *, tables: Statements) -> None:
    """Raise SourceError if a foreign key of somebody else's table keeps the server from dropping one of ours."""
    ours = tables.created("TABLE")
    native = open_connection(info, REQUEST_TIMEOUT_S)
    try:
        with error_mapper(info):
            found = _run(native, _FIND_REFERENCES, [info.database, ours, ours])
    finally:
        FORKS.close(native)
    if found:
        named = "; ".join(str(reference) for (reference,) in found)
        raise SourceError(
            f"{info.url}: others need what is to be removed ({named}): drop their foreign keys first, and run the same "
            f"again. Nothing was removed there"
        )


def uninstall(
    info: MySQLConnectionInfo, *, tables: Statements, routines: Iterable[str], drops_triggers: bool = False
) -> bool:
    """Drop a part of the schema, and return whether any of its tables was there; the table that is created first, which
    holds its number, is dropped last.

    `drops_triggers`: first the triggers that the guard has made on the protected tables.
    """
    native = open_connection(info, REQUEST_TIMEOUT_S)
    try:
        with error_mapper(info):
            _lock(native, info)
            was_there = bool(_run(native, _FIND_TABLES, [info.database, tables.created("TABLE")]))
            for (trigger,) in _run(native, _FIND_TRIGGERS, [info.database]) if drops_triggers else ():
                _run(native, f"DROP TRIGGER IF EXISTS {trigger}")
            for routine in routines:
                _run(native, f"DROP PROCEDURE IF EXISTS {routine}")
            for table in reversed(tables.created("TABLE")):
                _run(native, f"DROP TABLE IF EXISTS {table}")
    finally:
        FORKS.close(native)
    return was_there


def _is_usable(native: MySQLConnection, probe: str) -> bool:
    """Return whether the routines exist, and the account too with whose rights they run."""
    try:
        _run(native, probe)
    except pymysql.Error as error:
        if error_number(error) not in {ER.SP_DOES_NOT_EXIST, ER.NO_SUCH_USER}:
            raise
        return False
    return True


def _create_routines(native: MySQLConnection, routines: Statements) -> None:
    """Create the routines as this account's, replacing existing ones."""
    # CREATE OR REPLACE keeps the rights that were granted on a routine; only MariaDB has it.
    can_replace = "MariaDB" in native.get_server_info()
    for name in routines:
        if not can_replace:
            _run(native, f"DROP PROCEDURE IF EXISTS {name.replace('create_', 'fencelock_', 1)}")
        create = "CREATE OR REPLACE PROCEDURE" if can_replace else "CREATE PROCEDURE"
        _run(native, expand(routines[name]).replace("CREATE PROCEDURE", create, 1))


def _run(
    native: MySQLConnection, statement: str, parameters: Sequence[Any] | None = None
) -> tuple[tuple[Any, ...], ...]:
    with native.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall()  # type: ignore[no-any-return]


def _lock(native: MySQLConnection, info: MySQLConnectionInfo) -> None:
    """Admit one installation in this database at a time; the lock ends with the connection."""
    # Names of the server's locks are short, and shared by all databases.
    name = "fencelock " + hashlib.sha256(info.database.encode()).hexdigest()[:32]
    if _run(native, "SELECT GET_LOCK(%s, %s)", [name, int(REQUEST_TIMEOUT_S) - 5]) != ((1,),):
        raise SourceUnavailableError(f"{info.url}: another installation is running there and does not end: try again")


def _is_installed(native: MySQLConnection, info: MySQLConnectionInfo, part: str, table: str, number: int) -> bool:
    try:
        rows = _run(native, f"SELECT schema_number FROM {table}")  # noqa: S608 - a name of fencelock's own
    except pymysql.Error as error:
        if error_number(error) != ER.NO_SUCH_TABLE:
            raise
        return False
    if rows:
        check_schema_number(info.url, part, rows[0][0], number)
    return bool(rows)


def check_tables(native: MySQLConnection, info: MySQLConnectionInfo, schema: Statements) -> None:
    """Raise SchemaError unless each table of the schema exists with exactly the columns of its statement.

    `CREATE TABLE IF NOT EXISTS` accepts any table of the name, also one of another program.
    """
    for table, columns in _tables_of(schema):
        found = _columns_of(native, table)
        if not found:
            raise SchemaError(f"{info.url} has lost its table {table}: restore it from a backup")
        if found != columns:
            raise SchemaError(
                f"{info.url} has a table {table} that is not fencelock's own (it has the columns "
                f"{', '.join(sorted(found))}): rename it, or use another database, and run the same again"
            )


def _tables_of(schema: Statements) -> Iterator[tuple[str, set[str]]]:
    """Yield the tables that a schema creates, with their columns."""
    for name in schema:
        if created := _TABLE.match(schema[name]):
            yield created[1], set(_COLUMN.findall(schema[name]))


def _columns_of(native: MySQLConnection, table: str) -> set[str]:
    """Return the names of a table's columns; empty if there is no such table."""
    try:
        with native.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table} LIMIT 0")  # noqa: S608 - a name of fencelock's own
            return {column[0] for column in cursor.description}
    except pymysql.Error as error:
        if error_number(error) != ER.NO_SUCH_TABLE:
            raise
        return set()
