"""A guard's requests answered over connections of its own, synchronous and asynchronous.

Promise: both say what `guard_speech.py` says, and nothing else; what goes wrong leaves no transaction open, and a
connection whose state is in doubt is closed. A block's own psycopg errors stay psycopg's.
"""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from fenceline._flows import guard_requests as ask
from fenceline._flows.driving import drive, drive_async
from fenceline.errors import FencelineError, GuardError, UnsupportedError
from fenceline.stores.postgres.conninfo import Place
from fenceline.stores.postgres.exchange import Answer, Statement
from fenceline.stores.postgres.forks import FORKS
from fenceline.stores.postgres.guard_errors import is_users, refusal, translated
from fenceline.stores.postgres.guard_speech import SQL, OwnSpeech
from fenceline.stores.postgres.lent import AsyncLentConnection, Lending, LentConnection

_IN_TRANSACTION = (TransactionStatus.INTRANS, TransactionStatus.INERROR)
_ROLLBACK = (Statement(SQL.rollback),)


class Bearing:
    """What both kinds of connection know of their state."""

    _place: Place
    _speech: OwnSpeech
    _native: Any

    def _check(self, request: Any) -> None:
        """Take the connection back before a block's end, and raise what keeps it from being committed."""
        native: Lending | None = self._native
        if not isinstance(request, ask.Finish) or native is None:
            return
        if not FORKS.is_ours(self._native) and not self._native.closed:
            raise UnsupportedError(
                "the connection of a guarded transaction was inherited by fork: only the process that opened it ends it"
            )
        native.take_back()
        if (problem := native.problem()) is not None:
            raise problem

    def _after(self, request: Any) -> None:
        if isinstance(request, ask.Open):
            self._native.lend()

    def _meaning(self, error: BaseException, request: Any) -> FencelineError | None:
        """Return what the error of a request means; None: it is as it should be."""
        if isinstance(error, FencelineError):
            return None
        if isinstance(request, ask.Finish) and is_users(error, self._native):
            return None
        return translated(error, self._place, is_commit=isinstance(request, (ask.Commit, ask.Finish)))

    def _is_to_roll_back(self) -> bool:
        """Tell whether there is a transaction that ROLLBACK would end; a connection in doubt is closed instead."""
        self._speech.forget()
        native = self._native
        if native is None:
            return False
        was_lent, status = native.is_lent, native.info.transaction_status
        native.take_back()
        if status in _IN_TRANSACTION and FORKS.is_ours(native):
            return True
        if was_lent or status != TransactionStatus.IDLE:
            FORKS.close(native)
        return False

    def explain(self, error: BaseException) -> GuardError | None:
        """Return the error of the tree that says what an error in the user's block was; None: it is theirs."""
        return refusal(error)


class GuardConnection(Bearing):
    """The guard's own synchronous connection. One thread at a time; any thread may be the next."""

    def __init__(
        self, place: Place, take: Callable[[], LentConnection], give_back: Callable[[LentConnection], None]
    ) -> None:
        self._place = place
        self._speech = OwnSpeech()
        self._native: LentConnection | None = None
        self._take = take
        self._give_back = give_back

    @property
    def native(self) -> psycopg.Connection[tuple[Any, ...]]:
        """The connection that `guard.transaction` yields."""
        assert self._native is not None, "a request comes first"
        return self._native

    def perform(self, request: Any) -> Any:
        """Answer one request; anything but success leaves no transaction open."""
        try:
            self._check(request)
            reply = drive(self._speech.talk(request), self._exchanged)
            self._after(request)
        except BaseException as error:
            self.rollback()
            if (known := self._meaning(error, request)) is None:
                raise
            raise known from error
        return reply

    def _exchanged(self, statements: Sequence[Statement]) -> list[Answer]:
        if self._native is None:
            self._native = self._take()
        native = self._native
        with native.lock:
            answers: list[Answer] = native.wait(native.exchange(statements))
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


class AsyncGuardConnection(Bearing):
    """The guard's own asynchronous connection, for one task at a time."""

    def __init__(self, place: Place, take: Callable[[], Any], give_back: Callable[[AsyncLentConnection], None]) -> None:
        self._place = place
        self._speech = OwnSpeech()
        self._native: AsyncLentConnection | None = None
        self._take = take
        self._give_back = give_back

    @property
    def native(self) -> psycopg.AsyncConnection[tuple[Any, ...]]:
        """The connection that `guard.transaction` yields."""
        assert self._native is not None, "a request comes first"
        return self._native

    async def perform(self, request: Any) -> Any:
        """Answer one request; anything but success leaves no transaction open."""
        try:
            self._check(request)
            reply = await drive_async(self._speech.talk(request), self._exchanged)
            self._after(request)
        except BaseException as error:
            await self.rollback()
            if (known := self._meaning(error, request)) is None:
                raise
            raise known from error
        return reply

    async def _exchanged(self, statements: Sequence[Statement]) -> list[Answer]:
        if self._native is None:
            self._native = await self._take()
        native = self._native
        async with native.lock:
            answers: list[Answer] = await native.wait(native.exchange(statements))
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
