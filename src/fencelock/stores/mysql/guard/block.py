"""The PyMySQL and aiomysql connections that a guard lends to its users: nobody but the guard ends their transaction.

Promise: while a block runs, `commit()`, `rollback()`, `begin()`, `autocommit()`, the same in plain SQL, and connecting
anew are GuardError before anything is sent, and the error is remembered, so that the block's end can say what happened.
A statement may take its time. What slips past, in a routine or behind a comment, is found at the end of the block, and
what is written after it is refused by the server, or compared with the mark.
"""

import re
import select
from typing import Any, ClassVar

import aiomysql
import pymysql
from pymysql.constants import ER
from pymysql.constants.SERVER_STATUS import SERVER_STATUS_IN_TRANS
from pymysql.cursors import Cursor

from fencelock.errors import GuardError
from fencelock.stores.mysql.connection.client import AsyncMySQLConnection, MySQLConnection
from fencelock.stores.mysql.connection.errors import error_number
from fencelock.stores.mysql.guard.errors import RECORD_CHANGED, cut_off, ended_inside

REQUEST_TIMEOUT_S = 60.0
"""How long the guard waits for an answer of its own: longer than any lock that its routines wait for."""
_ENDS = re.compile(
    r"\s*(?:(commit|begin(?!\s+not)|start\s+transaction|rollback(?!(?:\s+work)?\s+to)|xa)|set\b.*\b(autocommit))\b",
    re.IGNORECASE | re.DOTALL,
)
_UNDOING = {ER.LOCK_DEADLOCK, RECORD_CHANGED}


class MySQLBlockState:
    """Who has the connection: the guard, or a block."""

    is_in_block = False
    attempt: GuardError | None = None
    is_undone = False
    _usual_cursor: ClassVar[type]

    def give_to_block(self: Any) -> None:
        """Hand the open transaction over to the block."""
        self.is_in_block = True
        self.attempt = None
        self.is_undone = False
        self.wait_for(None)

    def take_back(self: Any) -> None:
        """Have it back."""
        self.is_in_block = False
        self.wait_for(REQUEST_TIMEOUT_S)

    def refuse(self, how: str) -> None:
        """Raise GuardError if the block tries to end its own transaction."""
        if self.is_in_block:
            self.attempt = GuardError(
                f"the block tried to end its own guarded transaction ({how}): nothing of the block was written. The "
                f"end of the block commits, and an exception out of it rolls back; inside it use SAVEPOINT"
            )
            raise self.attempt

    def refuse_another(self) -> None:
        """Raise GuardError if the block would have another connection in the place of its own, in no transaction."""
        if self.is_in_block:
            self.attempt = cut_off()
            raise self.attempt

    def look_at(self, statement: str | bytes) -> None:
        """Raise GuardError if a statement of the block's is an end of its transaction, or comes after one."""
        if self.is_in_block:
            if self.is_undone:
                raise ended_inside()
            text = statement.decode(errors="replace") if isinstance(statement, (bytes, bytearray)) else str(statement)
            if (found := _ENDS.match(text)) is not None:
                self.refuse(found[found.lastindex or 0].upper())

    def learn_from(self, error: pymysql.Error) -> None:
        """Remember that the server has undone the transaction: it would take what follows for the next one."""
        self.is_undone = self.is_undone or error_number(error) in _UNDOING

    def problem(self: Any) -> GuardError | None:
        """Return why the block, which ended well, cannot be committed."""
        if self.attempt is not None:
            return self.attempt  # type: ignore[no-any-return]
        if self.descriptor < 0 or self.is_cut_off():
            return cut_off()
        return None if self.is_in_transaction and not self.is_undone else ended_inside()

    def is_cut_off(self: Any) -> bool:
        """Tell whether the server has ended the connection while nothing was asked: then no COMMIT has to be sent to
        find out, whose outcome would be unknown.
        """
        looking = select.poll()
        looking.register(self.descriptor, select.POLLIN)
        return bool(looking.poll(0))

    @property
    def is_in_transaction(self: Any) -> bool:
        """Whether the server said, with its last answer, that a transaction is open."""
        return bool(self.server_status & SERVER_STATUS_IN_TRANS)

    def is_as_lent(self: Any) -> bool:
        """Tell whether the user left the client's side of it as it was, so that the next block may have it."""
        return (
            self.descriptor >= 0
            and not self.is_in_transaction
            and not self.get_autocommit()
            and self.cursorclass is self._usual_cursor
        )


class MySQLBlockConnection(MySQLBlockState, MySQLConnection):
    """A synchronous connection of a guard's own."""

    _usual_cursor = Cursor

    def connect(self, sock: Any = None) -> None:
        """Refuse, while it is lent; `ping(reconnect=True)` comes here too."""
        self.refuse_another()
        super().connect(sock)

    def query(self, sql: str | bytes, unbuffered: bool = False) -> Any:
        """Run a statement, unless it would end the block's transaction."""
        self.look_at(sql)
        try:
            return super().query(sql, unbuffered)
        except pymysql.Error as error:
            self.learn_from(error)
            raise

    def commit(self) -> None:
        """Refuse, while it is lent."""
        self.refuse("commit()")
        super().commit()

    def rollback(self) -> None:
        """Refuse, while it is lent."""
        self.refuse("rollback()")
        super().rollback()

    def begin(self) -> None:
        """Refuse, while it is lent."""
        self.refuse("begin()")
        super().begin()

    def autocommit(self, value: bool) -> None:
        """Refuse, while it is lent."""
        self.refuse("autocommit()")
        super().autocommit(value)


class AsyncMySQLBlockConnection(MySQLBlockState, AsyncMySQLConnection):
    """An asynchronous connection of a guard's own."""

    _usual_cursor = aiomysql.Cursor

    async def _connect(self) -> None:
        """Refuse, while it is lent; `ping()` comes here too."""
        self.refuse_another()
        await super()._connect()

    def is_cut_off(self) -> bool:
        """Tell the same, also where the loop has read the end already."""
        return self.has_something_to_read or super().is_cut_off()

    async def query(self, sql: str | bytes, unbuffered: bool = False) -> Any:
        """Run a statement, unless it would end the block's transaction."""
        self.look_at(sql)
        try:
            return await super().query(sql, unbuffered)
        except pymysql.Error as error:
            self.learn_from(error)
            raise

    async def commit(self) -> None:
        """Refuse, while it is lent."""
        self.refuse("commit()")
        await super().commit()

    async def rollback(self) -> None:
        """Refuse, while it is lent."""
        self.refuse("rollback()")
        await super().rollback()

    async def begin(self) -> None:
        """Refuse, while it is lent."""
        self.refuse("begin()")
        await super().begin()

    async def autocommit(self, value: bool) -> None:
        """Refuse, while it is lent."""
        self.refuse("autocommit()")
        await super().autocommit(value)
