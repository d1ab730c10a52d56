"""The session that a guard's connection has at the right server, and the pool that all sessions of one guard share.

Promise: a session sends each request once, on one connection that nobody else uses meanwhile. A server of a cluster
that leads on to another one has done nothing: the request goes there. Each server is examined (`server.py`) before its
first request, and again with each one that says so. A connection that has watched keys for a block that did not end is
closed.
Never: a request repeated that may have been executed.
"""

import asyncio
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

from redis.exceptions import AuthenticationError, MovedError, RedisError, ResponseError

from fencelock.errors import FencelockError, SourceUnavailableError, UnsupportedError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.draining import drained
from fencelock.stores.encoding import shorten
from fencelock.stores.errors import closed_inside
from fencelock.stores.redis.connection.connections import FORKS, AsyncRedisConnection, Command, RedisConnection
from fencelock.stores.redis.connection.errors import (
    code_of,
    map_lost,
    map_refusal,
    refused_database,
    refused_login,
)
from fencelock.stores.redis.connection.server import PROBE, ServerFacts, check_server, read_facts
from fencelock.stores.redis.connection.url import RedisAddress, RedisConnectionInfo

MAX_IDLE_CONNECTIONS = 16
"""Connections that one guard keeps open for its next blocks, for threads and for each loop."""
MAX_REDIRECTS = 5
"""Servers of a cluster that one request is led on to: after a failover their knowledge differs for a moment."""
WATCH, EXEC = "WATCH", ("EXEC",)


class RedisRequest(NamedTuple):
    """Commands that are sent together; the reply is a list of their answers, an error among them as a ResponseError.

    `is_read`: none of them can change anything. `is_examined`: the server is examined in the same round trip, because
    its settings may have changed since the connection was opened.
    """

    commands: tuple[Command, ...]
    is_read: bool = False
    is_examined: bool = False


class _Connect(NamedTuple):
    """Open a connection."""

    address: RedisAddress


class _Exchange(NamedTuple):
    """Send commands, and read all their answers."""

    connection: Any
    commands: tuple[Command, ...]


# --- what one guard's sessions share ----------------------------------------------------------------------------------
class RedisPool:
    """The idle connections of one guard, and where its slot is; for any number of threads and loops."""

    def __init__(self, info: RedisConnectionInfo, *, is_examining: bool = True) -> None:
        self.info = info
        self.is_examining = is_examining
        self.moved_to: RedisAddress | None = None
        """The server of the cluster that has the guard's slot, if another one has told it."""
        self._idle: deque[RedisConnection] = deque()
        self._of_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, deque[AsyncRedisConnection]] = (
            weakref.WeakKeyDictionary()
        )
        weakref.finalize(self, _close_all, self._idle, self._of_loop)

    def addresses(self) -> Iterator[RedisAddress]:
        """Yield the servers to try, the likeliest one first."""
        if self.moved_to is not None:
            yield self.moved_to
        yield from self.info.addresses

    def idle(self) -> "deque[RedisConnection]":
        """Return the idle connections for threads."""
        return self._idle

    def idle_of_loop(self) -> "deque[AsyncRedisConnection]":
        """Return the idle connections of the running loop."""
        return self._of_loop.setdefault(asyncio.get_running_loop(), deque())


def _close_all(idle: "deque[Any]", of_loop: Any) -> None:
    for connections in (idle, *of_loop.values()):
        _close_idle(connections)


def _close_idle(connections: "deque[Any]") -> None:
    for connection in drained(connections):
        FORKS.close(connection)


