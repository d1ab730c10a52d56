"""One connection to a Redis server, for a thread or a loop, of redis-py's lowest layer.

Promise: each wait has a bound. Requests of several threads or tasks never mix: while one is out, another is refused,
and a connection whose answers were not read whole is closed. A forked child drops the connections that it inherited.
Never: anything sent twice; a password shown.

redis-py's clients and pools are not used: they repeat what may have been executed, and give a connection to the next
request after a cancelled one.
"""

import asyncio
import os
import select
import socket
import ssl
import threading
import weakref
from contextlib import suppress
from typing import Any

import redis
import redis.asyncio
from redis.exceptions import ResponseError

from fencelock.errors import GuardError
from fencelock.stores import streams
from fencelock.stores.forks import Forks
from fencelock.stores.redis.connection.url import RedisAddress, RedisConnectionInfo

REQUEST_TIMEOUT_S = 5.0
_RESP = 3
Command = tuple[str | bytes, ...]


class RedisConnectionBase:
    """What both kinds of connections share."""

    def __init__(self, native: Any, address: RedisAddress) -> None:
        self._native = native
        self.address = address
        # A note that a request is out. Whatever interrupts it leaves the note: the connection is not used again.
        self._is_out = threading.Lock()

    def _begin(self) -> None:
        if not self._is_out.acquire(blocking=False):
            raise GuardError("a request of this guarded block is out: use its transaction in one thread or task only")

    def _answers(self, answers: list[Any]) -> list[Any]:
        self._is_out.release()
        return answers

    def _readable(self, descriptor: int) -> bool:
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        return bool(waiting.poll(0))


class _TlsConnection(redis.SSLConnection):
    """redis-py's own context would trust the system's authorities too, whatever file is named."""

    context: ssl.SSLContext

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return self.context.wrap_socket(sock, server_hostname=self.host)


class RedisConnection(RedisConnectionBase):
    """A connection for the caller's thread."""

    def __init__(self, native: Any, address: RedisAddress) -> None:
        super().__init__(native, address)
        weakref.finalize(self, _disconnect, native)

    @classmethod
    def open(cls, info: RedisConnectionInfo, address: RedisAddress) -> "RedisConnection":
        """Return an open connection that has logged in."""
        kind: Any = redis.Connection if info.tls is None else _TlsConnection
        native = kind(**_arguments(info, address))
        if info.tls is not None:
            native.context = info.tls.context(info.url)
        connection = cls(native, address)
        FORKS.add(connection)
        native.connect()
        return connection

    def exchange(self, commands: tuple[Command, ...]) -> list[Any]:
        """Send commands together, and return their answers."""
        self._begin()
        try:
            # No health check: redis-py would send a PING first, and repeat it by itself.
            self._native.send_packed_command([_packed(commands)], check_health=False)
            return self._answers([self._answer() for _ in commands])
        except BaseException:
            FORKS.close(self)
            raise

    def _answer(self) -> Any:
        try:
            return self._native.read_response()
        except ResponseError as error:
            return error.with_traceback(None)

    def is_usable(self) -> bool:
        """Return whether it can take a request; a readable idle socket means that the server closed it."""
        sock = self._native._sock  # noqa: SLF001 - the library tells it no other way without waiting
        return FORKS.is_ours(self) and sock is not None and not (self._is_out.locked() or self._readable(sock.fileno()))

    def hang_up(self) -> None:
        """Close it; never raises."""
        _disconnect(self._native)

    def drop(self) -> None:
        """Close only the descriptor, in a forked child."""
        sock, self._native._sock = self._native._sock, None  # noqa: SLF001
        if sock is not None:
            os.close(sock.detach())


class AsyncRedisConnection(RedisConnectionBase):
    """A connection for the running loop."""

    def __init__(self, native: Any, address: RedisAddress) -> None:
        super().__init__(native, address)
        self._loop = asyncio.get_running_loop()
        weakref.finalize(self, _abort, native, self._loop)

    @classmethod
    async def open(cls, info: RedisConnectionInfo, address: RedisAddress) -> "AsyncRedisConnection":
        """Return an open connection that has logged in."""
        kind: Any = redis.asyncio.Connection if info.tls is None else redis.asyncio.SSLConnection
        native = kind(**_arguments(info, address))
        if info.tls is not None:
            native.ssl_context.context = info.tls.context(info.url)
        connection = cls(native, address)
        FORKS.add(connection)
        await native.connect()
        return connection

    async def exchange(self, commands: tuple[Command, ...]) -> list[Any]:
        """Send commands together, and return their answers."""
        self._begin()
        try:
            await self._native.send_packed_command([_packed(commands)], check_health=False)
            return self._answers([await self._answer() for _ in commands])
        except BaseException:
            FORKS.close(self)
            raise

    async def _answer(self) -> Any:
        try:
            return await self._native.read_response()
        except ResponseError as error:
            return error.with_traceback(None)

    def is_usable(self) -> bool:
        """Return whether it can take a request."""
        reader, writer = self._native._reader, self._native._writer  # noqa: SLF001 - as for threads
        if not FORKS.is_ours(self) or writer is None or self._is_out.locked():
            return False
        has_ended = bool(vars(reader)["_buffer"]) or reader.at_eof() or writer.is_closing()
        return not (has_ended or self._readable(streams.socket_of(writer).fileno()))

    def hang_up(self) -> None:
        """Close it without waiting; never raises."""
        _abort(self._native, self._loop)

    def drop(self) -> None:
        """Close only the descriptor, in a forked child."""
        if (writer := _take_writer(self._native)) is not None:
            streams.drop(writer)


def _packed(commands: tuple[Command, ...]) -> bytes:
    """Return commands as they are sent: redis-py's own packing takes several times as long."""
    parts: list[bytes] = []
    for command in commands:
        words = [word.encode() if isinstance(word, str) else word for word in command]
        parts += (b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
    return b"".join(parts)


# A connection that nobody closed ends by these. The garbage collector calls them before it touches the socket, whose
# own end would warn; a `__del__` may come after it.
def _disconnect(native: Any) -> None:
    with suppress(Exception):
        native.disconnect()


def _abort(native: Any, loop: asyncio.AbstractEventLoop) -> None:
    if (writer := _take_writer(native)) is not None:
        streams.abort(writer, loop)


def _take_writer(native: Any) -> asyncio.StreamWriter | None:
    writer, native._writer, native._reader = native._writer, None, None  # noqa: SLF001 - the library's own way waits
    return writer  # type: ignore[no-any-return]


def _arguments(info: RedisConnectionInfo, address: RedisAddress) -> dict[str, Any]:
    """Return the arguments of redis-py's connections. Without `retry` they try everything once."""
    return {
        "host": address.host,
        "port": address.port,
        "db": info.database,
        "username": info.user,
        "password": info.password,
        "protocol": _RESP,
        "driver_info": None,
        "socket_timeout": REQUEST_TIMEOUT_S,
        "socket_connect_timeout": REQUEST_TIMEOUT_S,
    }


def _close(connection: RedisConnection | AsyncRedisConnection) -> None:
    connection.hang_up()


def _drop(connection: RedisConnection | AsyncRedisConnection) -> None:
    connection.drop()


FORKS: "Forks[RedisConnection | AsyncRedisConnection]" = Forks(close=_close, drop=_drop)
"""The open connections of this process: see `stores/forks.py`."""
