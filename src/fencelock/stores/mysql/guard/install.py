"""Making the guard's schema, when there is none.

Promise: safe when run concurrently, and again after it was broken off: DDL commits by itself here, so each step can be
repeated, and the schema's number, without which nobody calls anything, is written last. A schema that is there is left
as it is.
"""

import hashlib

import pymysql

from fencelock.errors import FencelockError, SchemaError, SourceUnavailableError
from fencelock.stores.mysql.connection.client import FORKS, MySQLConnection, open_connection
from fencelock.stores.mysql.connection.install import check_tables
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.mysql.connection.wire import results
from fencelock.stores.mysql.guard.block import REQUEST_TIMEOUT_S
from fencelock.stores.mysql.guard.codec import SCHEMA_NUMBER, check_schema
from fencelock.stores.mysql.guard.connection import PREPARE_ASIDE
from fencelock.stores.mysql.guard.errors import map_guard_error, report_of
from fencelock.stores.statements import statements

SCHEMA = statements(__package__, "schema.sql")
ROUTINES = statements(__package__, "routines.sql")
INSTALLING = statements(__package__, "install.sql")
TURN_S = 30
"""How long one installation waits for another's end."""
_NO_TABLE = 1146


def install(info: MySQLConnectionInfo) -> None:
    """Make the schema, unless it is there."""
    try:
        native = open_connection(info, REQUEST_TIMEOUT_S)
        try:
            results(native, PREPARE_ASIDE)
            if not _is_installed(native):
                _install(native, info)
        finally:
            FORKS.close(native)
    except pymysql.Error as error:
        known: FencelockError | None = map_guard_error(error, info, is_commit=False)
        raise (known or SchemaError(f"{info.url}: the schema could not be made ({error})")) from error


def _is_installed(native: MySQLConnection) -> bool:
    """Tell whether the schema is there; SchemaError if it is another one."""
    try:
        (rows,) = results(native, INSTALLING.read_schema)
    except pymysql.Error as error:
        report = report_of(error)
        if report is None or report.number != _NO_TABLE:
            raise
        return False
    if rows:
        check_schema(rows)
    return bool(rows)


def _install(native: MySQLConnection, info: MySQLConnectionInfo) -> None:
    turn = "fencelock_guard_" + hashlib.sha256(info.database.encode()).hexdigest()[:32]
    ((is_ours,),) = results(native, INSTALLING.take_turn.format(turn=turn, limit_s=TURN_S))[0]
    if not is_ours:
        raise SourceUnavailableError(f"{info.url}: somebody else has been installing for {TURN_S} s: try again")
    if _is_installed(native):
        return
    for name in SCHEMA:
        results(native, SCHEMA[name])
    check_tables(native, info, SCHEMA)
    for name in ROUTINES:
        results(native, INSTALLING.drop_routine.format(routine=name))
        results(native, ROUTINES[name])
    results(native, INSTALLING.write_schema.format(number=SCHEMA_NUMBER))
