"""A guard's requests answered inside the caller's own psycopg transaction, synchronous or asynchronous.

Promise: the caller's transaction is only used: never begun, committed or rolled back by us. The marks that it reads
stay true until it ends. A transaction that looks at the database as it was before a mark was raised is refused. Never:
a setting of the caller's connection changed for longer than the transaction.
"""

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.errors import SerializationFailure
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from fencelock.errors import FencelockError, GuardError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.errors import raise_mapped
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Statement
from fencelock.stores.postgres.guard.codec import PostgresCallerCodec
from fencelock.stores.postgres.guard.errors import map_guard_error, refusal


def snapshot_is_old() -> GuardError:
    """Return the error for a transaction that reads what a later holder may have changed."""
    return GuardError(
        "the transaction looks at the database as it was before a mark was raised, perhaps by this very lease: "
        "roll it back, and begin it anew after guard.seal(lease)"
    )


class PostgresCallerBase:
    """What both kinds of connection have in common."""

    native: Any

    def __init__(self, native: Any, info: PostgresConnectionInfo, kind: type[Any]) -> None:
        if not isinstance(native, kind):
            raise GuardError(
                f"connection must be the psycopg.{kind.__name__} of your own transaction, not {type(native).__name__}"
            )
        if native.closed:
            raise GuardError("the connection is closed: pass the open one of your own transaction")
        status = native.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise GuardError("the connection's transaction has failed: roll it back, and begin it anew")
        if native.autocommit and status == TransactionStatus.IDLE:
            raise GuardError(
                "the connection is in no transaction, so a check would be worth nothing a moment later: write `with "
                "connection.transaction():` around it, or use guard.transaction(lease)"
            )
        self.native = native
        self._info = info
        self._codec = PostgresCallerCodec()

    def _meaning(self, error: BaseException) -> FencelockError | None:
        if isinstance(error, FencelockError):
            return None
        if isinstance(error, SerializationFailure):
            return snapshot_is_old()
        return map_guard_error(error, self._info, is_commit=False)

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return what the guard's triggers said; the caller's errors stay their own."""
        return refusal(error)


class PostgresCallerConnection(PostgresCallerBase):
    """The caller's psycopg.Connection."""

    def __init__(self, native: Any, info: PostgresConnectionInfo) -> None:
        super().__init__(native, info, psycopg.Connection)

    def perform(self, request: Any) -> Any:
        """Answer one request; the caller's transaction stays open whatever happens."""
        try:
            return run_generator(self._codec.operations(request), self._answers)
        except BaseException as error:
            raise_mapped(self._meaning(error), error)
            raise

    def _answers(self, statements: Sequence[Statement]) -> list[PostgresAnswer]:
        answers = []
        for text, parameters in statements:
            with psycopg.RawCursor(self.native, row_factory=tuple_row) as cursor:
                cursor.execute(text.encode(), parameters)
                answers.append(PostgresAnswer(cursor.fetchall(), cursor.statusmessage or ""))
        return answers

    def rollback(self) -> None:
        """Leave the transaction to its owner."""

    def close(self) -> None:
        """Leave the connection to its owner."""


class AsyncPostgresCallerConnection(PostgresCallerBase):
    """The caller's psycopg.AsyncConnection."""

    def __init__(self, native: Any, info: PostgresConnectionInfo) -> None:
        super().__init__(native, info, psycopg.AsyncConnection)

    async def perform(self, request: Any) -> Any:
        """Answer one request; the caller's transaction stays open whatever happens."""
        try:
            return await run_generator_async(self._codec.operations(request), self._answers)
        except BaseException as error:
            raise_mapped(self._meaning(error), error)
            raise

    async def _answers(self, statements: Sequence[Statement]) -> list[PostgresAnswer]:
        answers = []
        for text, parameters in statements:
            async with psycopg.AsyncRawCursor(self.native, row_factory=tuple_row) as cursor:
                await cursor.execute(text.encode(), parameters)
                answers.append(PostgresAnswer(await cursor.fetchall(), cursor.statusmessage or ""))
        return answers

    async def rollback(self) -> None:
        """Leave the transaction to its owner."""

    def close(self) -> None:
        """Leave the connection to its owner."""
