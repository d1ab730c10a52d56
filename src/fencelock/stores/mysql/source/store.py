"""The source of tokens in a MySQL or MariaDB database: one call to acquire, one to release.

Promise: the transaction that decides the holder also mints the token, from the source's one counter, and flushes it
before any reply where `innodb_flush_log_at_trx_commit` is 1, and a binary log's `sync_binlog` (T1). Every decision is
made at READ COMMITTED on the server's clock, read after the lock's row is locked (H1). A server that went back in time
is refused as far as this process can know (T7). Waiters poll, the first of them every 5 to 250 ms. Never creates a
schema except in `install`; never repeats a request, except one that the server itself rolled back to end a deadlock.
"""

from typing import Any

import pymysql
from pymysql.constants import ER

from fencelock.clock import boottime_us
from fencelock.errors import SourceError
from fencelock.model import Finding
from fencelock.protocol import source_requests as ask
from fencelock.protocol.stores import Capabilities, Channel
from fencelock.stores.errors import SOURCE_PART, incomplete
from fencelock.stores.mysql.connection.client import FORKS, AsyncMySQLConnection, MySQLConnection, is_alive
from fencelock.stores.mysql.connection.errors import error_mapper, error_number
from fencelock.stores.mysql.connection.install import check_removal, install, is_installed, uninstall
from fencelock.stores.mysql.connection.masks import draw_mask_secret
from fencelock.stores.mysql.connection.opening import open_async_connection, open_connection
from fencelock.stores.mysql.connection.url import MySQLConnectionInfo, parse_url
from fencelock.stores.mysql.source import inspection
from fencelock.stores.mysql.source.codec import SQL, MySQLDescription, MySQLSourceCodec, answer_of, draw_id
from fencelock.stores.source_clock import SourceIdentity, SourceState
from fencelock.stores.sql.source import (
    GRANTED,
    HELD,
    SCHEMA_NUMBER,
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
from fencelock.stores.wakeup import EventWakeup

SCHEMA = statements(__package__, "schema.sql")
ROUTINES = tuple(statements(__package__, f"routines_{name}.sql") for name in ("queue", "lease", "history"))
"""In the order in which they are installed."""
MAX_DEADLOCKS = 10
"""How often to repeat a request that the server rolled back to end a deadlock."""


class MySQLSource:
    """A source of tokens in one database. Making it opens nothing."""

    capabilities = Capabilities(
        ttl_min_ms=100, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=False, speaks_asyncio=True, max_connections=8
    )

    def __init__(self, url: str) -> None:
        self.info = parse_url(url)
        self.url = self.info.url
        self.identity = SourceIdentity(self.url)
        self.regressed: dict[SourceState, str] = {}
        """The histories that went back, each with its error: until an operator begins another, tokens may repeat."""

    def connect(self, *, request_timeout_s: float) -> "MySQLSourceConnection":
        """Return a connection, which opens with its first request."""
        return MySQLSourceConnection(self.info, self.protocol(), request_timeout_s)

    def connect_async(self, *, request_timeout_s: float) -> "AsyncMySQLSourceConnection":
        """Return a connection for the running loop, which opens with its first request."""
        return AsyncMySQLSourceConnection(self.info, self.protocol(), request_timeout_s)

    def protocol(self) -> "MySQLSourceProtocol":
        """Return the protocol of one connection."""
        return MySQLSourceProtocol(self.url, self.identity, self.regressed)

    def listen(self, lock: str, claim: str) -> Channel:
        """Open the channel of one waiting claim, which nothing ever notifies."""
        return EventWakeup()

    def install(self) -> None:
        """Create the schema if there is none, and the routines if the account that owns them is gone; safe to run
        concurrently. SchemaError if a table of such a name is another program's.
        """
        install(
            self.info,
            part=SOURCE_PART,
            table="fencelock_source",
            number=SCHEMA_NUMBER,
            tables=SCHEMA,
            routines=ROUTINES,
            probe=SQL.describe,
            finish=(SQL.finish, (SCHEMA_NUMBER, draw_id(), draw_id(), draw_mask_secret())),
        )

    def is_installed(self) -> bool:
        """Return whether the database has the source's half; SchemaError if it is another version's."""
        return is_installed(self.info, part=SOURCE_PART, table="fencelock_source", number=SCHEMA_NUMBER)

    def check_removal(self) -> None:
        """Raise SourceError if somebody else's table has a foreign key to one of the source's."""
        check_removal(self.info, tables=SCHEMA)

    def uninstall(self) -> bool:
        """Drop the source's half of the schema, with everything in it."""
        routines = [name.replace("create_", "fencelock_", 1) for file in ROUTINES for name in file]
        return uninstall(self.info, tables=SCHEMA, routines=routines)

    def examine(self) -> list[Finding]:
        """Return what in this source's setup breaks its guarantees."""
        return inspection.examine(self.connect, self.info)


class MySQLSourceProtocol(SourceProtocolBase):
    """The calls of one connection, synchronous or not: pure but for what it remembers."""

    def __init__(self, url: str, identity: SourceIdentity, regressed: dict[SourceState, str]) -> None:
        super().__init__(url, identity)
        self._regressed = regressed
        self._mask_key = ""

    def operations(self, request: Any) -> Exchange[ask.SourceReply]:
        """Yield the calls for a request, and return the reply."""
        kind = type(request)
        if kind is ask.ReserveBlock:
            return None  # Each grant reserves its own token.
        if kind is ask.ReadSource:
            return (yield from self._greet()).info()
        if not self._is_greeted or self._identity.seen is None:
            yield from self._greet()
        return (yield from self._ask(request))

    def _greet(self) -> Exchange[MySQLDescription]:
        """Check the source."""
        # Before the request: another connection may learn of a newer state while this answer is on its way.
        before = self._identity.seen
        rows = yield StoreCall(SQL.describe)
        received_us = boottime_us()
        if not rows:
            raise incomplete(self._url, SOURCE_PART)
        self._check_schema(rows[0])
        found = MySQLDescription._make(rows[0])
        self._check_description(found, before, received_us)
        self._is_greeted = True
        self._mask_key = found.mask_key
        return found

    def _encode(self, request: Any, view: SourceView) -> SourceOperation:
        return MySQLSourceCodec(view, self._mask_key).encode(request)

    def _check_answer(self, row: Row, before: SourceState | None, highest: int) -> None:
        """Refuse an older state; once a history has gone back, refuse it until an operator has begun another."""
        assert before is not None, "a connection greets first"
        answer = answer_of(row, before)
        self._identity.check(answer.seen, before)
        if answer.outcome not in {GRANTED, HELD}:
            return
        if answer.seen in self._regressed:
            raise SourceError(self._regressed[answer.seen])
        if answer.outcome == GRANTED:
            try:
                self._identity.check_token(answer.token, highest)
            except SourceError as error:
                # For good: the counter would soon be past what was seen here, and the tokens old all the same.
                self._regressed[answer.seen] = str(error)
                raise


class MySQLSourceConnection(BlockingSourceConnection[MySQLConnection, MySQLSourceProtocol]):
    """Answers requests in the caller's thread, each by one statement after the greeting."""

    def __init__(self, info: MySQLConnectionInfo, protocol: MySQLSourceProtocol, request_timeout_s: float) -> None:
        super().__init__(protocol, request_timeout_s, is_alive, FORKS.close, error_mapper(info))
        self._info = info

    def _open(self) -> MySQLConnection:
        return open_connection(self._info, self._request_timeout_s)

    def _run(self, native: MySQLConnection, call: StoreCall) -> Rows:
        for _ in range(MAX_DEADLOCKS):
            try:
                return native.run(*call)
            except pymysql.OperationalError as error:
                _check_deadlock(error)
        return native.run(*call)


class AsyncMySQLSourceConnection(AsyncioSourceConnection[AsyncMySQLConnection, MySQLSourceProtocol]):
    """Answers requests on the running loop, each by one statement after the greeting."""

    def __init__(self, info: MySQLConnectionInfo, protocol: MySQLSourceProtocol, request_timeout_s: float) -> None:
        super().__init__(protocol, request_timeout_s, is_alive, FORKS.close, error_mapper(info))
        self._info = info

    async def _open(self) -> AsyncMySQLConnection:
        return await open_async_connection(self._info, self._request_timeout_s)

    async def _run(self, native: AsyncMySQLConnection, call: StoreCall) -> Rows:
        for _ in range(MAX_DEADLOCKS):
            try:
                return await native.run(*call)
            except pymysql.OperationalError as error:
                _check_deadlock(error)
        return await native.run(*call)


def _check_deadlock(error: pymysql.OperationalError) -> None:
    """Raise the error again, unless the server rolled everything back because of a deadlock."""
    if error_number(error) != ER.LOCK_DEADLOCK:
        raise error
