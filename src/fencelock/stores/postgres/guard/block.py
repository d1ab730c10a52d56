"""The connections that a block's user holds: psycopg's, limited to what a block may do.

Promise: while a block runs, `commit()`, `rollback()` and `with connection:` raise GuardError, and the error is
remembered, so that the block's end reports it; `connection.transaction()` is a savepoint. The block's statements have
no time limit. After the block's end the connection refuses every statement but the guard's. The end of the block
detects a COMMIT in plain SQL, and does not commit a transaction that was begun after it. psycopg may prepare the
block's statements, and discard them again. The block's own psycopg errors stay psycopg's.
"""

import select
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import psycopg
from psycopg import AsyncCursor, Cursor, OperationalError
from psycopg.abc import PQGen
from psycopg.errors import InvalidSqlStatementName
from psycopg.pq import DiagnosticField, TransactionStatus
from psycopg.rows import tuple_row

from fencelock.errors import GuardError
from fencelock.stores.errors import closed_inside
from fencelock.stores.postgres.connection.client import (
    AsyncPostgresConnection,
    PostgresConnection,
    is_pooled,
)
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Statement, Trip, exchange, prepare
from fencelock.stores.postgres.guard.codec import OF_EACH_BLOCK
from fencelock.stores.postgres.guard.errors import (
    ended_inside,
    failed_inside,
)
from fencelock.stores.sql.guard import (
    BlockState,
)
from fencelock.stores.sql.guard_store import UNSHARED

_WHICH_BACKEND = (Statement("SELECT pg_catalog.pg_backend_pid()"),)
_IN_TRANSACTION = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
_SEVERITY = DiagnosticField.SEVERITY_NONLOCALIZED
REQUEST_TIMEOUT_S = 60.0
"""How long the guard waits for an answer of its own: longer than any lock that its functions wait for."""


class PostgresBlockState(BlockState):
    """What the synchronous and the asynchronous connection share."""

    savepoint_hint = "use `with connection.transaction():`"
    may_prepare = True
    is_out = False
    """Whether a round trip of the guard's own has not ended: then what the session holds is not known here."""
    is_dismissed = False
    """Whether the server has said that it closes the connection. It says so once, and closes it a moment later."""
    _usual_cursor: ClassVar[type]

    def exchange(self: Any, statements: Sequence[Statement]) -> Trip[list[PostgresAnswer]]:
        """Send the guard's own statements in one round trip; the first block prepares those that each block sends."""
        encoding = self.info.encoding
        self.is_out = True
        if self.may_prepare and not self.prepared and statements[-1].text == OF_EACH_BLOCK[0]:
            # Behind a pooler the next transaction may get a server session without the prepared statements.
            ((which, _),) = yield from exchange(self.pgconn, _WHICH_BACKEND, encoding)
            self.may_prepare = not is_pooled(self, which[0][0])
            for text in OF_EACH_BLOCK if self.may_prepare else ():
                yield from prepare(self.pgconn, text, self.prepared, encoding)
        try:
            answers = yield from exchange(self.pgconn, statements, encoding, self.prepared)
        except psycopg.Error as error:
            if isinstance(error, InvalidSqlStatementName):
                self.prepared.clear()  # The block's own code has deallocated them.
            # An error with a SQLSTATE is the server's answer, which ends the round trip.
            self.is_out = error.sqlstate is None
            raise
        self.is_out = False
        return answers

    def note_deallocation(self: Any, name: bytes | None) -> None:
        """Stop preparing if psycopg deallocates all statements of the session (`name` is None).

        psycopg does so after ROLLBACK TO, DROP and ALTER, to discard those that it has prepared for the block.
        """
        if name is None:
            self.may_prepare = False
            self.prepared.clear()

    def problem(self: Any) -> GuardError | None:
        """Return why a block that ended without an exception cannot be committed."""
        if self.attempt is not None:
            return self.attempt  # type: ignore[no-any-return]
        if self.is_in_statement:
            return GuardError(
                "the guarded block ended in the middle of a statement (a COPY, a pipeline, another thread): nothing of "
                "it was written. Leave those blocks first"
            )
        if self.is_cut_off():
            return closed_inside()
        status = self.info.transaction_status
        if status == TransactionStatus.INERROR:
            return failed_inside()
        return ended_inside() if status == TransactionStatus.IDLE else None

    @property
    def is_in_statement(self: Any) -> bool:
        """Whether a statement has not ended. Another thread, or task, has the lock from before it sends one; libpq
        reports one only after it is sent, when the server may be waiting for a row already.
        """
        return bool(self.lock.locked() or self.info.transaction_status == TransactionStatus.ACTIVE)

    def is_cut_off(self: Any) -> bool:
        """Return whether the idle connection is closed, by the server or here.

        Then the guard need not send COMMIT to find out, whose outcome would be unknown.
        """
        if self.closed or self.is_dismissed:
            return True
        readable = select.poll()
        readable.register(self.pgconn.socket, select.POLLIN)
        try:
            while readable.poll(0):  # First the server's last message, then the end of the stream.
                self.pgconn.consume_input()
                if has_said_farewell(self.pgconn):
                    self.is_dismissed = True
                    return True
        except OperationalError:
            return True
        return False

    def is_unchanged(self: Any) -> bool:
        """Return whether the user left the client's settings as they were, so that the next block may use it."""
        return (
            not self.is_out
            and self.info.transaction_status == TransactionStatus.IDLE
            and self.autocommit
            and self.row_factory is tuple_row
            and self.cursor_factory is self._usual_cursor
        )

    def is_referred_to_inside(self: Any) -> bool:
        """Return whether anybody refers to psycopg's inner connection, which sends what it is told to."""
        return sys.getrefcount(self.pgconn) > UNSHARED


