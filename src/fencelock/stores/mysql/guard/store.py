"""The guard of a MySQL or MariaDB database: marks beside the data, and triggers by which the database refuses stale
writers.

Promise: making one opens nothing; a few connections are kept for reuse, and one that its user has changed is closed
instead. A holder that is frozen inside a guarded transaction delays others no longer than its lease: the server ends
its connection. `examine` reports an account with rights on the tables' definitions; nothing can prevent what it does.
`install` is safe to run concurrently, and again after an interruption: each DDL statement commits by itself and can be
repeated, and the schema's number, without which nothing is called, is written last.
"""

import hashlib
from functools import partial
from typing import Any, cast

import pymysql

from fencelock.errors import FencelockError, SchemaError, SourceUnavailableError
from fencelock.model import Finding
from fencelock.protocol.generators import run_generator
from fencelock.stores.errors import GUARD_PART
from fencelock.stores.mysql.connection.client import FORKS, MySQLConnection, is_alive
from fencelock.stores.mysql.connection.errors import error_mapper
from fencelock.stores.mysql.connection.expressions import expand
from fencelock.stores.mysql.connection.install import check_removal, check_tables, is_installed, uninstall
from fencelock.stores.mysql.connection.masks import SharedMask, draw_mask_secret
from fencelock.stores.mysql.connection.opening import open_async_connection, open_connection
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo, parse_url
from fencelock.stores.mysql.connection.wire import results, results_async
from fencelock.stores.mysql.guard.block import REQUEST_TIMEOUT_S, AsyncMySQLBlockConnection, MySQLBlockConnection
from fencelock.stores.mysql.guard.caller import AsyncMySQLCallerConnection, MySQLCallerConnection
from fencelock.stores.mysql.guard.codec import SQL
from fencelock.stores.mysql.guard.connection import SETTLE_SEPARATE, AsyncMySQLGuardConnection, MySQLGuardConnection
from fencelock.stores.mysql.guard.errors import map_request_error, read_report
from fencelock.stores.mysql.guard.framework import MySQLFrameworkConnection
from fencelock.stores.mysql.guard.inspection import findings
from fencelock.stores.mysql.guard.protection import Protector
from fencelock.stores.sql.guard import SCHEMA_NUMBER, check_guard_schema
from fencelock.stores.sql.guard_store import AsyncIdleConnections, GuardStoreBase, IdleConnections
from fencelock.stores.sql.inspection import guard_refused
from fencelock.stores.statements import statements

SCHEMA = statements(__package__, "schema.sql")
TABLES = tuple(SCHEMA.created("TABLE"))
ROUTINES = tuple(
    statements(__package__, f"routines_{name}.sql") for name in ("checks", "present", "effects", "marks", "floors")
)
"""In the order in which they are installed."""
INSTALL = statements(__package__, "install.sql")
INSTALL_WAIT_S = 30
"""How long one installation waits for another to end."""
_NO_TABLE = 1146
_NO_ROUTINE = 1305


def open_block_connection(info: MySQLConnectionInfo) -> MySQLBlockConnection:
    """Return a new connection for blocks, with the server's own defaults except autocommit."""
    native = cast("MySQLBlockConnection", open_connection(info, REQUEST_TIMEOUT_S, MySQLBlockConnection))
    results(native, SQL.settle_block)
    return native


async def open_async_block_connection(info: MySQLConnectionInfo) -> AsyncMySQLBlockConnection:
    """Return a new connection of the running loop for blocks, with the server's own defaults except autocommit."""
    native = cast(
        "AsyncMySQLBlockConnection", await open_async_connection(info, REQUEST_TIMEOUT_S, AsyncMySQLBlockConnection)
    )
    await results_async(native, SQL.settle_block)
    return native


