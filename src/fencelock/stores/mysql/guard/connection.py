"""The guard's requests over connections of its own, in whose transactions blocks run.

Promise: a failed request leaves no transaction open and nothing presented, and a connection in doubt is closed. DDL,
which commits, has a connection apart.
"""

from contextlib import suppress
from typing import Any

from fencelock.errors import FencelockError, GuardError
from fencelock.protocol import guard_requests as ask
from fencelock.stores.errors import note_lost
from fencelock.stores.mysql.connection.client import FORKS, AsyncMySQLConnection, MySQLConnection
from fencelock.stores.mysql.connection.masks import SharedMask
from fencelock.stores.mysql.connection.opening import open_async_connection, open_connection
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.mysql.connection.wire import Rows, results, results_async
from fencelock.stores.mysql.guard.block import REQUEST_TIMEOUT_S, AsyncMySQLBlockConnection, MySQLBlockConnection
from fencelock.stores.mysql.guard.codec import SQL, MySQLBlockCodec
from fencelock.stores.mysql.guard.errors import (
    map_block_error,
    map_request_error,
)
from fencelock.stores.mysql.guard.trips import SeparateConnection, Trip, text_of
from fencelock.stores.sql.guard import (
    AsyncioGuardConnection,
    BlockingGuardConnection,
    GuardConnectionBase,
)
from fencelock.stores.sql.guard_store import AsyncIdleConnections, IdleConnections

DDL_WAIT_S = 5
"""How long `protect` waits for open writers of a table."""
SETTLE_SEPARATE = SQL.settle_separate.format(limit_s=DDL_WAIT_S)


class MySQLBlockMapping(GuardConnectionBase[Any, MySQLBlockCodec]):
    """Error mapping, and the decision whether to roll back."""

    _info: MySQLConnectionInfo
    _is_lost = False
    """Whether the connection had ended when the block's error rolled it back."""
    _is_begun = False
    """Whether a statement was sent since the last end of a transaction. A server that reports an error does not report
    whether a transaction is open.
    """

    def _after(self, request: Any) -> None:
        super()._after(request)
        if isinstance(request, (ask.Commit, ask.Finish, ask.InspectResources)):
            self._is_begun = False

    def _map_request_error(self, error: BaseException, request: Any) -> FencelockError | None:
        return map_request_error(error, self._info, is_commit=isinstance(request, (ask.Commit, ask.Finish)))

    def map_error(self, error: BaseException) -> GuardError | None:
        """Map an error in the user's block; None leaves the user's error as it is."""
        mapped = map_block_error(error)
        if mapped is None and self._is_lost:
            note_lost(error)
        return mapped

    def _needs_rollback(self) -> bool:
        """Return whether a transaction may be open that ROLLBACK would end; close a connection in doubt instead."""
        native = self._native
        if native is None or not self._is_begun:
            return False
        self._is_begun = False
        # Read before `take_back`, which forgets that a block had the connection.
        was_in_block = native.is_in_block
        # In the middle of a statement, what there is to read is its reply.
        self._is_lost = was_in_block and FORKS.is_ours(native) and not native.is_out and native.is_cut_off()
        native.take_back()
        # Outside of a block the last answer may have been an error, which does not tell whether a transaction is open.
        if FORKS.is_ours(native) and not native.is_out and (native.is_in_transaction or not was_in_block):
            return True
        FORKS.close(native)
        return False