def has_said_farewell(pgconn: Any) -> bool:
    """Return whether the server has said, in what was read just now, why it is about to close an idle connection.

    libpq takes an error that answers no statement for a notice.
    """
    severities: list[bytes | None] = []
    usual = pgconn.notice_handler
    pgconn.notice_handler = lambda result: severities.append(result.error_field(_SEVERITY))
    try:
        pgconn.is_busy()  # Which has libpq parse what was read.
    finally:
        pgconn.notice_handler = usual
    return b"FATAL" in severities


class PostgresBlockConnection(PostgresBlockState, PostgresConnection):
    """A synchronous psycopg connection for blocks."""

    _usual_cursor = Cursor

    def wait(self, gen: Any, *limits: Any, **named_limits: Any) -> Any:
        """Wait without a limit while a block runs; GuardError after it."""
        self.check_not_over()
        return psycopg.Connection.wait(self, gen, *limits, **named_limits)

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        self.note_deallocation(name)
        return super()._deallocate(name)

    def commit(self) -> None:
        """Commit; GuardError while a block runs."""
        self.refuse("commit(), `with connection:`")
        super().commit()

    def rollback(self) -> None:
        """Roll back; GuardError while a block runs."""
        self.refuse("rollback(), an exception out of `with connection:`")
        super().rollback()


class AsyncPostgresBlockConnection(PostgresBlockState, AsyncPostgresConnection):
    """An asynchronous psycopg connection for blocks."""

    _usual_cursor = AsyncCursor

    async def wait(self, gen: Any, *limits: Any, **named_limits: Any) -> Any:
        """Wait without a limit while a block runs; GuardError after it."""
        self.check_not_over()
        return await psycopg.AsyncConnection.wait(self, gen, *limits, **named_limits)

    def _deallocate(self, name: bytes | None) -> PQGen[None]:
        self.note_deallocation(name)
        return super()._deallocate(name)

    async def commit(self) -> None:
        """Commit; GuardError while a block runs."""
        self.refuse("commit(), `async with connection:`")
        await super().commit()

    async def rollback(self) -> None:
        """Roll back; GuardError while a block runs."""
        self.refuse("rollback(), an exception out of `async with connection:`")
        await super().rollback()
