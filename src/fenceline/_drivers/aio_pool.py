"""A few idle connections to one source whose client speaks asyncio, for whichever task comes next.

Promise: a connection serves one request at a time, on the loop that opened it; one that saw an exception, a
cancellation included, is closed, not kept.
"""

import asyncio
import weakref
from collections import deque
from typing import Any

from fenceline._drivers.pool import MAX_IDLE_CONNECTIONS
from fenceline._flows.requests import SourceReply
from fenceline.errors import ConfigError
from fenceline.stores.contract import AsyncSourceConnection, AsyncSourceStore


class AsyncPool:
    """Performs requests on pooled connections, each waiting `patience_s` at most for a store that is busy."""

    def __init__(self, store: AsyncSourceStore, patience_s: float) -> None:
        self._store = store
        self._patience_s = patience_s
        self._idle: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, deque[AsyncSourceConnection]]
        self._idle = weakref.WeakKeyDictionary()
        self._is_closed = False

    async def perform(self, request: Any) -> SourceReply:
        """Answer one request of a source, on a connection of its own for that time."""
        idle = self._idle.setdefault(asyncio.get_running_loop(), deque())
        connection = idle.pop() if idle else self._connect()
        try:
            reply = await connection.perform(request)
        except BaseException:
            connection.close()
            raise
        if len(idle) < MAX_IDLE_CONNECTIONS and not self._is_closed:
            idle.append(connection)
        else:
            connection.close()
        return reply

    def _connect(self) -> AsyncSourceConnection:
        if self._is_closed:
            raise ConfigError(f"{self._store.url} was closed: connect() again")
        return self._store.connect_async(patience_s=self._patience_s)

    def close(self) -> None:
        """Close the idle connections, and each busy one at the end of its request."""
        self._is_closed = True
        for idle in self._idle.values():
            while idle:
                idle.pop().close()
