"""A few connections to one source, for whichever thread comes next.

Promise: a connection serves one request at a time; one that saw an exception is closed, not kept. Where connections
cost the store something, no more than it declares are open at a time, and who finds none free in time is told so. There
is no lock here otherwise, so neither a signal handler nor a fork can find one taken.
"""

import os
import weakref
from collections import deque
from queue import Empty, SimpleQueue

from fencelock.errors import ConfigError, SourceUnavailableError
from fencelock.protocol.source_requests import SourceReply, SourceRequest
from fencelock.protocol.stores import SourceConnection, SourceStore

MAX_IDLE_CONNECTIONS = 4


class Pool:
    """Performs requests on pooled connections, each waiting `request_timeout_s` at most for a store that is busy."""

    def __init__(self, store: SourceStore, request_timeout_s: float) -> None:
        self._store = store
        self._request_timeout_s = request_timeout_s
        self._idle: deque[SourceConnection] = deque()
        self._is_closed = False
        self._max_idle = store.capabilities.max_connections or MAX_IDLE_CONNECTIONS

    def perform(self, request: SourceRequest) -> SourceReply:
        """Answer one request of a source, on a connection of its own for that time."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            reply = connection.perform(request)
        except BaseException:
            connection.close()
            raise
        if len(self._idle) < self._max_idle and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def _connect(self) -> SourceConnection:
        if self._is_closed:
            raise ConfigError(f"{self._store.url} was closed: connect() again")
        return self._store.connect(request_timeout_s=self._request_timeout_s)

    def close(self) -> None:
        """Close the idle connections, and each busy one at the end of its request."""
        self._is_closed = True
        while self._idle:
            self._idle.pop().close()


class BoundedPool(Pool):
    """The same for a store whose connections are dear: no more than so many at a time."""

    def __init__(self, store: SourceStore, request_timeout_s: float, limit: int) -> None:
        super().__init__(store, request_timeout_s)
        self._limit = limit
        self._begin_anew()

    def _begin_anew(self) -> None:
        # A forked child: those of the parent's threads that had a connection are not there to give it back.
        self._process_id = os.getpid()
        # A semaphore, in C, whose release may interrupt its own thread's.
        self._turns: SimpleQueue[_Turn] = SimpleQueue()
        for _ in range(self._limit):
            self._turns.put(_Turn(weakref.ref(self._turns)))

    def perform(self, request: SourceRequest) -> SourceReply:
        """Answer one request, once a connection is free; SourceUnavailableError if none is in time."""
        if self._process_id != os.getpid():
            self._begin_anew()
        turns = self._turns
        try:
            turn = turns.get(timeout=self._request_timeout_s)
        except Empty:
            raise no_free_connection(self._store, self._limit, self._request_timeout_s) from None
        try:
            return super().perform(request)
        finally:
            turns.put(turn)


class _Turn:
    """The right to one connection, which goes back by itself when nobody has it: a signal handler may raise right after
    it was taken. It knows the others weakly, since those of a pool that is gone end with it.
    """

    __slots__ = ("_turns",)

    def __init__(self, turns: "weakref.ref[SimpleQueue[_Turn]]") -> None:
        self._turns = turns

    def __del__(self) -> None:
        if (turns := self._turns()) is not None:
            turns.put(_Turn(self._turns))


def no_free_connection(store: SourceStore, limit: int, request_timeout_s: float) -> SourceUnavailableError:
    """Return the error for a caller that got no connection."""
    return SourceUnavailableError(
        f"{store.url}: none of this process's {limit} connections became free within {request_timeout_s:g} s: the "
        f"source is slow, or unreachable"
    )


def pool_for(store: SourceStore, request_timeout_s: float) -> Pool:
    """Return the pool that the store's capabilities ask for."""
    limit = store.capabilities.max_connections
    return Pool(store, request_timeout_s) if limit is None else BoundedPool(store, request_timeout_s, limit)
