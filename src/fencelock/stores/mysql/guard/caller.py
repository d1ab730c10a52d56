"""A guard's requests answered inside the caller's own transaction, over a connection of whichever client has it.

Promise: the caller's transaction is only used: never begun, committed or rolled back by us. The marks that it reads
stay true until it ends. A transaction that looks at the database as it was before a mark was raised is refused. A
setting of the caller's session is changed for as long as a token is presented, and not longer.
"""

from typing import Any

from fencelock.errors import FencelockError, GuardError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.errors import raise_mapped
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.mysql.connection.wire import Rows, row_of
from fencelock.stores.mysql.guard.codec import MySQLCallerCodec
from fencelock.stores.mysql.guard.errors import explained, map_guard_error

CLIENTS = {"pymysql", "MySQLdb", "mysql", "mariadb"}
"""The synchronous clients of Python whose connections are known, by their packages."""
ASYNC_CLIENTS = {"aiomysql", "asyncmy"}


class MySQLCallerBase:
    """What both kinds of connection have in common."""

    native: Any

    def __init__(self, native: Any, info: MySQLConnectionInfo, clients: set[str], usual: str) -> None:
        packages = {base.__module__.partition(".")[0] for base in type(native).__mro__}
        if not packages & clients:
            raise GuardError(
                f"connection must be the {usual} of your own transaction, not {type(native).__name__}: known are those "
                f"of {', '.join(sorted(clients))}"
            )
        if getattr(native, "open", True) in (False, 0) or getattr(native, "closed", False) is True:
            raise GuardError("the connection is closed: pass the open one of your own transaction")
        self.native = native
        self._info = info
        self._codec = MySQLCallerCodec(info.database)

    def _meaning(self, error: BaseException) -> FencelockError | None:
        if isinstance(error, FencelockError):
            return None
        return map_guard_error(error, self._info, is_commit=False)

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return what the guard's triggers said; the caller's errors stay their own."""
        return explained(error)


class MySQLCallerConnection(MySQLCallerBase):
    """The caller's PyMySQL connection, or one that looks like it."""

    def __init__(self, native: Any, info: MySQLConnectionInfo) -> None:
        super().__init__(native, info, CLIENTS, "pymysql.Connection")

    def perform(self, request: Any) -> Any:
        """Answer one request; the caller's transaction stays open whatever happens."""
        try:
            return run_generator(self._codec.operations(request), self._answers)
        except BaseException as error:
            raise_mapped(self._meaning(error), error)
            raise

    def _answers(self, statement: str) -> list[Rows]:
        return asked(self.native, statement)

    def rollback(self) -> None:
        """Leave the transaction to its owner."""

    def close(self) -> None:
        """Leave the connection to its owner."""


def asked(connection: Any, statement: str) -> list[Rows]:
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


class AsyncMySQLCallerConnection(MySQLCallerBase):
    """The caller's aiomysql connection, or one that looks like it."""

    def __init__(self, native: Any, info: MySQLConnectionInfo) -> None:
        super().__init__(native, info, ASYNC_CLIENTS, "aiomysql.Connection")

    async def perform(self, request: Any) -> Any:
        """Answer one request; the caller's transaction stays open whatever happens."""
        try:
            return await run_generator_async(self._codec.operations(request), self._answers)
        except BaseException as error:
            raise_mapped(self._meaning(error), error)
            raise

    async def _answers(self, statement: str) -> list[Rows]:
        found: list[Rows] = []
        async with self.native.cursor() as cursor:
            await cursor.execute(statement)
            while True:
                if cursor.description is not None:
                    found.append([row_of(row) for row in await cursor.fetchall()])
                if not await cursor.nextset():
                    return found

    async def rollback(self) -> None:
        """Leave the transaction to its owner."""

    def close(self) -> None:
        """Leave the connection to its owner."""
