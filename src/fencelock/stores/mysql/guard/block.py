"""The guard's own PyMySQL and aiomysql connections: blocks run on them, and the guard ends their transactions.

Promise: while a block runs, `commit()`, `rollback()`, `begin()`, `autocommit()`, the same in plain SQL, and
reconnecting raise GuardError before anything is sent, and the error is remembered, so that the block's end reports it.
After the block's end the connection refuses every statement but the guard's. The block's statements have no time limit.
The end of the block detects what this check misses, in a routine or behind a comment; what is written after it, the
server refuses, or compares with the mark. A failed request leaves no transaction open and nothing presented, and a
connection in doubt is closed. The block's own errors stay the client's.
"""

import select
from contextlib import suppress
from typing import Any, ClassVar

import aiomysql
import pymysql
from pymysql.constants import ER
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS
from pymysql.cursors import Cursor

from fencelock.errors import FencelockError, GuardError
from fencelock.protocol import guard_requests as ask
from fencelock.stores.errors import closed_inside, note_lost
from fencelock.stores.mysql.connection.client import (
    FORKS,
    AsyncMySQLConnection,
    MySQLConnection,
    open_async_connection,
    open_connection,
)
from fencelock.stores.mysql.connection.errors import error_number
from fencelock.stores.mysql.connection.masks import SharedMask
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo
from fencelock.stores.mysql.connection.wire import Rows, ending_word, results, results_async
from fencelock.stores.mysql.guard.codec import SQL, MySQLBlockCodec, SeparateConnection, Trip, text_of
from fencelock.stores.mysql.guard.errors import (
    RECORD_CHANGED,
    ended_inside,
    map_block_error,
    map_request_error,
    unanswered_inside,
)
from fencelock.stores.sql.guard import (
    AsyncioGuardConnection,
    BlockingGuardConnection,
    BlockState,
    GuardConnectionBase,
)
from fencelock.stores.sql.guard_store import AsyncIdleConnections, IdleConnections

REQUEST_TIMEOUT_S = 60.0
"""How long the guard waits for an answer of its own: longer than any lock that its routines wait for."""
DDL_WAIT_S = 5
"""How long `protect` waits for open writers of a table."""
SETTLE_SEPARATE = SQL.settle_separate.format(limit_s=DDL_WAIT_S)
_ROLLED_BACK = {ER.LOCK_DEADLOCK, RECORD_CHANGED}


class MySQLBlockState(BlockState):
    """What the synchronous and the asynchronous connection share."""

    is_rolled_back = False
    _usual_cursor: ClassVar[type]

    def give_to_block(self: Any) -> None:
        """Hand the open transaction to a block."""
        BlockState.give_to_block(self)
        self.is_rolled_back = False
        self.limit_wait(None)

    def take_back(self: Any) -> None:
        """Take the connection back from the block."""
        BlockState.take_back(self)
        self.limit_wait(REQUEST_TIMEOUT_S)

    def refuse_reconnect(self) -> None:
        """Raise GuardError if a block would replace its connection by a new one, which is in no transaction."""
        if self.is_in_block:
            self.attempt = closed_inside()
            raise self.attempt

    def check_statement(self, statement: str | bytes) -> None:
        """Raise GuardError if a block's statement ends its transaction, or comes after its end."""
        self.check_not_over()
        if self.is_in_block:
            if self.is_rolled_back:
                raise ended_inside()
            if (word := ending_word(statement)) is not None:
                self.refuse(word)

    def note_error(self, error: pymysql.Error) -> None:
        """Remember that the server rolled back the transaction: it would run later statements in the next one."""
        self.is_rolled_back = self.is_rolled_back or error_number(error) in _ROLLED_BACK

    def problem(self: Any) -> GuardError | None:
        """Return why a block that ended without an exception cannot be committed."""
        if self.attempt is not None:
            return self.attempt  # type: ignore[no-any-return]
        if self.is_out:
            return unanswered_inside()
        if self.is_cut_off():
            return closed_inside()
        return None if self.is_in_transaction and not self.is_rolled_back else ended_inside()

    def is_cut_off(self: Any) -> bool:
        """Return whether the idle connection is closed, by the server or here.

        Then the guard need not send COMMIT to find out, whose outcome would be unknown.
        """
        if self.descriptor < 0:
            return True
        readable = select.poll()
        readable.register(self.descriptor, select.POLLIN)
        return bool(readable.poll(0))

    @property
    def is_in_transaction(self: Any) -> bool:
        """Whether the server reported an open transaction with its last answer."""
        return bool(self.server_status & SERVER_STATUS_IN_TRANS)

    def is_unchanged(self: Any) -> bool:
        """Return whether the user left the client's settings as they were, so that the next block may use it."""
        return (
            not self.is_out
            and self.descriptor >= 0
            and not self.is_in_transaction
            and not self.get_autocommit()
            and self.cursorclass is self._usual_cursor
        )


class MySQLBlockConnection(MySQLBlockState, MySQLConnection):
    """A synchronous PyMySQL connection for blocks."""

    _usual_cursor = Cursor

    def connect(self, sock: Any = None) -> None:
        """Connect; GuardError while a block runs, which reaches this by `ping(reconnect=True)` too."""
        self.refuse_reconnect()
        super().connect(sock)

    def query(self, sql: str | bytes, unbuffered: bool = False) -> Any:
        """Run a statement, unless it would end the block's transaction."""
        self.check_statement(sql)
        try:
            return super().query(sql, unbuffered)
        except pymysql.Error as error:
            self.note_error(error)
            raise

    def commit(self) -> None:
        """Commit; GuardError while a block runs."""
        self.refuse("commit()")
        super().commit()

    def rollback(self) -> None:
        """Roll back; GuardError while a block runs."""
        self.refuse("rollback()")
        super().rollback()

    def begin(self) -> None:
        """Begin; GuardError while a block runs."""
        self.refuse("begin()")
        super().begin()

    def autocommit(self, value: bool) -> None:
        """Set the mode; GuardError while a block runs."""
        self.refuse("autocommit()")
        super().autocommit(value)


class AsyncMySQLBlockConnection(MySQLBlockState, AsyncMySQLConnection):
    """An asynchronous aiomysql connection for blocks."""

    _usual_cursor = aiomysql.Cursor

    async def _connect(self) -> None:
        # `ping()` reconnects by this method too.
        self.refuse_reconnect()
        await super()._connect()

    def is_cut_off(self) -> bool:
        """Return whether the idle connection is closed; the loop may have read the end already."""
        return self.has_something_to_read or super().is_cut_off()

    async def query(self, sql: str | bytes, unbuffered: bool = False) -> Any:
        """Run a statement, unless it would end the block's transaction."""
        self.check_statement(sql)
        try:
            return await super().query(sql, unbuffered)
        except pymysql.Error as error:
            self.note_error(error)
            raise

    async def commit(self) -> None:
        """Commit; GuardError while a block runs."""
        self.refuse("commit()")
        await super().commit()

    async def rollback(self) -> None:
        """Roll back; GuardError while a block runs."""
        self.refuse("rollback()")
        await super().rollback()

    async def begin(self) -> None:
        """Begin; GuardError while a block runs."""
        self.refuse("begin()")
        await super().begin()

    async def autocommit(self, value: bool) -> None:
        """Set the mode; GuardError while a block runs."""
        self.refuse("autocommit()")
        await super().autocommit(value)


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
        was_in_block = native.is_in_block
        # In the middle of a statement, what there is to read is its reply.
        self._is_lost = was_in_block and FORKS.is_ours(native) and not native.is_out and native.is_cut_off()
        native.take_back()
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
