"""psycopg connections with a bounded wait, and the registry that protects them across forks.

Promise: a connection waits at most `request_timeout_s` for each answer, so that a frozen server or a cut network is
noticed. An attempt to connect takes no longer for each address, unless the URL has a `connect_timeout`. A wait that
ends early, by its bound or by an exception, ends at once: the server is not asked to cancel, since the connection is
closed next and the outcome is unknown. A forked child drops the connections that it inherited.
"""

import math
import os
import select
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import psycopg
from psycopg import waiting

from fencelock._threads import mapping_start_failures
from fencelock.stores.forks import Forks
from fencelock.stores.postgres.connection import wire
from fencelock.stores.postgres.connection.errors import PostgresTimeoutError, map_connect_error
from fencelock.stores.postgres.connection.url import PostgresConnectionInfo
from fencelock.stores.postgres.connection.wire import Row, Trip

CHECK_S = 0.5
"""How often a waiting connection checks whether its time is up."""
MAX_CONNECT_S = 5
_CONNECT_S: ContextVar[float] = ContextVar("_CONNECT_S", default=math.inf)
"""How long a connection that is being opened waits for each address. psycopg itself counts whole seconds, and at least
two: too long for the keeper.
"""
_KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 3, "keepalives_count": 3}
"""Seconds, seconds, tries: the listening connection sends no requests, and notices a cut network only by these."""
ENCODING = "utf8"
Result = TypeVar("Result")


def _close(native: "PostgresConnection | AsyncPostgresConnection") -> None:
    native.pgconn.finish()


def _drop(native: "PostgresConnection | AsyncPostgresConnection") -> None:
    # Not finish(): it would send Terminate over the socket that the parent still uses.
    if not native.closed:
        os.close(native.pgconn.socket)


FORKS: "Forks[PostgresConnection | AsyncPostgresConnection]" = Forks(close=_close, drop=_drop)
"""The open connections of this process: see `stores/forks.py`."""


class PostgresConnection(psycopg.Connection[tuple[Any, ...]]):
    """A synchronous connection that bounds each wait."""

    request_timeout_s: float = MAX_CONNECT_S
    prepared: dict[str, bytes]
    readable: select.poll
    _forks = FORKS  # At interpreter exit the module's globals may be gone before the last connection is collected.

    def __del__(self) -> None:  # type: ignore[override]
        """Close a connection that nobody closed; psycopg would only warn."""
        self._forks.close(self)

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> Any:
        return _limited(super()._connect_gen(conninfo), _CONNECT_S.get(), psycopg.errors.ConnectionTimeout)

    def wait(self, gen: Any, interval: float = CHECK_S, timeout: float | None = None) -> Any:
        """Run psycopg's generator until it ends, or until the time is up."""
        limit_s = self.request_timeout_s if timeout is None else timeout
        return waiting.wait(_limited(gen, limit_s), self.pgconn.socket, min(interval, limit_s))

    def limit_wait(self, request_timeout_s: float) -> None:
        """Bound the wait for each later answer."""
        self.request_timeout_s = request_timeout_s

    def run(self, statement: str, parameters: Sequence[Any], *, is_prepared: bool) -> Sequence[Row]:
        """Run one statement, prepared on its first use if asked for, and return its rows."""
        if is_prepared:
            return self.wait(_prepared(self, statement, parameters))  # type: ignore[no-any-return]
        return self.execute(statement.encode(), parameters, prepare=False).fetchall()


class AsyncPostgresConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """An asynchronous connection that bounds each wait."""

    request_timeout_s: float = MAX_CONNECT_S
    prepared: dict[str, bytes]
    readable: select.poll
    _forks = FORKS  # At interpreter exit the module's globals may be gone before the last connection is collected.

    def __del__(self) -> None:  # type: ignore[override]
        """Close a connection that nobody closed; psycopg would only warn."""
        self._forks.close(self)

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> Any:
        return _limited(super()._connect_gen(conninfo), _CONNECT_S.get(), psycopg.errors.ConnectionTimeout)

    async def wait(self, gen: Any, interval: float = CHECK_S, timeout: float | None = None) -> Any:
        """Run psycopg's generator until it ends, or until the time is up."""
        limit_s = self.request_timeout_s if timeout is None else timeout
        return await waiting.wait_async(_limited(gen, limit_s), self.pgconn.socket, min(interval, limit_s))

    def limit_wait(self, request_timeout_s: float) -> None:
        """Bound the wait for each later answer."""
        self.request_timeout_s = request_timeout_s

    async def run(self, statement: str, parameters: Sequence[Any], *, is_prepared: bool) -> Sequence[Row]:
        """Run one statement, prepared on its first use if asked for, and return its rows."""
        if is_prepared:
            return await self.wait(_prepared(self, statement, parameters))  # type: ignore[no-any-return]
        cursor = await self.execute(statement.encode(), parameters, prepare=False)
        return await cursor.fetchall()


