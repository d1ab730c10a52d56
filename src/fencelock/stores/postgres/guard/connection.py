"""A guard's requests answered over connections of its own, synchronous and asynchronous.

Promise: both say what `guard_speech.py` says, and nothing else; what goes wrong leaves no transaction open, and a
connection whose state is in doubt is closed. A block's own psycopg errors stay psycopg's.
"""

from collections.abc import Callable, Sequence
from typing import Any

from psycopg.pq import TransactionStatus

from fencelock.errors import FencelockError, GuardError
from fencelock.protocol import guard_requests as ask
from fencelock.stores.postgres.connection.client import FORKS
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Statement
from fencelock.stores.postgres.guard.block import AsyncPostgresBlockConnection, PostgresBlockConnection
from fencelock.stores.postgres.guard.codec import SQL, PostgresBlockCodec
from fencelock.stores.postgres.guard.errors import is_users, map_guard_error, refusal
from fencelock.stores.sql.guard_connection import AsyncioGuardConnection, BlockingGuardConnection, GuardConnectionBase

_IN_TRANSACTION = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
_ROLLBACK = (Statement(SQL.rollback),)


class PostgresErrorMapping(GuardConnectionBase[Any, PostgresBlockCodec]):
    """What both kinds of connection make of errors."""

    _info: PostgresConnectionInfo

    def _meaning(self, error: BaseException, request: Any) -> FencelockError | None:
        """Return what the error of a request means; None: it is as it should be."""
        if isinstance(error, FencelockError):
            return None
        if isinstance(request, ask.Finish) and is_users(error, self._native):
            return None
        return map_guard_error(error, self._info, is_commit=isinstance(request, (ask.Commit, ask.Finish)))

    def _is_to_roll_back(self) -> bool:
        """Tell whether there is a transaction that ROLLBACK would end; a connection in doubt is closed instead."""
        self._codec.forget()
        native = self._native
        if native is None:
            return False
        was_lent, status = native.is_in_block, native.info.transaction_status
        native.take_back()
        if status in _IN_TRANSACTION and FORKS.is_ours(native):
            return True
        if was_lent or status != TransactionStatus.IDLE:
            FORKS.close(native)
        return False

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return the error of the tree that says what an error in the user's block was; None: it is theirs."""
        return refusal(error)


class PostgresGuardConnection(
    PostgresErrorMapping, BlockingGuardConnection[PostgresBlockConnection, PostgresBlockCodec]
):
    """The guard's own synchronous connection."""

    def __init__(
        self,
        info: PostgresConnectionInfo,
        take: Callable[[], PostgresBlockConnection],
        give_back: Callable[[PostgresBlockConnection], None],
    ) -> None:
        super().__init__(PostgresBlockCodec(), take, give_back, FORKS.is_ours)
        self._info = info

    def _exchanged(self, statements: Sequence[Statement]) -> list[PostgresAnswer]:
        if self._native is None:
            self._native = self._take()
        native = self._native
        with native.lock:
            answers: list[PostgresAnswer] = native.wait(native.exchange(statements))
        return answers

    def rollback(self) -> None:
        """Undo the open transaction, if there is one; never raises."""
        if self._is_to_roll_back() and self._native is not None:
            try:
                self._exchanged(_ROLLBACK)
            except BaseException:
                FORKS.close(self._native)

    def close(self) -> None:
        """Undo what is open, and give the connection back for somebody else; never raises."""
        self.rollback()
        native, self._native = self._native, None
        if native is not None:
            self._give_back(native)


class AsyncPostgresGuardConnection(
    PostgresErrorMapping, AsyncioGuardConnection[AsyncPostgresBlockConnection, PostgresBlockCodec]
):
    """The guard's own asynchronous connection."""

    def __init__(
        self,
        info: PostgresConnectionInfo,
        take: Callable[[], Any],
        give_back: Callable[[AsyncPostgresBlockConnection], None],
    ) -> None:
        super().__init__(PostgresBlockCodec(), take, give_back, FORKS.is_ours)
        self._info = info

    async def _exchanged(self, statements: Sequence[Statement]) -> list[PostgresAnswer]:
        if self._native is None:
            self._native = await self._take()
        native = self._native
        async with native.lock:
            answers: list[PostgresAnswer] = await native.wait(native.exchange(statements))
        return answers

    async def rollback(self) -> None:
        """Undo the open transaction, if there is one; never raises an Exception."""
        if self._is_to_roll_back() and self._native is not None:
            try:
                await self._exchanged(_ROLLBACK)
            except BaseException as error:
                FORKS.close(self._native)
                if not isinstance(error, Exception):
                    raise

    def close(self) -> None:
        """Give the connection back for somebody else; one that is in a transaction is ended. Never raises."""
        native, self._native = self._native, None
        if native is not None:
            native.take_back()
            self._give_back(native)
