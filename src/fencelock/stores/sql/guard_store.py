"""What the two SQL guards share of a store: the idle connections that it keeps for its next transactions.

Promise: a connection serves one user at a time. A connection of another process, one that its server has closed, and
one that its user has changed is closed instead of reused. A guard keeps a few idle connections at most, and closes them
when it is garbage collected.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

MAX_IDLE_CONNECTIONS = 16
"""Connections that one guard keeps open for its next transactions."""


class Reusable(Protocol):
    """A connection that knows whether another block may use it."""

    def is_unchanged(self) -> bool:
        """Return whether its last user left it as it was."""


Native = TypeVar("Native", bound=Reusable)
AsyncNative = TypeVar("AsyncNative", bound=Reusable)


class IdleConnections(Generic[Native]):
    """The idle connections of one guard for threads."""

    def __init__(
        self, open_one: Callable[[], Native], is_alive: Callable[[Native], bool], close_one: Callable[[Native], None]
    ) -> None:
        self._open_one = open_one
        self._is_alive = is_alive
        self._close_one = close_one
        self._idle: deque[Native] = deque()
        self._is_closed = False

    def take(self) -> Native:
        """Return an idle connection, or a new one, for the caller alone."""
        while self._idle:
            native = self._idle.pop()
            if self._is_alive(native):
                return native
            self._close_one(native)
        return self._open_one()

    def give_back(self, native: Native) -> None:
        """Keep the connection for the next user, unless there are enough or its user has changed it."""
        if not self._is_closed and len(self._idle) < MAX_IDLE_CONNECTIONS and native.is_unchanged():
            self._idle.append(native)
        else:
            self._close_one(native)

    def close(self) -> None:
        """Close the idle connections, and each other one when it is given back."""
        self._is_closed = True
        while self._idle:
            self._close_one(self._idle.pop())


class AsyncIdleConnections(Generic[Native]):
    """The idle connections of one guard for event loops; a connection stays with its loop."""

    def __init__(
        self,
        open_one: Callable[[], Awaitable[Native]],
        is_alive: Callable[[Native], bool],
        close_one: Callable[[Native], None],
    ) -> None:
        self._open_one = open_one
        self._is_alive = is_alive
        self._close_one = close_one
        self._idle: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, deque[Native]] = weakref.WeakKeyDictionary()
        self._is_closed = False

    async def take(self) -> Native:
        """Return an idle connection, or a new one, for the caller alone."""
        idle = self._of_this_loop()
        while idle:
            native = idle.pop()
            if self._is_alive(native):
                return native
            self._close_one(native)
        return await self._open_one()

    def give_back(self, native: Native) -> None:
        """Keep the connection for the next user, unless there are enough or its user has changed it."""
        idle = self._of_this_loop()
        if not self._is_closed and len(idle) < MAX_IDLE_CONNECTIONS and native.is_unchanged():
            idle.append(native)
        else:
            self._close_one(native)

    def _of_this_loop(self) -> deque[Native]:
        return self._idle.setdefault(asyncio.get_running_loop(), deque())

    def close(self) -> None:
        """Close the idle connections, and each other one when it is given back."""
        self._is_closed = True
        for idle in self._idle.values():
            while idle:
                self._close_one(idle.pop())


class GuardStoreBase(Generic[Native, AsyncNative]):
    """A database that keeps marks and enforces them: its URL, and its idle connections. Making it opens nothing."""

    speaks_asyncio = True

    def __init__(self, url: str, idle: IdleConnections[Native], async_idle: AsyncIdleConnections[AsyncNative]) -> None:
        self.url = url
        self._idle = idle
        self._async_idle = async_idle
        weakref.finalize(self, idle.close)
        weakref.finalize(self, async_idle.close)
