"""The connections that a block's user holds: PyMySQL's and aiomysql's, limited to what a block may do.

Promise: while a block runs, `commit()`, `rollback()`, `begin()`, `autocommit()`, the same in plain SQL, and
reconnecting raise GuardError before anything is sent, and the error is remembered, so that the block's end reports it.
After the block's end the connection refuses every statement but the guard's. The block's statements have no time limit.
The end of the block detects what this check misses, in a routine or behind a comment; what is written after it, the
server refuses, or compares with the mark. The block's own errors stay the client's.
"""

import select
from typing import Any, ClassVar

import aiomysql
import pymysql
from pymysql.constants import ER
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS
from pymysql.cursors import Cursor

from fencelock.errors import GuardError
from fencelock.stores.errors import closed_inside
from fencelock.stores.mysql.connection.client import (
    AsyncMySQLConnection,
    MySQLConnection,
)
from fencelock.stores.mysql.connection.errors import error_number
from fencelock.stores.mysql.connection.wire import ending_word
from fencelock.stores.mysql.guard.errors import (
    RECORD_CHANGED,
    ended_inside,
    unanswered_inside,
)
from fencelock.stores.sql.guard import (
    BlockState,
)

REQUEST_TIMEOUT_S = 60.0
"""How long the guard waits for an answer of its own: longer than any lock that its routines wait for."""
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
