"""Make fencelock's schema in a database, whose statements MySQL commits one by one.

Promise: safe when run concurrently and again; what was broken off in the middle is finished by the next run, since the
one row that says that a part is whole comes last. Run again it sees whether what is there can be used, and makes the
routines anew if it has to. A part of another version is refused, never changed. Never: run by anything but an explicit
order of somebody who may make a schema.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.constants import ER

from fencelock.errors import SchemaError, SourceUnavailableError
from fencelock.stores.mysql.connection.client import MySQLConnection, open_connection
from fencelock.stores.mysql.connection.errors import error_number, mapping_errors
from fencelock.stores.mysql.connection.forks import FORKS
from fencelock.stores.mysql.connection.own_tables import check_tables
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.statements import Statements

REQUEST_TIMEOUT_S = 60.0


def install(
    place: MySQLConnectionInfo,
    *,
    part: str,
    table: str,
    number: int,
    tables: Statements,
    routines: Statements,
    probe: str,
    finish: tuple[str, Sequence[Any]],
) -> None:
    """Make a part of the schema, unless it is there with the same number already, and can be used.

    `table` is the part's own, with a column `schema_number`, which the statement `finish` fills. A routine's statement
    bears the routine's own name behind `create_`; `probe` calls one. SchemaError if a table is not fencelock's.
    """
    native = open_connection(place, REQUEST_TIMEOUT_S)
    try:
        with mapping_errors(place):
            _lock(native, place)
            is_there = _is_installed(native, place, part, table, number)
            if not is_there:
                for name in tables:
                    _run(native, tables[name])
            check_tables(native, place, tables)
            if not (is_there and _is_answered(native, probe)):
                _make_routines(native, routines)
            if not is_there:
                _run(native, *finish)
    finally:
        FORKS.close(native)


def _is_answered(native: MySQLConnection, probe: str) -> bool:
    """Tell whether there are routines, whose account is there too: they run with its rights."""
    try:
        _run(native, probe)
    except pymysql.Error as error:
        if error_number(error) not in {ER.SP_DOES_NOT_EXIST, ER.NO_SUCH_USER}:
            raise
        return False
    return True


def _make_routines(native: MySQLConnection, routines: Statements) -> None:
    """Make the routines as this account's, whatever there is of them. MariaDB can keep what was granted on them."""
    can_replace = "MariaDB" in native.get_server_info()
    for name in routines:
        if not can_replace:
            _run(native, f"DROP PROCEDURE IF EXISTS {name.replace('create_', 'fencelock_', 1)}")
        create = "CREATE OR REPLACE PROCEDURE" if can_replace else "CREATE PROCEDURE"
        _run(native, routines[name].replace("CREATE PROCEDURE", create, 1))


def _run(
    native: MySQLConnection, statement: str, parameters: Sequence[Any] | None = None
) -> tuple[tuple[Any, ...], ...]:
    with native.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall()  # type: ignore[no-any-return]


def _lock(native: MySQLConnection, place: MySQLConnectionInfo) -> None:
    """Let one installation in this database run at a time; the lock ends with the connection."""
    # The server's names for locks are short, and shared by all databases.
    name = "fencelock " + hashlib.sha256(place.database.encode()).hexdigest()[:32]
    if _run(native, "SELECT GET_LOCK(%s, %s)", [name, int(REQUEST_TIMEOUT_S) - 5]) != ((1,),):
        raise SourceUnavailableError(f"{place.url}: another installation runs there, and does not end: try again")


def _is_installed(native: MySQLConnection, place: MySQLConnectionInfo, part: str, table: str, number: int) -> bool:
    try:
        rows = _run(native, f"SELECT schema_number FROM {table}")  # noqa: S608 - a name of fencelock's own
    except pymysql.Error as error:
        if error_number(error) != ER.NO_SUCH_TABLE:
            raise
        return False
    if rows:
        check_number(place, part, rows[0][0], number)
    return bool(rows)


def check_number(place: MySQLConnectionInfo, part: str, found: object, number: int) -> None:
    """Raise SchemaError unless the part of the schema that was found has this number."""
    if found != number:
        raise SchemaError(
            f"{place.url} holds fencelock's {part} with schema {found}, and this version of fencelock has schema "
            f"{number}: use the version that made it"
        )