def _limited(
    gen: Generator[Any, Any, Result], limit_s: float, error: type[Exception] = PostgresTimeoutError
) -> Generator[Any, Any, Result]:
    """Relay between psycopg's generator and the function that waits for it, until the time is up."""
    end_s = time.monotonic() + limit_s
    try:
        wanted = next(gen)
        while True:
            # What has arrived is taken in first: this process may have been frozen until now.
            wanted = gen.send((yield wanted))
            # Also if more comes all the time: a reply may drip for ever.
            if time.monotonic() >= end_s:
                raise error(f"no answer within {limit_s:g} s")
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def _prepared(
    connection: PostgresConnection | AsyncPostgresConnection, statement: str, parameters: Sequence[Any]
) -> Trip[list[Row]]:
    """Run a prepared statement without a cursor, which would cost as much again as the round trip."""
    names = connection.prepared
    name = names.get(statement) or (yield from wire.prepare(connection.pgconn, statement, names, ENCODING))
    return (yield from wire.run_prepared(connection.pgconn, name, parameters, ENCODING))


def open_connection(
    info: PostgresConnectionInfo, request_timeout_s: float, kind: type[PostgresConnection] = PostgresConnection
) -> PostgresConnection:
    """Return an open connection in autocommit mode; SourceUnavailableError if no server can be reached, and SourceError
    if it refused the login.
    """
    try:
        with _limiting_connect(info, request_timeout_s):
            connection = kind.connect(autocommit=True, **_parameters(info))
    except psycopg.Error as error:
        raise map_connect_error(error, info) from error
    _register(connection, request_timeout_s)
    return connection


async def open_async_connection(
    info: PostgresConnectionInfo,
    request_timeout_s: float,
    kind: type[AsyncPostgresConnection] = AsyncPostgresConnection,
) -> AsyncPostgresConnection:
    """Return an open connection of the running loop; otherwise as `open_connection`."""
    try:
        with mapping_start_failures(), _limiting_connect(info, request_timeout_s):
            connection = await kind.connect(autocommit=True, **_parameters(info))
    except psycopg.Error as error:
        raise map_connect_error(error, info) from error
    _register(connection, request_timeout_s)
    return connection


def _register(connection: PostgresConnection | AsyncPostgresConnection, request_timeout_s: float) -> None:
    FORKS.add(connection)
    connection.limit_wait(request_timeout_s)
    connection.prepared = {}
    connection.readable = select.poll()
    connection.readable.register(connection.pgconn.socket, select.POLLIN)


@contextmanager
def _limiting_connect(info: PostgresConnectionInfo, request_timeout_s: float) -> Iterator[None]:
    limit_s = math.inf if "connect_timeout" in info.parameters else min(MAX_CONNECT_S, request_timeout_s)
    before = _CONNECT_S.set(limit_s)
    try:
        yield
    finally:
        _CONNECT_S.reset(before)


def _parameters(info: PostgresConnectionInfo) -> dict[str, Any]:
    # Without client_encoding psycopg uses the database's own encoding, which may lack characters of a holder's name.
    return {"connect_timeout": MAX_CONNECT_S, **_KEEPALIVES, **info.parameters, "client_encoding": ENCODING}


def is_alive(connection: PostgresConnection | AsyncPostgresConnection) -> bool:
    """Return whether an idle connection is still usable; a readable idle socket means that the server closed it."""
    return FORKS.is_ours(connection) and not connection.closed and not connection.readable.poll(0)


def is_pooled(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], backend_id: int) -> bool:
    """Return whether a pooler stands in between: it reports another backend than the one that answers."""
    return connection.info.backend_pid != backend_id
