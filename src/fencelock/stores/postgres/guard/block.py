"""The psycopg connections that a guard lends to its users: nobody but the guard ends their transaction.

Promise: while a block runs, `commit()`, `rollback()` and `with connection:` are GuardError, and the error is
remembered, so that the block's end can say what happened; `connection.transaction()` is a savepoint. A statement may
take its time. COMMIT in plain SQL is found at the end of the block; a transaction that was begun after it is not
committed. psycopg may prepare what the block says, and throw it away again.
"""

import select
from collections.abc import Sequence
from typing import Any, ClassVar

import psycopg
from psycopg import AsyncCursor, Cursor, OperationalError
from psycopg.abc import PQGen
from psycopg.errors import InvalidSqlStatementName
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from fencelock.errors import GuardError
from fencelock.stores.postgres.connection.client import AsyncPostgresConnection, PostgresConnection, is_pooled
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Statement, Trip, exchange, prepare
from fencelock.stores.postgres.guard.codec import OF_EACH_BLOCK, failed_inside
from fencelock.stores.postgres.guard.errors import ended_inside

_WHICH_BACKEND = (Statement("SELECT pg_catalog.pg_backend_pid()"),)
REQUEST_TIMEOUT_S = 60.0
"""How long the guard waits for an answer of its own: longer than any lock that its functions wait for."""


class PostgresBlockState:
    """Who has the connection: the guard, or a block."""

    is_in_block = False
    may_prepare = True
    attempt: GuardError | None = None
    _usual_cursor: ClassVar[type]

    def exchange(self: Any, statements: Sequence[Statement]) -> Trip[list[PostgresAnswer]]:
        """Say statements of the guard's own in one round trip; those of each block are prepared at the first one."""
        encoding = self.info.encoding
        if self.may_prepare and not self.prepared and statements[-1].text == OF_EACH_BLOCK[0]:
            ((which, _),) = yield from exchange(self.pgconn, _WHICH_BACKEND, encoding)
            self.may_prepare = not is_pooled(self, which[0][0])
            for text in OF_EACH_BLOCK if self.may_prepare else ():
                yield from prepare(self.pgconn, text, self.prepared, encoding)
        try:
            return (yield from exchange(self.pgconn, statements, encoding, self.prepared))
        except InvalidSqlStatementName:
            self.prepared.clear()  # The block's own code has thrown them away.
            raise

    def note_deallocation(self: Any, name: bytes | None) -> None:
        """Say everything by its text from now on if psycopg throws away all that the session has prepared.

        It does so after ROLLBACK TO, DROP and ALTER when it has prepared anything of the block's, and means its own.
        """
        if name is None:
            self.may_prepare = False
            self.prepared.clear()

    def give_to_block(self) -> None:
        """Hand the open transaction over to the block."""
        self.is_in_block = True
        self.attempt = None

    def take_back(self) -> None:
        """Have it back."""
        self.is_in_block = False

    def refuse(self, how: str) -> None:
        """Raise GuardError if the block tries to end its own transaction."""
        if self.is_in_block:
            self.attempt = GuardError(
                f"the block tried to end its own guarded transaction ({how}): nothing of the block was written. The "
                f"end of the block commits, and an exception out of it rolls back; inside it use `with "
                f"connection.transaction():`"
            )
            raise self.attempt

    def problem(self: Any) -> GuardError | None:
        """Return why the block, which ended well, cannot be committed."""
        if self.attempt is not None:
            return self.attempt  # type: ignore[no-any-return]
        if self.closed or self.is_cut_off():
            return GuardError(
                "the connection of the guarded transaction was closed inside its block: by the block itself, or by the "
                "server, which ends one that is idle for longer than its lease has left. Nothing of it was written"
            )
        status = self.info.transaction_status
        if status == TransactionStatus.ACTIVE:
            return GuardError(
                "the guarded block ended in the middle of a statement (a COPY, a pipeline, another thread): nothing of "
                "it was written. Leave those blocks first"
            )
        if status == TransactionStatus.INERROR:
            return failed_inside()
        return ended_inside() if status == TransactionStatus.IDLE else None

    def is_cut_off(self: Any) -> bool:
        """Tell whether the server has ended the connection while nothing was asked: then no COMMIT has to be sent to
        find out, whose outcome would be unknown.
        """
        looking = select.poll()
        looking.register(self.pgconn.socket, select.POLLIN)
        try:
            while looking.poll(0):  # First its last words, then the end.
                self.pgconn.consume_input()
        except OperationalError:
            return True
        return False

    def is_as_lent(self: Any) -> bool:
        """Tell whether the user left the client's side of it as it was, so that the next block may have it."""
        return (
            self.info.transaction_status == TransactionStatus.IDLE
            and self.autocommit
            and self.row_factory is tuple_row
            and self.cursor_factory is self._usual_cursor
        )


class PostgresBlockConnection(PostgresBlockState, PostgresConnection):
    """A synchronous connection of a guard's own."""

    _usual_cursor = Cursor

    def wait(self, gen: Any, *limits: Any, **named_limits: Any) -> Any:
        """Wait as psycopg does while it is lent, without a look at the clock, and else with an end to the patience."""
        if self.is_in_block:
            return psycopg.Connection.wait(self, gen, *limits, **named_limits)
        return super().wait(gen, *limits, **named_limits)

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """Throw away one of psycopg's prepared statements, or all that the session has."""
        self.note_deallocation(name)
        return super()._deallocate(name)

    def commit(self) -> None:
        """Refuse, while it is lent."""
        self.refuse("commit(), `with connection:`")
        super().commit()

    def rollback(self) -> None:
        """Refuse, while it is lent."""
        self.refuse("rollback(), an exception out of `with connection:`")
        super().rollback()


class AsyncPostgresBlockConnection(PostgresBlockState, AsyncPostgresConnection):
    """An asynchronous connection of a guard's own."""

    _usual_cursor = AsyncCursor

    async def wait(self, gen: Any, *limits: Any, **named_limits: Any) -> Any:
        """Wait as psycopg does while it is lent, without a look at the clock, and else with an end to the patience."""
        if self.is_in_block:
            return await psycopg.AsyncConnection.wait(self, gen, *limits, **named_limits)
        return await super().wait(gen, *limits, **named_limits)

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        """Throw away one of psycopg's prepared statements, or all that the session has."""
        self.note_deallocation(name)
        return super()._deallocate(name)

    async def commit(self) -> None:
        """Refuse, while it is lent."""
        self.refuse("commit(), `async with connection:`")
        await super().commit()

    async def rollback(self) -> None:
        """Refuse, while it is lent."""
        self.refuse("rollback(), an exception out of `async with connection:`")
        await super().rollback()
