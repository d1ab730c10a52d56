"""The source of tokens in a PostgreSQL database: one statement to acquire, one to release.

Promise: the statement that decides the holder also mints the token, from a history whose tokens a flushed transaction
has reserved (T1). After any recovery of the server, a restored backup and a promoted standby included, a new history
begins above every token issued before (T7). Every decision is made at READ COMMITTED on the server's clock, read after
the lock's row is locked (H1). A server that went back in time is refused as far as this process can know (T7). NOTIFY
wakes waiters; behind a pooler they poll. Never creates a schema except in `install`; never repeats a request.
"""

from typing import Any

from fencelock.clock import boottime_us
from fencelock.model import Finding
from fencelock.protocol import source_requests as ask
from fencelock.protocol.stores import Capabilities, Channel
from fencelock.stores.errors import SOURCE_PART, incomplete
from fencelock.stores.postgres.connection.client import (
    FORKS,
    AsyncPostgresConnection,
    PostgresConnection,
    is_alive,
    is_pooled,
    open_async_connection,
    open_connection,
)
from fencelock.stores.postgres.connection.errors import error_mapper
from fencelock.stores.postgres.connection.install import install, is_installed, uninstall
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo, parse_url
from fencelock.stores.postgres.source import inspection
from fencelock.stores.postgres.source.codec import SQL, PostgresDescription, PostgresSourceCodec
from fencelock.stores.postgres.source.wakeup import PostgresListener
from fencelock.stores.source_clock import SourceIdentity, SourceState
from fencelock.stores.sql.source import (
    GRANTED,
    SCHEMA_NUMBER,
    SPENT,
    AcquireAnswer,
    AsyncioSourceConnection,
    BlockingSourceConnection,
    Exchange,
    Row,
    Rows,
    SourceOperation,
    SourceProtocolBase,
    SourceView,
    StoreCall,
)
from fencelock.stores.statements import statements

SCHEMA = statements(__package__, "schema.sql")
FUNCTIONS = tuple(statements(__package__, f"functions_{name}.sql") for name in ("queue", "lease", "history"))
"""In the order in which they are installed."""
_PREPARED = {SQL.acquire, SQL.release, SQL.renew}
"""The statements of every grant; the others are too rare to be worth preparing."""
_MINTING = {ask.Acquire, ask.Poll, ask.Break}


class PostgresSource:
    """A source of tokens in one database. Making it opens nothing."""

    capabilities = Capabilities(
        ttl_min_ms=100, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=True, speaks_asyncio=True, max_connections=8
    )

    def __init__(self, url: str) -> None:
        self.info = parse_url(url)
        self.url = self.info.url
        self.identity = SourceIdentity(self.url)
        self.listener = PostgresListener(self.info)

    def connect(self, *, request_timeout_s: float) -> "PostgresSourceConnection":
        """Return a connection, which opens with its first request."""
        return PostgresSourceConnection(self.info, self.protocol(), request_timeout_s)

    def connect_async(self, *, request_timeout_s: float) -> "AsyncPostgresSourceConnection":
        """Return a connection for the running loop, which opens with its first request."""
        return AsyncPostgresSourceConnection(self.info, self.protocol(), request_timeout_s)

    def protocol(self) -> "PostgresSourceProtocol":
        """Return the protocol of one connection."""
        return PostgresSourceProtocol(self.url, self.identity, self.listener)

    def listen(self, lock: str, claim: str) -> Channel:
        """Open the channel of one waiting claim."""
        return self.listener.channel(claim)

    def install(self) -> None:
        """Create the schema if there is none; safe to run concurrently."""
        install(self.info, part=SOURCE_PART, table="source", number=SCHEMA_NUMBER, files=(SCHEMA, *FUNCTIONS))

    def is_installed(self) -> bool:
        """Return whether the database has the source's half; SchemaError if it is another version's."""
        return is_installed(self.info, part=SOURCE_PART, table="source", number=SCHEMA_NUMBER)

    def check_removal(self) -> None:
        """Drop the source's half and roll back: SourceError if somebody else's object needs one of it."""
        uninstall(self.info, files=(SCHEMA, *FUNCTIONS), is_rehearsal=True)

    def uninstall(self) -> bool:
        """Drop the source's half of the schema, with everything in it."""
        return uninstall(self.info, files=(SCHEMA, *FUNCTIONS))

    def examine(self) -> list[Finding]:
        """Return what in this source's setup breaks its guarantees."""
        return inspection.examine(self.connect, self.info)


