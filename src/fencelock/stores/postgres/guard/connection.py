"""The guard's requests over connections of its own, in whose transactions blocks run.

Promise: a failed request leaves no transaction open, and a connection in doubt is closed.
"""

from collections.abc import Sequence
from typing import Any

from psycopg.pq import TransactionStatus

from fencelock.errors import FencelockError, GuardError
from fencelock.protocol import guard_requests as ask
from fencelock.stores.errors import note_lost
from fencelock.stores.postgres.connection.client import (
    FORKS,
    AsyncPostgresConnection,
    PostgresConnection,
)
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Statement
from fencelock.stores.postgres.guard.block import _IN_TRANSACTION, AsyncPostgresBlockConnection, PostgresBlockConnection
from fencelock.stores.postgres.guard.codec import PostgresBlockCodec
from fencelock.stores.postgres.guard.errors import (
    is_users_error,
    map_refusal,
    map_request_error,
)
from fencelock.stores.postgres.guard.rights import SQL
from fencelock.stores.sql.guard import (
    AsyncioGuardConnection,
    BlockingGuardConnection,
    GuardConnectionBase,
)
from fencelock.stores.sql.guard_store import AsyncIdleConnections, IdleConnections

_ROLLBACK = (Statement(SQL.rollback),)


class PostgresBlockMapping(GuardConnectionBase[Any, PostgresBlockCodec]):
    """Error mapping, and the decision whether to roll back."""

    _info: PostgresConnectionInfo
    _is_lost = False
    """Whether the connection had ended when the block's error rolled it back."""

    def _map_request_error(self, error: BaseException, request: Any) -> FencelockError | None:
        if isinstance(request, ask.Finish) and is_users_error(error, self._native):
            return None
        return map_request_error(error, self._info, is_commit=isinstance(request, (ask.Commit, ask.Finish)))

    def map_error(self, error: BaseException) -> GuardError | None:
        """Map an error in the user's block; None leaves the user's error as it is."""
        refused = map_refusal(error)
        if refused is None and self._is_lost:
            note_lost(error)
        return refused

    def _needs_rollback(self) -> bool:
        """Return whether a transaction is open that ROLLBACK would end; close a connection in doubt instead."""
        self._codec.forget()
        native = self._native
        if native is None:
            return False
        # Read before `take_back`, which forgets that a block had the connection.
        was_in_block, status = native.is_in_block, native.info.transaction_status
        is_in_statement = native.is_in_statement
        is_out = native.is_out or is_in_statement
        self._is_lost = was_in_block and FORKS.is_ours(native) and not is_in_statement and native.is_cut_off()
        native.take_back()
        if status in _IN_TRANSACTION and FORKS.is_ours(native) and not is_out:
            return True
        if is_out or was_in_block or status != TransactionStatus.IDLE:
            FORKS.close(native)
        return False


class PostgresGuardConnection(
    PostgresBlockMapping, BlockingGuardConnection[PostgresBlockConnection, PostgresBlockCodec]
):
    """Answers the guard's requests over a synchronous connection of its own."""

    def __init__(self, info: PostgresConnectionInfo, idle: IdleConnections[PostgresBlockConnection]) -> None:
        super().__init__(PostgresBlockCodec(), idle.take, idle.give_back, FORKS.is_ours)
        self._info = info

    def _exchange(self, trip: Sequence[Statement]) -> list[PostgresAnswer]:
        if self._native is None:
            self._native = self._take()
        native = self._native
        with native.lock:
            answers: list[PostgresAnswer] = PostgresConnection.wait(native, native.exchange(trip))
        return answers

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one; never raises."""
        if self._needs_rollback() and self._native is not None:
            try:
                self._exchange(_ROLLBACK)
            except BaseException:
                FORKS.close(self._native)

    def close(self) -> None:
        """Roll back the open transaction, and give the connection back to the store; never raises."""
        self.rollback()
        native, self._native = self._native, None
        if native is not None:
            self._give_back(native)


class AsyncPostgresGuardConnection(
    PostgresBlockMapping, AsyncioGuardConnection[AsyncPostgresBlockConnection, PostgresBlockCodec]
):
    """Answers the guard's requests over an asynchronous connection of its own."""

    def __init__(self, info: PostgresConnectionInfo, idle: AsyncIdleConnections[AsyncPostgresBlockConnection]) -> None:
        super().__init__(PostgresBlockCodec(), idle.take, idle.give_back, FORKS.is_ours)
        self._info = info

    async def _exchange(self, trip: Sequence[Statement]) -> list[PostgresAnswer]:
        if self._native is None:
            self._native = await self._take()
        native = self._native
        async with native.lock:
            answers: list[PostgresAnswer] = await AsyncPostgresConnection.wait(native, native.exchange(trip))
        return answers

    async def rollback(self) -> None:
        """Roll back the open transaction, if there is one; never raises an Exception."""
        if self._needs_rollback() and self._native is not None:
            try:
                await self._exchange(_ROLLBACK)
            except BaseException as error:
                FORKS.close(self._native)
                if not isinstance(error, Exception):
                    raise

    def close(self) -> None:
        """Give the connection back to the store, which closes one that is in a transaction; never raises."""
        native, self._native = self._native, None
        if native is not None:
            native.take_back()
            self._give_back(native)