class MySQLGuard(GuardStoreBase[MySQLBlockConnection, AsyncMySQLBlockConnection]):
    """A database that keeps marks and enforces them."""

    has_transactional_ddl = False

    def __init__(self, url: str) -> None:
        info = self.info = parse_url(url)
        self._mask = SharedMask()
        super().__init__(
            info.url,
            IdleConnections(lambda: open_block_connection(info), is_alive, FORKS.close),
            AsyncIdleConnections(lambda: open_async_block_connection(info), is_alive, FORKS.close),
        )

    def connect(self) -> MySQLGuardConnection:
        """Return a connection of the guard's own, which opens with its first request."""
        return MySQLGuardConnection(self.info, self._mask, self._idle)

    def connect_async(self) -> AsyncMySQLGuardConnection:
        """Return a connection for the running loop, which opens with its first request."""
        return AsyncMySQLGuardConnection(self.info, self._mask, self._async_idle)

    def caller_connection(self, native: Any) -> MySQLCallerConnection:
        """Use the caller's connection, which is inside a transaction; GuardError if it is not."""
        return MySQLCallerConnection(native, self.info, self._mask)

    def async_caller_connection(self, native: Any) -> AsyncMySQLCallerConnection:
        """Use the caller's aiomysql connection, which is inside a transaction; GuardError if it is not."""
        return AsyncMySQLCallerConnection(native, self.info, self._mask)

    def framework_connection(self, connection: Any, driver: Any, paramstyle: str) -> MySQLFrameworkConnection:
        """Use a framework's connection, with any driver."""
        return MySQLFrameworkConnection(connection, driver, self.info, self._mask)

    def install(self) -> None:
        """Create the schema if there is none; safe to run concurrently."""
        install(self.info)

    def is_installed(self) -> bool:
        """Return whether the database has the guard's half; SchemaError if it is another version's."""
        return is_installed(self.info, part=GUARD_PART, table="fencelock_guard", number=SCHEMA_NUMBER)

    def check_removal(self) -> None:
        """Raise SourceError if somebody else's table has a foreign key to one of the guard's."""
        check_removal(self.info, tables=SCHEMA)

    def uninstall(self) -> bool:
        """Drop the guard's half of the schema, with everything in it, and its triggers on all tables."""
        routines = [name for file in ROUTINES for name in file]
        return uninstall(self.info, tables=SCHEMA, routines=routines, drops_triggers=True)

    def repair(self) -> None:
        """Create again what somebody has dropped of the schema; do nothing where there is none."""
        native = open_connection(self.info, REQUEST_TIMEOUT_S)
        try:
            is_left = any(results(native, INSTALL.read_left)[0])
            is_to_repair = is_left and bool(lost_tables(native))
        finally:
            FORKS.close(native)
        if is_to_repair:
            self.install()

    def check_tables(self, names: tuple[str, ...]) -> None:
        """Raise GuardError if there is no schema yet, and one of these tables does not exist or cannot be protected."""
        if self.is_installed():
            return
        native = open_connection(self.info, REQUEST_TIMEOUT_S)
        try:
            with error_mapper(self.info):
                run_generator(Protector(self.info.database).check(names), partial(results, native))
        finally:
            FORKS.close(native)

    def examine(self) -> list[Finding]:
        """Return what in this database's setup breaks the guard's guarantees."""
        try:
            native = open_connection(self.info, REQUEST_TIMEOUT_S)
            try:
                return findings(native, self.info)
            finally:
                FORKS.close(native)
        except (FencelockError, pymysql.Error) as error:
            return guard_refused(map_request_error(error, self.info, is_commit=False) or error)


def install(info: MySQLConnectionInfo) -> None:
    """Create the schema, unless it is installed."""
    try:
        native = open_connection(info, REQUEST_TIMEOUT_S)
        try:
            results(native, SETTLE_SEPARATE)
            if not _is_whole(native):
                _install(native, info)
        finally:
            FORKS.close(native)
    except pymysql.Error as error:
        known = map_request_error(error, info, is_commit=False)
        raise (known or SchemaError(f"{info.url}: the schema could not be created ({error})")) from error


def _is_installed(native: MySQLConnection) -> bool:
    """Return whether the schema is installed; SchemaError if it is another version's."""
    try:
        (rows,) = results(native, INSTALL.read_schema)
    except pymysql.Error as error:
        report = read_report(error)
        if report is None or report.number != _NO_TABLE:
            raise
        return False
    if rows:
        check_guard_schema(rows)
    return bool(rows)


def _is_whole(native: MySQLConnection) -> bool:
    """Return whether the schema is installed, and nothing of it is missing: a dump may have left the routines out."""
    return _is_installed(native) and not lost_tables(native) and _has_routines(native)


def _has_routines(native: MySQLConnection) -> bool:
    """Return whether the routines exist. An error if their owner is gone: the triggers, too, run with its rights, so
    new routines of another account would mend half of it.
    """
    try:
        results(native, INSTALL.probe)
    except pymysql.Error as error:
        report = read_report(error)
        if report is None or report.number != _NO_ROUTINE:
            raise
        return False
    return True


def lost_tables(native: MySQLConnection) -> list[str]:
    """Return which of fencelock's own tables are missing."""
    known = {row[0] for row in results(native, INSTALL.read_tables)[0]}
    return [table for table in TABLES if table not in known]


def _install(native: MySQLConnection, info: MySQLConnectionInfo) -> None:
    lock = "fencelock_guard_" + hashlib.sha256(info.database.encode()).hexdigest()[:32]
    ((is_ours,),) = results(native, INSTALL.lock.format(lock=lock, limit_s=INSTALL_WAIT_S))[0]
    if not is_ours:
        raise SourceUnavailableError(
            f"{info.url}: another installation has been running for {INSTALL_WAIT_S} s: try again"
        )
    is_installed = _is_installed(native)
    if _is_whole(native):
        return
    for name in SCHEMA:
        results(native, SCHEMA[name])
    check_tables(native, info, SCHEMA)
    for file in ROUTINES:
        for name in file:
            results(native, INSTALL.drop_routine.format(routine=name))
            results(native, expand(file[name]))
    if not is_installed:
        # Last, since DDL commits by itself: an interrupted run leaves no number, and the next one completes it.
        results(native, INSTALL.write_schema.format(number=SCHEMA_NUMBER, secret=draw_mask_secret()))