class MySQLGuardConnection(MySQLBlockMapping, BlockingGuardConnection[MySQLBlockConnection, MySQLBlockCodec]):
    """Answers the guard's requests over a synchronous connection of its own."""

    def __init__(
        self, info: MySQLConnectionInfo, shared: SharedMask, idle: IdleConnections[MySQLBlockConnection]
    ) -> None:
        super().__init__(MySQLBlockCodec(info.database, shared), idle.take, idle.give_back, FORKS.is_ours)
        self._info = info
        self._separate: MySQLConnection | None = None

    def _exchange(self, trip: Trip) -> list[Rows]:
        if isinstance(trip, SeparateConnection):
            return results(self._open_separate(), trip.text)
        if self._native is None:
            self._native = self._take()
        self._is_begun = True
        return results(self._native, text_of(trip, self._native))

    def _open_separate(self) -> MySQLConnection:
        """Return the connection for DDL, which commits; after an interruption a new one."""
        if self._separate is None or self._separate.is_out:
            self._separate = open_connection(self._info, REQUEST_TIMEOUT_S)
            results(self._separate, SETTLE_SEPARATE)
        return self._separate

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one; never raises."""
        with suppress(Exception):
            for statement in self._codec.forget():
                self._exchange(SeparateConnection(statement))
        if self._needs_rollback() and self._native is not None:
            try:
                results(self._native, SQL.rollback)
                # Presenting has made the session's next transactions read-only, and ROLLBACK does not change that back.
                results(self._native, self._codec.fill(SQL.unbind))
            except BaseException:
                FORKS.close(self._native)

    def close(self) -> None:
        """Roll back the open transaction, and give the connection back to the store; never raises."""
        self.rollback()
        native, self._native = self._native, None
        separate, self._separate = self._separate, None
        if native is not None:
            self._give_back(native)
        if separate is not None:
            FORKS.close(separate)


class AsyncMySQLGuardConnection(MySQLBlockMapping, AsyncioGuardConnection[AsyncMySQLBlockConnection, MySQLBlockCodec]):
    """Answers the guard's requests over an asynchronous connection of its own."""

    def __init__(
        self, info: MySQLConnectionInfo, shared: SharedMask, idle: AsyncIdleConnections[AsyncMySQLBlockConnection]
    ) -> None:
        super().__init__(MySQLBlockCodec(info.database, shared), idle.take, idle.give_back, FORKS.is_ours)
        self._info = info
        self._separate: AsyncMySQLConnection | None = None

    async def _exchange(self, trip: Trip) -> list[Rows]:
        if isinstance(trip, SeparateConnection):
            return await results_async(await self._open_separate(), trip.text)
        if self._native is None:
            self._native = await self._take()
        self._is_begun = True
        return await results_async(self._native, text_of(trip, self._native))

    async def _open_separate(self) -> AsyncMySQLConnection:
        """Return the connection for DDL, which commits; after an interruption a new one."""
        if self._separate is None or self._separate.is_out:
            self._separate = await open_async_connection(self._info, REQUEST_TIMEOUT_S)
            await results_async(self._separate, SETTLE_SEPARATE)
        return self._separate

    async def _undo(self, error: BaseException) -> None:
        """Roll back; after an interruption close the connection instead, whose answer is still to come."""
        if isinstance(error, Exception) or self._native is None:
            await self.rollback()
        else:
            self._codec.forget()
            FORKS.close(self._native)

    async def rollback(self) -> None:
        """Roll back the open transaction, if there is one; never raises an Exception."""
        with suppress(Exception):
            for statement in self._codec.forget():
                await self._exchange(SeparateConnection(statement))
        if self._needs_rollback() and self._native is not None:
            try:
                await results_async(self._native, SQL.rollback)
                # Presenting has made the session's next transactions read-only, and ROLLBACK does not change that back.
                await results_async(self._native, self._codec.fill(SQL.unbind))
            except BaseException as error:
                FORKS.close(self._native)
                if not isinstance(error, Exception):
                    raise

    def close(self) -> None:
        """Give the connection back to the store, which closes one that is in a transaction; never raises."""
        native, self._native = self._native, None
        separate, self._separate = self._separate, None
        if native is not None:
            native.take_back()
            if self._is_begun:
                FORKS.close(native)
            else:
                self._give_back(native)
        if separate is not None:
            FORKS.close(separate)
