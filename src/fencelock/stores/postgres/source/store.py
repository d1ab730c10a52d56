"""The source of tokens in a PostgreSQL database: one statement to acquire, one to release.

Promise: a token is minted in the statement that decides the holder, from a history whose tokens were reserved by a
flushed transaction (T1); any recovery of the server, a backup or a standby included, begins a new history above all
that was issued (T7). Every decision is made at READ COMMITTED on the server's clock, read after the lock's row is held
(H1). A server that went back is refused. Waiters are told by NOTIFY; behind a pooler they look for themselves.
Never: a schema made without `install`; a request repeated here.
"""

from collections.abc import Generator
from typing import Any, TypeVar

from fencelock.clock import boottime_us
from fencelock.errors import SchemaError
from fencelock.model import Finding
from fencelock.protocol import source_requests as ask
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.protocol.stores import Capabilities, Channel
from fencelock.stores.postgres.connection import install
from fencelock.stores.postgres.connection.client import (
    AsyncPostgresConnection,
    PostgresConnection,
    is_alive,
    is_pooled,
    mapping_errors,
    open_async_connection,
    open_connection,
)
from fencelock.stores.postgres.connection.forks import FORKS
from fencelock.stores.postgres.connection.url import parse_url
from fencelock.stores.postgres.source import inspection
from fencelock.stores.postgres.source.codec import (
    FORMS,
    GRANTED,
    SPENT,
    SQL,
    PostgresDescription,
    PostgresSourceCodec,
    Row,
    Rows,
)
from fencelock.stores.postgres.source.wakeup import PostgresListener
from fencelock.stores.source_clock import Seen, SourceIdentity
from fencelock.stores.sql.source_connection import ServerSourceConnection
from fencelock.stores.statements import statements

SCHEMA = statements(__package__, "schema.sql")
FUNCTIONS = statements(__package__, "functions.sql")
SCHEMA_NUMBER = 1
PART = "source of tokens"
_PREPARED = {SQL.acquire, SQL.release, SQL.renew}
_MINTING = {ask.Acquire, ask.Poll, ask.Break}
Reply = TypeVar("Reply")
Said = tuple[str, Any]
"""A statement with its parameters."""
Talk = Generator[Said, Rows, Reply]
"""Says things, is sent the rows that answer each, and returns a reply."""


class PostgresSource:
    """A source of tokens in one database. Making it opens nothing."""

    capabilities = Capabilities(
        ttl_min_ms=100, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=True, speaks_asyncio=True, max_connections=8
    )

    def __init__(self, url: str) -> None:
        self.place = parse_url(url)
        self.url = self.place.url
        self.identity = SourceIdentity(self.url)
        self.listener = PostgresListener(self.place)

    def connect(self, *, request_timeout_s: float) -> "PostgresSourceConnection":
        """Return a connection, which opens with its first request."""
        return PostgresSourceConnection(self, request_timeout_s)

    def connect_async(self, *, request_timeout_s: float) -> "AsyncPostgresSourceConnection":
        """Return a connection for the running loop, which opens with its first request."""
        return AsyncPostgresSourceConnection(self, request_timeout_s)

    def listen(self, lock: str, claim: str) -> Channel:
        """Open the channel of one waiting claim."""
        return self.listener.channel(claim)

    def install(self) -> None:
        """Make the schema if there is none; safe when run concurrently."""
        install.install(self.place, part=PART, table="source", number=SCHEMA_NUMBER, parts=(SCHEMA, FUNCTIONS))

    def examine(self) -> list[Finding]:
        """Return what in this source's set-up would break the promise."""
        return inspection.examine(self)