# --- a session --------------------------------------------------------------------------------------------------------
class RedisSessionBase(ABC):
    """What sessions of threads and of loops share: one connection at a time, and what its server's answers mean."""

    def __init__(self, pool: RedisPool) -> None:
        self.pool = pool
        self._connection: Any = None
        self._is_watching = False
        """Whether the connection watches keys: what a block has read counts on this connection alone."""

    @abstractmethod
    def _idle(self) -> "deque[Any]":
        """Return the idle connections that this session may use."""

    def _attempts(self, request: RedisRequest) -> Generator[Any, Any, list[Any]]:
        asked = len(request.commands)
        commands = (*request.commands, *(PROBE if request.is_examined else ()))
        for _ in range(MAX_REDIRECTS):
            connection = yield from self._connected()
            was_watching = self._is_watching
            self._is_watching |= request.commands[0][0] == WATCH
            try:
                said: list[Any] = yield _Exchange(connection, commands)
            except RedisError as error:
                raise map_lost(error, self.pool.info, is_read=request.is_read) from error
            answers, facts = said[:asked], said[asked:]
            first = next((one for one in answers if isinstance(one, ResponseError)), None)
            if not isinstance(first, MovedError):
                # EXEC ends every WATCH of its connection.
                self._is_watching &= request.commands[-1] != EXEC
                if first is not None and code_of(first) == "READONLY":
                    # It was a master, and another one of the URL may be one now: the next request looks for it.
                    self._connection = None
                    FORKS.close(connection)
                elif facts and not self._is_fit(connection, facts):
                    continue  # A new connection goes to a server that is fit, or tells why there is none.
                return answers
            self._follow(first)
            if was_watching:
                # What the block has read is watched by the connection that was left.
                raise map_refusal(first, self.pool.info, is_read=True)
        raise SourceUnavailableError(
            f"{self.pool.info.url}: the servers of the cluster lead from one to another ({MAX_REDIRECTS} times): "
            f"try again"
        )

    def _follow(self, moved: MovedError) -> None:
        """Leave for the server that has the slot now."""
        connection, self._connection = self._connection, None
        self._is_watching = False
        self.pool.moved_to = RedisAddress(moved.host or connection.address.host, moved.port)
        FORKS.close(connection)

    def _connected(self) -> Generator[Any, Any, Any]:
        """Return the session's connection; an idle one or a new one if it has none."""
        connection = self._connection
        if connection is not None and connection.is_usable():
            return connection
        if self._is_watching:
            raise closed_inside()
        idle = self._idle()
        while idle:
            with suppress(IndexError):  # Another thread took the last one.
                connection = idle.pop()
                # Those to a server that the slot has left would lead there, one after the other.
                if connection.is_usable() and self.pool.moved_to in (None, connection.address):
                    self._connection = connection
                    return connection
                FORKS.close(connection)
        self._connection = yield from self._connect()
        return self._connection

    def _connect(self) -> Generator[Any, Any, Any]:
        """Return a connection to the first server that a guard can rely on."""
        failures: list[str] = []
        refusal: FencelockError | None = None
        for address in self.pool.addresses():
            try:
                return (yield from self._connect_to(address))
            except FencelockError as error:
                refusal = refusal or error
            except (RedisError, OSError) as error:
                failures.append(f"{address}: {shorten(str(error)) or type(error).__name__}")
            if address == self.pool.moved_to:
                # What another server has told of it is old: the servers of the URL know who has the slot now.
                self.pool.moved_to = None
        raise refusal or SourceUnavailableError(
            f"{self.pool.info.url} cannot be reached ({'; '.join(failures)}): nothing was done"
        )

    def _connect_to(self, address: RedisAddress) -> Generator[Any, Any, Any]:
        info = self.pool.info
        try:
            connection = yield _Connect(address)
            answers = yield _Exchange(connection, PROBE)
        except AuthenticationError as error:
            raise refused_login(info) from error
        except ResponseError as error:
            raise refused_database(error, info) or map_refusal(error, info, is_read=True) from error
        try:
            self._examine(connection, answers)
        except BaseException:
            FORKS.close(connection)
            raise
        return connection

    def _examine(self, connection: Any, facts: list[Any]) -> None:
        """Raise UnsupportedError unless a guard can rely on the connection's server, or another error if not yet."""
        if self.pool.is_examining:
            check_server(self.pool.info, connection.address, read_facts(self.pool.info, facts))

    def _is_fit(self, connection: Any, facts: list[Any]) -> bool:
        """Return whether a guard can still rely on the server; if not, close what was opened before."""
        try:
            self._examine(connection, facts)
        except UnsupportedError:
            self._connection = None
            FORKS.close(connection)
            _close_idle(self._idle())
            return False
        return True

    def release(self) -> None:
        """Give the connection to later sessions, which look whether it is usable; never raises."""
        connection, self._connection = self._connection, None
        was_watching, self._is_watching = self._is_watching, False
        if connection is None:
            return
        idle = self._idle()
        if was_watching or len(idle) >= MAX_IDLE_CONNECTIONS:
            FORKS.close(connection)
        else:
            idle.append(connection)


class RedisSession(RedisSessionBase):
    """A session for the caller's thread."""

    def _idle(self) -> "deque[RedisConnection]":
        return self.pool.idle()

    def send(self, request: RedisRequest) -> list[Any]:
        """Send a request, and return the answers to its commands."""
        return run_generator(self._attempts(request), self._act)

    def _act(self, step: Any) -> Any:
        if isinstance(step, _Connect):
            return RedisConnection.open(self.pool.info, step.address)
        return step.connection.exchange(step.commands)


class AsyncRedisSession(RedisSessionBase):
    """A session for the running loop."""

    def _idle(self) -> "deque[AsyncRedisConnection]":
        return self.pool.idle_of_loop()

    async def send(self, request: RedisRequest) -> list[Any]:
        """Send a request, and wait on the loop for the answers to its commands."""
        return await run_generator_async(self._attempts(request), self._act)

    async def _act(self, step: Any) -> Any:
        if isinstance(step, _Connect):
            return await AsyncRedisConnection.open(self.pool.info, step.address)
        return await step.connection.exchange(step.commands)


def facts_of(session: RedisSession) -> ServerFacts:
    """Return what the session's server says of itself."""
    return read_facts(session.pool.info, session.send(RedisRequest(PROBE, is_read=True)))
