"""A guard's requests answered over connections of its own, synchronous and asynchronous.

Promise: both say what `guard_speech.py` says, and nothing else; what goes wrong leaves no transaction open and nothing
presented, and a connection whose state is in doubt is closed. A block's own errors stay the client's.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pymysql

from fencelock.errors import FencelockError, GuardError
from fencelock.protocol import guard_requests as ask
from fencelock.stores.mysql.connection.client import (
    FORKS,
    AsyncMySQLConnection,
    MySQLConnection,
    open_async_connection,
    open_connection,
)
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.mysql.connection.wire import Rows, results, results_async
from fencelock.stores.mysql.guard.block import REQUEST_TIMEOUT_S, AsyncMySQLBlockConnection, MySQLBlockConnection
from fencelock.stores.mysql.guard.codec import SQL, MySQLBlockCodec, SeparateConnection
from fencelock.stores.mysql.guard.errors import explained, map_guard_error
from fencelock.stores.sql.guard_connection import AsyncioGuardConnection, BlockingGuardConnection, GuardConnectionBase

DDL_PATIENCE_S = 5
"""How long `protect` waits for open writers of a table."""
PREPARE_ASIDE = SQL.prepare_aside.format(limit_s=DDL_PATIENCE_S)


class MySQLErrorMapping(GuardConnectionBase[Any, MySQLBlockCodec]):
    """What both kinds of connection know of their state, and make of errors."""

    _info: MySQLConnectionInfo
    _is_begun = False
    """Whether something was said since the last end of a transaction. A server that reports an error does not say
    whether one is open.
    """

    def _after(self, request: Any) -> None:
        super()._after(request)
        if isinstance(request, (ask.Commit, ask.Finish, ask.Look)):
            self._is_begun = False

    def _meaning(self, error: BaseException, request: Any) -> FencelockError | None:
        """Return what the error of a request means; None: it is as it should be."""
        if isinstance(error, FencelockError):
            return None
        return map_guard_error(error, self._info, is_commit=isinstance(request, (ask.Commit, ask.Finish)))

    def _is_to_roll_back(self) -> bool:
        """Tell whether there may be a transaction that ROLLBACK would end; a connection in doubt is closed instead."""
        native = self._native
        if native is None or not self._is_begun:
            return False
        self._is_begun = False
        was_lent = native.is_in_block
        native.take_back()
        if FORKS.is_ours(native) and (native.is_in_transaction or not was_lent):
            return True
        FORKS.close(native)
        return False

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return the error of the tree that says what an error in the user's block was; None: it is theirs."""
        return explained(error)


class MySQLGuardConnection(MySQLErrorMapping, BlockingGuardConnection[MySQLBlockConnection, MySQLBlockCodec]):
    """The guard's own synchronous connection."""

    def __init__(
        self,
        info: MySQLConnectionInfo,
        take: Callable[[], MySQLBlockConnection],
        give_back: Callable[[MySQLBlockConnection], None],
    ) -> None:
        super().__init__(MySQLBlockCodec(info.database), take, give_back, FORKS.is_ours)
        self._info = info
        self._beside: MySQLConnection | None = None

    def _exchanged(self, said: str | SeparateConnection) -> list[Rows]:
        if isinstance(said, SeparateConnection):
            return results(self._aside(), said.text)
        if self._native is None:
            self._native = self._take()
        self._is_begun = True
        return results(self._native, said)

    def _aside(self) -> MySQLConnection:
        """Return the connection for DDL, which commits."""
        if self._beside is None:
            self._beside = open_connection(self._info, REQUEST_TIMEOUT_S)
            results(self._beside, PREPARE_ASIDE)
        return self._beside

    def rollback(self) -> None:
        """Undo the open transaction, if there is one; never raises."""
        with suppress(Exception):
            for statement in self._codec.forget():
                self._exchanged(SeparateConnection(statement))
        if self._is_to_roll_back() and self._native is not None:
            try:
                results(self._native, SQL.rollback)
                results(self._native, self._codec.said(SQL.unbind))
            except BaseException:
                FORKS.close(self._native)

    def close(self) -> None:
        """Undo what is open, and give the connection back for somebody else; never raises."""
        self.rollback()
        native, self._native = self._native, None
        beside, self._beside = self._beside, None
        if native is not None:
            self._give_back(native)
        if beside is not None:
            FORKS.close(beside)


class AsyncMySQLGuardConnection(MySQLErrorMapping, AsyncioGuardConnection[AsyncMySQLBlockConnection, MySQLBlockCodec]):
    """The guard's own asynchronous connection."""

    def __init__(
        self,
        info: MySQLConnectionInfo,
        take: Callable[[], Any],
        give_back: Callable[[AsyncMySQLBlockConnection], None],
    ) -> None:
        super().__init__(MySQLBlockCodec(info.database), take, give_back, FORKS.is_ours)
        self._info = info
        self._beside: AsyncMySQLConnection | None = None

    async def _exchanged(self, said: str | SeparateConnection) -> list[Rows]:
        if isinstance(said, SeparateConnection):
            return await results_async(await self._aside(), said.text)
        if self._native is None:
            self._native = await self._take()
        self._is_begun = True
        return await results_async(self._native, said)

    async def _aside(self) -> AsyncMySQLConnection:
        """Return the connection for DDL, which commits."""
        if self._beside is None:
            self._beside = await open_async_connection(self._info, REQUEST_TIMEOUT_S)
            await results_async(self._beside, PREPARE_ASIDE)
        return self._beside

    async def _undo(self, error: BaseException) -> None:
        """Roll back, or close a connection whose answer was not waited for."""
        if isinstance(error, (Exception, pymysql.Error)) or self._native is None:
            await self.rollback()
        else:
            self._codec.forget()
            FORKS.close(self._native)

    async def rollback(self) -> None:
        """Undo the open transaction, if there is one; never raises an Exception."""
        with suppress(Exception):
            for statement in self._codec.forget():
                await self._exchanged(SeparateConnection(statement))
        if self._is_to_roll_back() and self._native is not None:
            try:
                await results_async(self._native, SQL.rollback)
                await results_async(self._native, self._codec.said(SQL.unbind))
            except BaseException as error:
                FORKS.close(self._native)
                if not isinstance(error, Exception):
                    raise

    def close(self) -> None:
        """Give the connection back for somebody else; one that is in a transaction is ended. Never raises."""
        native, self._native = self._native, None
        beside, self._beside = self._beside, None
        if native is not None:
            native.take_back()
            if self._is_begun:
                FORKS.close(native)
            else:
                self._give_back(native)
        if beside is not None:
            FORKS.close(beside)
