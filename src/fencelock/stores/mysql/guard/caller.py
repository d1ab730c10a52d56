"""A guard's requests inside the caller's own transaction, with any Python client of MySQL.

Promise: the caller's transaction is only used: never begun, committed or rolled back. The marks that it reads stay true
until it ends. A transaction whose snapshot is older than a mark is refused. A setting of the caller's session is
changed only while a token is presented, also if presenting one has failed on its way.
"""

from contextlib import suppress
from typing import Any

from fencelock.errors import FencelockError, GuardError
from fencelock.protocol.guard_requests import Present
from fencelock.stores.mysql.connection.masks import SharedMask
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.mysql.connection.wire import Rows, row_of
from fencelock.stores.mysql.guard.codec import SQL, MySQLCallerCodec
from fencelock.stores.mysql.guard.errors import map_block_error, map_request_error
from fencelock.stores.mysql.guard.trips import MaskedTrip, text_of
from fencelock.stores.sql.guard import (
    AsyncioCallerConnection,
    BlockingCallerConnection,
    CallerConnectionBase,
)

CLIENTS = {"pymysql", "MySQLdb", "mysql", "mariadb"}
"""The packages of the synchronous clients that are known."""
ASYNC_CLIENTS = {"aiomysql", "asyncmy"}


def _check_usable(native: Any, clients: set[str], usual: str) -> None:
    """Raise GuardError unless the connection is open, and one of these clients'."""
    packages = {base.__module__.partition(".")[0] for base in type(native).__mro__}
    if not packages & clients:
        raise GuardError(
            f"connection must be the {usual} of your own transaction, not {type(native).__name__}: known are those "
            f"of {', '.join(sorted(clients))}"
        )
    if getattr(native, "open", True) in (False, 0) or getattr(native, "closed", False) is True:
        raise GuardError("the connection is closed: pass the open one of your own transaction")


class MySQLCallerMapping(CallerConnectionBase):
    """Error mapping for connections of callers and frameworks."""

    _info: MySQLConnectionInfo

    def _map_request_error(self, error: BaseException) -> FencelockError | None:
        return map_request_error(error, self._info, is_commit=False)

    def map_error(self, error: BaseException) -> GuardError | None:
        """Map an error that the guard's triggers raised; None leaves the caller's error as it is."""
        return map_block_error(error)


class MySQLCallerConnection(MySQLCallerMapping, BlockingCallerConnection):
    """The caller's PyMySQL connection, or a similar one."""

    def __init__(self, native: Any, info: MySQLConnectionInfo, shared: SharedMask) -> None:
        _check_usable(native, CLIENTS, "pymysql.Connection")
        codec = MySQLCallerCodec(info.database, shared)
        super().__init__(native, codec)
        self._info = info
        self._restoring = codec.fill(SQL.take_back, resources="")

    def perform(self, request: Any) -> Any:
        """Answer one request. If presenting fails, the session may write again, unless another lease is presented."""
        try:
            return super().perform(request)
        except FencelockError:
            if isinstance(request, Present):
                with suppress(Exception):
                    self._exchange(self._restoring)
            raise

    def _exchange(self, trip: MaskedTrip) -> list[Rows]:
        return cursor_results(self.native, text_of(trip, self.native))


def cursor_results(connection: Any, statement: str) -> list[Rows]:
    """Run a statement on a DB-API connection, and return the rows of each result."""
    found: list[Rows] = []
    cursor = connection.cursor()
    try:
        cursor.execute(statement)
        while True:
            if cursor.description is not None:
                found.append([row_of(row) for row in cursor.fetchall()])
            if not cursor.nextset():
                return found
    finally:
        cursor.close()


class AsyncMySQLCallerConnection(MySQLCallerMapping, AsyncioCallerConnection):
    """The caller's aiomysql connection, or a similar one."""

    def __init__(self, native: Any, info: MySQLConnectionInfo, shared: SharedMask) -> None:
        _check_usable(native, ASYNC_CLIENTS, "aiomysql.Connection")
        codec = MySQLCallerCodec(info.database, shared)
        super().__init__(native, codec)
        self._info = info
        self._restoring = codec.fill(SQL.take_back, resources="")

    async def perform(self, request: Any) -> Any:
        """Answer one request, as the synchronous connection does."""
        try:
            return await super().perform(request)
        except FencelockError:
            if isinstance(request, Present):
                with suppress(Exception):
                    await self._exchange(self._restoring)
            raise

    async def _exchange(self, trip: MaskedTrip) -> list[Rows]:
        found: list[Rows] = []
        async with self.native.cursor() as cursor:
            await cursor.execute(text_of(trip, self.native))
            while True:
                if cursor.description is not None:
                    found.append([row_of(row) for row in await cursor.fetchall()])
                if not await cursor.nextset():
                    return found
