"""A pool of connections to one source, for all threads.

Promise: a connection serves one request at a time; one that saw an exception is closed, not kept. If connections are
expensive for the store, no more than it declares are open at a time, and a thread that gets none in time gets
SourceUnavailableError. There is no other lock here that a signal handler or a fork could find taken.
"""

import weakref
from collections import deque
from queue import Empty, SimpleQueue

from fencelock._platform import renew_after_fork
from fencelock.errors import ConfigError, SourceUnavailableError
from fencelock.protocol.source_requests import SourceReply, SourceRequest
from fencelock.protocol.stores import SourceConnection, SourceStore
from fencelock.stores.draining import drained

MAX_IDLE_CONNECTIONS = 4


class Pool:
    """Performs requests on pooled connections; each waits at most `request_timeout_s` for a busy store."""

    def __init__(self, store: SourceStore, request_timeout_s: float) -> None:
        self._store = store
        self._request_timeout_s = request_timeout_s
        self._idle: deque[SourceConnection] = deque()
        self._is_closed = False
        self._max_idle = store.capabilities.max_connections or MAX_IDLE_CONNECTIONS

    def perform(self, request: SourceRequest) -> SourceReply:
        """Answer one request, on a connection that serves nothing else meanwhile."""
        try:
            # Not tested first: another thread may take the last idle connection between a test and the pop.
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            reply = connection.perform(request)
        except BaseException:
            # The reply may still arrive: the next request on this connection would take it for its own.
            connection.close()
            raise
        if len(self._idle) < self._max_idle:
            self._idle.append(connection)
        else:
            connection.close()
        # Looked at last: a `close` before the append has not seen this connection.
        if self._is_closed:
            self._close_idle()
        return reply

    def _connect(self) -> SourceConnection:
        if self._is_closed:
            raise ConfigError(f"{self._store.url} was closed: connect() again")
        return self._store.connect(request_timeout_s=self._request_timeout_s)

    def close(self) -> None:
        """Close the idle connections, and each busy one at the end of its request."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        for connection in drained(self._idle):
            connection.close()


class BoundedPool(Pool):
    """A pool with an upper bound, for stores where connections are expensive."""

    def __init__(self, store: SourceStore, request_timeout_s: float, limit: int) -> None:
        super().__init__(store, request_timeout_s)
        self._limit = limit
        self.renew_after_fork()
        renew_after_fork(self)

    def renew_after_fork(self) -> None:
        """Have all permits: the parent's threads that had a connection do not exist in a child to give it back."""
        # A semaphore in C: a signal handler may release it while the same thread is in release().
        self._permits: SimpleQueue[_Permit] = SimpleQueue()
        for _ in range(self._limit):
            self._permits.put(_Permit(weakref.ref(self._permits)))

    def perform(self, request: SourceRequest) -> SourceReply:
        """Answer one request once a connection is free; SourceUnavailableError after the timeout."""
        # Read once: a fork replaces them, and a permit of before belongs to none of the child's connections.
        permits = self._permits
        try:
            permit = permits.get(timeout=self._request_timeout_s)
        except Empty:
            raise no_free_connection(self._store, self._limit, self._request_timeout_s) from None
        try:
            return super().perform(request)
        finally:
            permits.put(permit)


class _Permit:
    """The right to one connection. It returns to the pool when its last reference goes, because a signal handler may
    raise right after it was taken. It refers to the pool weakly, so that it does not outlive it.
    """

    __slots__ = ("_permits",)

    def __init__(self, permits: "weakref.ref[SimpleQueue[_Permit]]") -> None:
        self._permits = permits

    def __del__(self) -> None:
        if (permits := self._permits()) is not None:
            permits.put(_Permit(self._permits))


def no_free_connection(store: SourceStore, limit: int, request_timeout_s: float) -> SourceUnavailableError:
    """Return the error for a caller that got no connection in time."""
    return SourceUnavailableError(
        f"{store.url}: none of this process's {limit} connections became free within {request_timeout_s:g} s: the "
        f"source is slow, or unreachable"
    )


def pool_for(store: SourceStore, request_timeout_s: float) -> Pool:
    """Return a pool as the store's capabilities require it."""
    limit = store.capabilities.max_connections
    return Pool(store, request_timeout_s) if limit is None else BoundedPool(store, request_timeout_s, limit)
