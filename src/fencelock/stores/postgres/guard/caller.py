"""A guard's requests inside the caller's own psycopg transaction, synchronous or asynchronous.

Promise: the caller's transaction is only used: never begun, committed or rolled back. The marks that it reads stay true
until it ends. A transaction whose snapshot is older than a mark is refused. Never changes a setting of the caller's
connection for longer than the transaction.
"""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from fencelock.errors import FencelockError, GuardError
from fencelock.stores.errors import note_lost
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Statement
from fencelock.stores.postgres.guard.codec import PostgresCallerCodec
from fencelock.stores.postgres.guard.errors import map_callers_error, map_refusal, map_request_error
from fencelock.stores.postgres.guard.framework import PostgresFrameworkConnection
from fencelock.stores.sql.guard import (
    AsyncioCallerConnection,
    BlockingCallerConnection,
    CallerConnectionBase,
)

_OTHER_DRIVERS = frozenset({"psycopg2", "pg8000"})
"""The packages of the other synchronous drivers that are known."""


def is_other_drivers(native: Any) -> bool:
    """Return whether it is a connection of a synchronous driver that is known, besides psycopg."""
    return not _OTHER_DRIVERS.isdisjoint(base.__module__.partition(".")[0] for base in type(native).__mro__)


class PostgresDriverConnection(PostgresFrameworkConnection):
    """The caller's connection of another driver than psycopg."""

    _codec_type = PostgresCallerCodec

    def __init__(self, native: Any, info: PostgresConnectionInfo) -> None:
        if native.autocommit:
            raise _autocommit_error("set autocommit to False")
        super().__init__(native, native, info, "format")
        if (extensions := sys.modules.get("psycopg2.extensions")) and isinstance(native, extensions.connection):
            # The caller's own kind of cursor may return rows of another kind.
            self._make_cursor = partial(native.cursor, cursor_factory=extensions.cursor)


def _autocommit_error(remedy: str) -> GuardError:
    return GuardError(
        f"the connection is not in a transaction, so a check would not hold for the next write: {remedy}, or use "
        f"guard.transaction(lease)"
    )


def _check_usable(native: Any, kind: type[Any]) -> None:
    """Raise GuardError unless the connection is psycopg's and inside a transaction."""
    if not isinstance(native, kind):
        raise GuardError(
            f"connection must be the psycopg.{kind.__name__} of your own transaction, not {type(native).__name__}"
        )
    if native.closed:
        raise GuardError("the connection is closed: pass the open one of your own transaction")
    status = native.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise GuardError("the connection's transaction has failed: roll it back, and start it again")
    if native.autocommit and status == TransactionStatus.IDLE:
        raise _autocommit_error("write `with connection.transaction():` around it")


class PostgresCallerMapping(CallerConnectionBase):
    """Error mapping for connections of callers."""

    _info: PostgresConnectionInfo

    def _map_request_error(self, error: BaseException) -> FencelockError | None:
        return map_callers_error(error) or map_request_error(error, self._info, is_commit=False)

    def map_error(self, error: BaseException) -> GuardError | None:
        """Map an error that the guard's triggers raised; None leaves the caller's error as it is."""
        refused = map_refusal(error)
        if refused is None and self.native.closed:
            note_lost(error)
        return refused


class PostgresCallerConnection(PostgresCallerMapping, BlockingCallerConnection):
    """The caller's psycopg.Connection."""

    def __init__(self, native: Any, info: PostgresConnectionInfo) -> None:
        _check_usable(native, psycopg.Connection)
        super().__init__(native, PostgresCallerCodec())
        self._info = info

    def _exchange(self, trip: Sequence[Statement]) -> list[PostgresAnswer]:
        answers = []
        for text, parameters in trip:
            with psycopg.RawCursor(self.native, row_factory=tuple_row) as cursor:
                cursor.execute(text.encode(), parameters)
                rows = cursor.fetchall() if cursor.description else []
                answers.append(PostgresAnswer(rows, cursor.statusmessage or ""))
        return answers


class AsyncPostgresCallerConnection(PostgresCallerMapping, AsyncioCallerConnection):
    """The caller's psycopg.AsyncConnection."""

    def __init__(self, native: Any, info: PostgresConnectionInfo) -> None:
        _check_usable(native, psycopg.AsyncConnection)
        super().__init__(native, PostgresCallerCodec())
        self._info = info

    async def _exchange(self, trip: Sequence[Statement]) -> list[PostgresAnswer]:
        answers = []
        for text, parameters in trip:
            async with psycopg.AsyncRawCursor(self.native, row_factory=tuple_row) as cursor:
                await cursor.execute(text.encode(), parameters)
                rows = await cursor.fetchall() if cursor.description else []
                answers.append(PostgresAnswer(rows, cursor.statusmessage or ""))
        return answers
