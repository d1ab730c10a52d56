"""A guard's requests answered over connections of its own, synchronous and asynchronous.

Promise: both say what `guard_speech.py` says, and nothing else; what goes wrong leaves no transaction open and nothing
presented, and a connection whose state is in doubt is closed. A block's own errors stay the client's.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pymysql

from fenceline._flows import guard_requests as ask
from fenceline._flows.driving import drive, drive_async
from fenceline.errors import FencelineError, GuardError, UnsupportedError
from fenceline.stores.mysql.client import AsyncConnection, Connection, open_async_connection, open_connection
from fenceline.stores.mysql.conninfo import Place
from fenceline.stores.mysql.exchange import Rows, results, results_async
from fenceline.stores.mysql.forks import FORKS
from fenceline.stores.mysql.guard_errors import explained, translated
from fenceline.stores.mysql.guard_speech import SQL, Aside, OwnSpeech
from fenceline.stores.mysql.lent import PATIENCE_S, AsyncLentConnection, Lending, LentConnection

DDL_PATIENCE_S = 5
"""How long `protect` waits for open writers of a table."""
PREPARE_ASIDE = SQL.prepare_aside.format(limit_s=DDL_PATIENCE_S)


class Bearing:
    """What both kinds of connection know of their state."""

    _place: Place
    _speech: OwnSpeech
    _native: Any
    _is_begun = False
    """Whether something was said since the last end of a transaction. A server that reports an error does not say
    whether one is open.
    """

    def _check(self, request: Any) -> None:
        """Take the connection back before a block's end, and raise what keeps it from being committed."""
        native: Lending | None = self._native
        if not isinstance(request, ask.Finish) or native is None:
            return
        if not FORKS.is_ours(self._native) and self._native.descriptor >= 0:
            raise UnsupportedError(
                "the connection of a guarded transaction was inherited by fork: only the process that opened it ends it"
            )
        native.take_back()
        if (problem := native.problem()) is not None:
            raise problem

    def _after(self, request: Any) -> None:
        if isinstance(request, ask.Open):
            self._native.lend()
        elif isinstance(request, (ask.Commit, ask.Finish, ask.Look)):
            self._is_begun = False

    def _meaning(self, error: BaseException, request: Any) -> FencelineError | None:
        """Return what the error of a request means; None: it is as it should be."""
        if isinstance(error, FencelineError):
            return None
        return translated(error, self._place, is_commit=isinstance(request, (ask.Commit, ask.Finish)))

    def _is_to_roll_back(self) -> bool:
        """Tell whether there may be a transaction that ROLLBACK would end; a connection in doubt is closed instead."""
        native = self._native
        if native is None or not self._is_begun:
            return False
        self._is_begun = False
        was_lent = native.is_lent
        native.take_back()
        if FORKS.is_ours(native) and (native.is_in_transaction or not was_lent):
            return True
        FORKS.close(native)
        return False

    def explain(self, error: BaseException) -> GuardError | None:
        """Return the error of the tree that says what an error in the user's block was; None: it is theirs."""
        return explained(error)


class GuardConnection(Bearing):
    """The guard's own synchronous connection. One thread at a time; any thread may be the next."""

    def __init__(
        self, place: Place, take: Callable[[], LentConnection], give_back: Callable[[LentConnection], None]
    ) -> None:
        self._place = place
        self._speech = OwnSpeech(place.database)
        self._native: LentConnection | None = None
        self._beside: Connection | None = None
        self._take = take
        self._give_back = give_back

    @property
    def native(self) -> LentConnection:
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

    def _exchanged(self, said: str | Aside) -> list[Rows]:
        if isinstance(said, Aside):
            return results(self._aside(), said.text)
        if self._native is None:
            self._native = self._take()
        self._is_begun = True
        return results(self._native, said)

    def _aside(self) -> Connection:
        """Return the connection for DDL, which commits."""
        if self._beside is None:
            self._beside = open_connection(self._place, PATIENCE_S)
            results(self._beside, PREPARE_ASIDE)
        return self._beside

    def rollback(self) -> None:
        """Undo the open transaction, if there is one; never raises."""
        with suppress(Exception):
            for statement in self._speech.forget():
                self._exchanged(Aside(statement))
        if self._is_to_roll_back() and self._native is not None:
            try:
                results(self._native, SQL.rollback)
                results(self._native, self._speech.said(SQL.unbind))
            except BaseException:
                FORKS.close(self._native)

    def close(self) -> None:
        """Undo what is open, and give the connection back for somebody else; never raises."""
        self.rollback()
        native, self._native = self._native, None
        beside, self._beside = self._beside, None
        if native is not None:
            self._give_back(native)
        if beside is not None:
            FORKS.close(beside)


class AsyncGuardConnection(Bearing):
    """The guard's own asynchronous connection, for one task at a time."""

    def __init__(self, place: Place, take: Callable[[], Any], give_back: Callable[[AsyncLentConnection], None]) -> None:
        self._place = place
        self._speech = OwnSpeech(place.database)
        self._native: AsyncLentConnection | None = None
        self._beside: AsyncConnection | None = None
        self._take = take
        self._give_back = give_back

    @property
    def native(self) -> AsyncLentConnection:
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
            await self._undo(is_in_doubt=not isinstance(error, (Exception, pymysql.Error)))
            if (known := self._meaning(error, request)) is None:
                raise
            raise known from error
        return reply

    async def _exchanged(self, said: str | Aside) -> list[Rows]:
        if isinstance(said, Aside):
            return await results_async(await self._aside(), said.text)
        if self._native is None:
            self._native = await self._take()
        self._is_begun = True
        return await results_async(self._native, said)

    async def _aside(self) -> AsyncConnection:
        """Return the connection for DDL, which commits."""
        if self._beside is None:
            self._beside = await open_async_connection(self._place, PATIENCE_S)
            await results_async(self._beside, PREPARE_ASIDE)
        return self._beside

    async def _undo(self, *, is_in_doubt: bool) -> None:
        """Roll back, or close a connection whose answer was not waited for."""
        if is_in_doubt and self._native is not None:
            self._speech.forget()
            FORKS.close(self._native)
        else:
            await self.rollback()

    async def rollback(self) -> None:
        """Undo the open transaction, if there is one; never raises an Exception."""
        with suppress(Exception):
            for statement in self._speech.forget():
                await self._exchanged(Aside(statement))
        if self._is_to_roll_back() and self._native is not None:
            try:
                await results_async(self._native, SQL.rollback)
                await results_async(self._native, self._speech.said(SQL.unbind))
            except BaseException as error:
                FORKS.close(self._native)
                if not isinstance(error, Exception):
                    raise

    def close(self) -> None:
        """Give the connection back for somebody else; one that is in a transaction is ended. Never raises."""
        native, self._native = self._native, None
        beside, self._beside = self._beside, None
        if native is not None:
            native.take_back()
            if self._is_begun:
                FORKS.close(native)
            else:
                self._give_back(native)
        if beside is not None:
            FORKS.close(beside)