class PostgresSourceProtocol(SourceProtocolBase):
    """The calls of one connection, synchronous or not: pure but for what it remembers."""

    def __init__(self, url: str, identity: SourceIdentity, listener: PostgresListener) -> None:
        super().__init__(url, identity)
        self._listener = listener
        self._native: Any = None
        self._may_grant = False
        self._is_pooled = False

    def attach(self, native: Any) -> None:
        """Begin a new connection: it has to be greeted."""
        super().attach(native)
        self._native = native

    def is_prepared(self, call: StoreCall) -> bool:
        """Return whether to prepare a statement: one of every grant, and not behind a pooler."""
        return call.statement in _PREPARED and not self._is_pooled

    def operations(self, request: Any) -> Exchange[ask.SourceReply]:
        """Yield the calls for a request, and return the reply."""
        kind = type(request)
        if kind is ask.ReadSource:
            return (yield from self._greet()).info()
        if not self._is_greeted or (kind in _MINTING and not self._may_grant):
            yield from self._greet()
            # The flow reserves a block of tokens, and asks again.
            if kind in _MINTING and not self._may_grant:
                return ask.BlockSpent()
        return (yield from self._ask(request))

    def _greet(self) -> Exchange[PostgresDescription]:
        """Check the source; on a connection to the server itself, change the session's settings once."""
        # Before the request: another connection may learn of a newer state while this answer is on its way.
        before = self._identity.seen
        rows = yield StoreCall(SQL.describe)
        received_us = boottime_us()
        if not rows:
            raise incomplete(self._url, SOURCE_PART)
        self._check_schema(rows[0])
        *described, backend_id = rows[0]
        found = PostgresDescription._make(described)
        self._is_pooled = is_pooled(self._native, backend_id)
        self._check_description(found, before, received_us)
        self._may_grant = found.may_grant
        if not self._is_greeted and not self._is_pooled:
            yield StoreCall(SQL.settle_in)
        self._is_greeted = True
        return found

    def _encode(self, request: Any, view: SourceView) -> SourceOperation:
        channel = None if self._is_pooled else self._listener.name
        return PostgresSourceCodec(view, channel).encode(request)

    def _check_answer(self, row: Row, before: SourceState | None, highest: int) -> None:
        answer = AcquireAnswer(*row)
        self._identity.check(answer.seen, before)
        if answer.outcome == GRANTED:
            self._identity.check_token(answer.token, highest)
        elif answer.outcome == SPENT:
            self._may_grant = False


class PostgresSourceConnection(BlockingSourceConnection[PostgresConnection, PostgresSourceProtocol]):
    """Answers requests in the caller's thread, each by one statement after the greeting."""

    def __init__(
        self, info: PostgresConnectionInfo, protocol: PostgresSourceProtocol, request_timeout_s: float
    ) -> None:
        super().__init__(protocol, request_timeout_s, is_alive, FORKS.close, error_mapper(info))
        self._info = info

    def _open(self) -> PostgresConnection:
        return open_connection(self._info, self._request_timeout_s)

    def _run(self, native: PostgresConnection, call: StoreCall) -> Rows:
        return native.run(*call, is_prepared=self._protocol.is_prepared(call))


class AsyncPostgresSourceConnection(AsyncioSourceConnection[AsyncPostgresConnection, PostgresSourceProtocol]):
    """Answers requests on the running loop, each by one statement after the greeting."""

    def __init__(
        self, info: PostgresConnectionInfo, protocol: PostgresSourceProtocol, request_timeout_s: float
    ) -> None:
        super().__init__(protocol, request_timeout_s, is_alive, FORKS.close, error_mapper(info))
        self._info = info

    async def _open(self) -> AsyncPostgresConnection:
        return await open_async_connection(self._info, self._request_timeout_s)

    async def _run(self, native: AsyncPostgresConnection, call: StoreCall) -> Rows:
        return await native.run(*call, is_prepared=self._protocol.is_prepared(call))
