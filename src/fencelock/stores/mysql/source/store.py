"""The source of tokens in a MySQL or MariaDB database: one call to acquire, one to release.

Promise: a token is minted by the transaction that decides the holder, from the one counter of the source, and flushed
with it before any reply, where `innodb_flush_log_at_trx_commit` is 1 (T1). Every decision is made at READ COMMITTED on
the server's clock, read after the lock's row is held (H1). A server that went back, as far as this process can know, is
refused (T7). Waiters look for themselves, the first of them every 5 to 250 ms. Never: a schema made without
`install`; a request repeated here, but for one that the server itself rolled back to end a deadlock.
"""

import os
from collections.abc import Generator
from typing import Any, TypeVar

import pymysql
from pymysql.constants import ER

from fencelock.clock import boottime_us
from fencelock.errors import SchemaError, SourceError
from fencelock.model import Finding
from fencelock.protocol import source_requests as ask
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.protocol.stores import Capabilities, Channel
from fencelock.stores.mysql.connection import install
from fencelock.stores.mysql.connection.client import (
    AsyncMySQLConnection,
    MySQLConnection,
    is_alive,
    open_async_connection,
    open_connection,
)
from fencelock.stores.mysql.connection.errors import error_number, mapping_errors
from fencelock.stores.mysql.connection.forks import FORKS
from fencelock.stores.mysql.connection.url import parse_url
from fencelock.stores.mysql.source import inspection
from fencelock.stores.mysql.source.codec import (
    GRANTED,
    HELD,
    SQL,
    MySQLAnswer,
    MySQLDescription,
    MySQLSourceCodec,
    Rows,
    answer_of,
    draw_id,
)
from fencelock.stores.source_clock import Seen, SourceIdentity
from fencelock.stores.sql.source_connection import ServerSourceConnection
from fencelock.stores.statements import statements

SCHEMA = statements(__package__, "schema.sql")
ROUTINES = statements(__package__, "routines.sql")
SCHEMA_NUMBER = 1
PART = "source of tokens"
MAX_DEADLOCKS = 10
"""How often a request is sent anew that the server rolled back to end a deadlock."""
Reply = TypeVar("Reply")
Said = tuple[str, Any]
"""A statement with its parameters."""
Talk = Generator[Said, Rows, Reply]
"""Says things, is sent the rows that answer each, and returns a reply."""


class MySQLSource:
    """A source of tokens in one database. Making it opens nothing."""

    capabilities = Capabilities(
        ttl_min_ms=100, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=False, speaks_asyncio=True, max_connections=8
    )

    def __init__(self, url: str) -> None:
        self.place = parse_url(url)
        self.url = self.place.url
        self.identity = SourceIdentity(self.url)
        self.regressed: dict[Seen, str] = {}
        """What was said when a history was found to have gone back: its tokens may be old ones until it passes them."""

    def connect(self, *, request_timeout_s: float) -> "MySQLSourceConnection":
        """Return a connection, which opens with its first request."""
        return MySQLSourceConnection(self, request_timeout_s)

    def connect_async(self, *, request_timeout_s: float) -> "AsyncMySQLSourceConnection":
        """Return a connection for the running loop, which opens with its first request."""
        return AsyncMySQLSourceConnection(self, request_timeout_s)

    def listen(self, lock: str, claim: str) -> Channel:
        """Open the channel of one waiting claim, on which nothing is ever told."""
        return NoWakeup()

    def install(self) -> None:
        """Make the schema if there is none, and its routines if nobody's rights are behind them any more; safe when
        run concurrently. SchemaError if a table of such a name is somebody else's.
        """
        finish = SQL.finish, (SCHEMA_NUMBER, draw_id(), draw_id())
        install.install(
            self.place,
            part=PART,
            table="fencelock_source",
            number=SCHEMA_NUMBER,
            tables=SCHEMA,
            routines=ROUTINES,
            probe=SQL.describe,
            finish=finish,
        )

    def examine(self) -> list[Finding]:
        """Return what in this source's set-up would break the promise."""
        return inspection.examine(self)


