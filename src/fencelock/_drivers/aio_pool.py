"""A pool of connections to one source whose client speaks asyncio.

Promise: a connection serves one request at a time, on the loop that opened it; one that saw an exception, a
cancellation included, is closed, not kept. One loop opens no more connections at a time than the store declares; a
task that gets none in time gets SourceUnavailableError.
"""

import asyncio
from collections import deque

from fencelock._drivers.pool import MAX_IDLE_CONNECTIONS, no_free_connection
from fencelock.errors import ConfigError
from fencelock.protocol.source_requests import SourceReply, SourceRequest
from fencelock.protocol.stores import AsyncSourceConnection, AsyncSourceStore
from fencelock.stores.draining import drained


class _Connections:
    """The connections of one loop."""

    def __init__(self, limit: int) -> None:
        self.idle: deque[AsyncSourceConnection] = deque()
        self.free = asyncio.Semaphore(limit)


class AsyncPool:
    """Performs requests on pooled connections; each waits at most `request_timeout_s` for a busy store."""

    def __init__(self, store: AsyncSourceStore, request_timeout_s: float) -> None:
        self._store = store
        self._request_timeout_s = request_timeout_s
        self._limit = store.capabilities.max_connections or MAX_IDLE_CONNECTIONS
        self._of_loop: dict[asyncio.AbstractEventLoop, _Connections] = {}
        self._is_closed = False

    async def perform(self, request: SourceRequest) -> SourceReply:
        """Answer one request, on a connection that serves nothing else meanwhile."""
        connections = self._of_loop.get(asyncio.get_running_loop()) or self._on_a_new_loop()
        try:
            async with asyncio.timeout(self._request_timeout_s if connections.free.locked() else None):
                await connections.free.acquire()
        except TimeoutError:
            raise no_free_connection(self._store, self._limit, self._request_timeout_s) from None
        try:
            return await self._perform(request, connections.idle)
        finally:
            connections.free.release()

    def _on_a_new_loop(self) -> _Connections:
        # A list first: the loops of other threads come and go meanwhile, and two threads may find the same one closed.
        for loop in [loop for loop in list(self._of_loop) if loop.is_closed()]:
            if (closed := self._of_loop.pop(loop, None)) is not None:
                _close(closed)
        return self._of_loop.setdefault(asyncio.get_running_loop(), _Connections(self._limit))

    async def _perform(self, request: SourceRequest, idle: deque[AsyncSourceConnection]) -> SourceReply:
        connection = idle.pop() if idle else self._connect()
        try:
            reply = await connection.perform(request)
        except BaseException:
            # The reply may still arrive: the next request on this connection would take it for its own.
            connection.close()
            raise
        if self._is_closed:
            connection.close()
        else:
            idle.append(connection)
        return reply

    def _connect(self) -> AsyncSourceConnection:
        if self._is_closed:
            raise ConfigError(f"{self._store.url} was closed: connect() again")
        return self._store.connect_async(request_timeout_s=self._request_timeout_s)

    def close(self) -> None:
        """Close the idle connections, and each busy one at the end of its request."""
        self._is_closed = True
        for connections in list(self._of_loop.values()):
            _close(connections)


def _close(connections: _Connections) -> None:
    for connection in drained(connections.idle):
        connection.close()