class PostgresSourceProtocol:
    """What is said over one connection, whichever way it is said: pure but for what it remembers."""

    def __init__(self, store: PostgresSource) -> None:
        self._store = store
        self._identity = store.identity
        self._is_greeted = False
        self._may_grant = False
        self.is_pooled = False

    def begin_anew(self) -> None:
        """The connection is another one from here on."""
        self._is_greeted = False

    def prepares(self, said: Said) -> bool:
        """Tell whether a statement is prepared: one that comes again and again, at a server and not at a pooler."""
        return said[0] in _PREPARED and not self.is_pooled

    def operations(self, request: Any, native: PostgresConnection | AsyncPostgresConnection) -> Talk[ask.SourceReply]:
        """Say what a request needs, and return the reply."""
        kind = type(request)
        if kind is ask.ReadSource:
            return (yield from self._greet(native)).info()
        if not self._is_greeted or (kind in _MINTING and not self._may_grant):
            yield from self._greet(native)
            if kind in _MINTING and not self._may_grant:
                return ask.BlockSpent()
        return (yield from self._ask(request))

    def _greet(self, native: PostgresConnection | AsyncPostgresConnection) -> Talk[PostgresDescription]:
        before = self._identity.seen
        rows = yield SQL.describe, ()
        heard_us = boottime_us()
        if not rows:
            raise SchemaError(f"{self._store.url}: the source's one row was deleted; restore it from a backup")
        *described, backend_id = rows[0]
        found = PostgresDescription._make(described)
        install.check_number(self._store.place, PART, found.schema, SCHEMA_NUMBER)
        self._identity.check(Seen(found.source_id, found.epoch, found.history_id), before)
        self._identity.clock.learn(found.now_us, heard_us)
        self.is_pooled = is_pooled(native, backend_id)
        self._may_grant = found.may_grant
        if not self._is_greeted and not self.is_pooled:
            yield SQL.settle_in, ()
        self._is_greeted = True
        return found

    def _ask(self, request: Any) -> Talk[ask.SourceReply]:
        identity = self._identity
        before, highest = identity.seen, identity.highest_token
        channel = None if self.is_pooled else self._store.listener.name
        speaker = PostgresSourceCodec(channel, highest, identity.clock.at, boottime_us)
        statement, parameters, hear, clock_column = FORMS[type(request)]
        rows = yield statement, parameters(speaker, request)
        if clock_column is not None:
            identity.clock.learn(rows[0][clock_column], boottime_us())
        reply = hear(speaker, request, rows)
        if statement is SQL.acquire:
            self._note(rows[0], before, highest)
        elif isinstance(reply, ask.Broken):
            identity.check_token(reply.token, 0)
        return reply

    def _note(self, row: Row, before: Seen | None, highest: int) -> None:
        """Refuse an answer to `acquire` of an older state than was known before it was asked for."""
        outcome, token, _, _, *seen = row
        self._identity.check(Seen(*seen), before)
        if outcome == GRANTED:
            self._identity.check_token(token, highest)
        elif outcome == SPENT:
            self._may_grant = False


class PostgresSourceConnection(ServerSourceConnection[PostgresConnection, PostgresSourceProtocol]):
    """Answers requests in the caller's thread, each by one statement."""

    def __init__(self, store: PostgresSource, request_timeout_s: float) -> None:
        super().__init__(PostgresSourceProtocol(store), request_timeout_s, is_alive, FORKS.close)
        self._place = store.place
        self._naming_errors = mapping_errors(store.place)

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        native = self._native = self._alive() or open_connection(self._place, self._patience_s)
        native.request_timeout_s = self._patience_for(request)
        return run_generator(self._conversation.operations(request, native), self._say)

    def _say(self, said: Said) -> Rows:
        native = self._native
        assert native is not None
        with self._naming_errors:
            if self._conversation.prepares(said):
                return native.run_prepared(*said)
            return native.execute(*said, prepare=False).fetchall()


class AsyncPostgresSourceConnection(ServerSourceConnection[AsyncPostgresConnection, PostgresSourceProtocol]):
    """Answers requests on the running loop, each by one statement."""

    def __init__(self, store: PostgresSource, request_timeout_s: float) -> None:
        super().__init__(PostgresSourceProtocol(store), request_timeout_s, is_alive, FORKS.close)
        self._place = store.place
        self._naming_errors = mapping_errors(store.place)

    async def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        native = self._native = self._alive() or await open_async_connection(self._place, self._patience_s)
        native.request_timeout_s = self._patience_for(request)
        return await run_generator_async(self._conversation.operations(request, native), self._say)

    async def _say(self, said: Said) -> Rows:
        native = self._native
        assert native is not None
        with self._naming_errors:
            if self._conversation.prepares(said):
                return await native.run_prepared(*said)
            cursor = await native.execute(*said, prepare=False)
            return await cursor.fetchall()