class NoWakeup:
    """The channel of a claim that has to look for itself."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Return a descriptor that never becomes readable."""
        return self._descriptor

    def drain(self) -> None:
        """Forget nothing: nothing was told."""

    def close(self) -> None:
        """Give the descriptor back; never raises."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class MySQLSourceProtocol:
    """What is said over one connection, whichever way it is said: pure but for what it remembers."""

    def __init__(self, store: MySQLSource) -> None:
        self._store = store
        self._identity = store.identity
        self._is_greeted = False

    def begin_anew(self) -> None:
        """The connection is another one from here on."""
        self._is_greeted = False

    def operations(self, request: Any) -> Talk[ask.SourceReply]:
        """Say what a request needs, and return the reply."""
        kind = type(request)
        if kind is ask.ReserveBlock:
            return None  # Each grant reserves its own token.
        if kind is ask.ReadSource:
            return (yield from self._greet()).info()
        if not self._is_greeted or self._identity.seen is None:
            yield from self._greet()
        return (yield from self._ask(request))

    def _greet(self) -> Talk[MySQLDescription]:
        before = self._identity.seen
        rows = yield SQL.describe, ()
        heard_us = boottime_us()
        if not rows:
            raise SchemaError(
                f"{self._store.url} holds a schema that is not whole: as its owner, run `fencelock install` on it, or "
                f"restore it from a backup if it was whole before"
            )
        found = MySQLDescription._make(rows[0])
        install.check_number(self._store.place, PART, found.schema, SCHEMA_NUMBER)
        self._identity.check(Seen(found.source_id, found.epoch, found.history_id), before)
        self._identity.clock.learn(found.now_us, heard_us)
        self._is_greeted = True
        return found

    def _ask(self, request: Any) -> Talk[ask.SourceReply]:
        identity = self._identity
        before, highest = identity.seen, identity.highest_token
        assert before is not None, "a connection greets first"
        said = MySQLSourceCodec(before, highest, identity.clock.at, boottime_us()).saying(request)
        rows = yield said.statement, said.parameters
        if said.clock_column is not None and rows:
            identity.clock.learn(rows[0][said.clock_column], boottime_us())
        reply = said.hear(rows)
        if said.statement is SQL.acquire:
            self._note(answer_of(rows[0], before), before, highest)
        elif isinstance(reply, ask.Broken):
            identity.check_token(reply.token, 0)
        return reply

    def _note(self, answer: MySQLAnswer, before: Seen, highest: int) -> None:
        """Refuse an answer to `acquire` of an older state than was known before it was asked for; a history that went
        back once is refused until an operator has begun another.
        """
        seen = Seen(answer.source_id, answer.epoch, answer.history_id)
        self._identity.check(seen, before)
        if answer.outcome not in {GRANTED, HELD}:
            return
        if seen in self._store.regressed:
            raise SourceError(self._store.regressed[seen])
        if answer.outcome == GRANTED:
            try:
                self._identity.check_token(answer.token, highest)
            except SourceError as error:
                self._store.regressed[seen] = str(error)
                raise


class MySQLSourceConnection(ServerSourceConnection[MySQLConnection, MySQLSourceProtocol]):
    """Answers requests in the caller's thread, each by one statement."""

    def __init__(self, store: MySQLSource, request_timeout_s: float) -> None:
        super().__init__(MySQLSourceProtocol(store), request_timeout_s, is_alive, FORKS.close)
        self._place = store.place
        self._naming_errors = mapping_errors(store.place)

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        native = self._native = self._alive() or open_connection(self._place, self._patience_s)
        native.wait_for(self._patience_for(request))
        return run_generator(self._conversation.operations(request), self._say)

    def _say(self, said: Said) -> Rows:
        native = self._native
        assert native is not None
        with self._naming_errors:
            for _ in range(MAX_DEADLOCKS):
                try:
                    return native.run(*said)
                except pymysql.OperationalError as error:
                    _check_deadlock(error)
            return native.run(*said)


class AsyncMySQLSourceConnection(ServerSourceConnection[AsyncMySQLConnection, MySQLSourceProtocol]):
    """Answers requests on the running loop, each by one statement."""

    def __init__(self, store: MySQLSource, request_timeout_s: float) -> None:
        super().__init__(MySQLSourceProtocol(store), request_timeout_s, is_alive, FORKS.close)
        self._place = store.place
        self._naming_errors = mapping_errors(store.place)

    async def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        native = self._native = self._alive() or await open_async_connection(self._place, self._patience_s)
        native.wait_for(self._patience_for(request))
        return await run_generator_async(self._conversation.operations(request), self._say)

    async def _say(self, said: Said) -> Rows:
        native = self._native
        assert native is not None
        with self._naming_errors:
            for _ in range(MAX_DEADLOCKS):
                try:
                    return await native.run(*said)
                except pymysql.OperationalError as error:
                    _check_deadlock(error)
            return await native.run(*said)


def _check_deadlock(error: pymysql.OperationalError) -> None:
    """Raise the error again, unless it says that nothing was done because of a deadlock."""
    if error_number(error) != ER.LOCK_DEADLOCK:
        raise error
