"""What the two SQL guards share of a store: the idle connections that it keeps for its next transactions.

Promise: a connection serves one block at a time, and a connection that anything still refers to (a name, a cursor, a
late thread or task) is lent to nobody else (G11). A connection of another process, one that its server has closed, and
one that its user has changed is closed instead of reused. A guard keeps a few idle connections at most, and closes them
when it is garbage collected.
"""

import asyncio
import sys
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.draining import drained

MAX_IDLE_CONNECTIONS = 16
"""Connections that one guard keeps open for its next transactions."""


class Reusable(Protocol):
    """A connection that knows whether another block may use it."""

    def is_unchanged(self) -> bool:
        """Return whether its last user left it as it was."""

    def is_referred_to_inside(self) -> bool:
        """Return whether anybody refers to a part of it through which one can write, if not to the whole."""


Native = TypeVar("Native", bound=Reusable)
AsyncNative = TypeVar("AsyncNative", bound=Reusable)


def _references(held: Sequence[object]) -> int:
    return sys.getrefcount(held[0])


UNSHARED = _references([object()])
"""What `sys.getrefcount` counts for an object to which nothing refers but one container, or one attribute."""


class _IdleConnectionsBase(Generic[Native]):
    """What the idle connections of threads and of event loops share; the most recently used one is on the right."""

    def __init__(self, is_alive: Callable[[Native], bool], close_one: Callable[[Native], None]) -> None:
        self._is_alive = is_alive
        self._close_one = close_one
        self._is_closed = False

    def _take_idle(self, idle: deque[Native]) -> Native | None:
        """Return a connection that no other block uses; None if there is none."""
        for _ in range(len(idle)):
            with suppress(IndexError):  # Another thread took the last one.
                taken = [idle.pop()]
                if _references(taken) > UNSHARED or taken[0].is_referred_to_inside():
                    # Its former user may still write through it. On the left, connections are closed first.
                    idle.appendleft(taken.pop())
                elif self._is_alive(taken[0]) and taken[0].is_unchanged():
                    return taken.pop()
                else:
                    self._close_one(taken.pop())
        return None

    def _keep(self, native: Native, idle: deque[Native]) -> None:
        """Keep the connection for another block, unless its user has changed it; close the leftmost of too many."""
        if not native.is_unchanged():
            self._close_one(native)
            return
        idle.append(native)
        if len(idle) > MAX_IDLE_CONNECTIONS:
            with suppress(IndexError):  # Another thread took it.
                self._close_one(idle.popleft())
        # Looked at last: a `close` before the append has not seen this connection.
        if self._is_closed:
            self._close_all(idle)

    def _close_all(self, idle: deque[Native]) -> None:
        for native in drained(idle):
            self._close_one(native)


class IdleConnections(_IdleConnectionsBase[Native]):
    """The idle connections of one guard for threads."""

    def __init__(
        self, open_one: Callable[[], Native], is_alive: Callable[[Native], bool], close_one: Callable[[Native], None]
    ) -> None:
        super().__init__(is_alive, close_one)
        self._open_one = open_one
        self._idle: deque[Native] = deque()

    def take(self) -> Native:
        """Return an idle connection, or a new one, for the caller alone."""
        return self._take_idle(self._idle) or self._open_one()

    def give_back(self, native: Native) -> None:
        """Keep the connection for another block, or close it."""
        self._keep(native, self._idle)

    def close(self) -> None:
        """Close the idle connections, and each other one when it is given back."""
        self._is_closed = True
        self._close_all(self._idle)


class AsyncIdleConnections(_IdleConnectionsBase[Native]):
    """The idle connections of one guard for event loops; a connection stays with its loop."""

    def __init__(
        self,
        open_one: Callable[[], Awaitable[Native]],
        is_alive: Callable[[Native], bool],
        close_one: Callable[[Native], None],
    ) -> None:
        super().__init__(is_alive, close_one)
        self._open_one = open_one
        self._idle: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, deque[Native]] = weakref.WeakKeyDictionary()

    async def take(self) -> Native:
        """Return an idle connection, or a new one, for the caller alone."""
        return self._take_idle(self._of_this_loop()) or await self._open_one()

    def give_back(self, native: Native) -> None:
        """Keep the connection for another block, or close it."""
        self._keep(native, self._of_this_loop())

    def _of_this_loop(self) -> deque[Native]:
        return self._idle.setdefault(asyncio.get_running_loop(), deque())

    def close(self) -> None:
        """Close the idle connections, and each other one when it is given back."""
        self._is_closed = True
        for idle in self._idle.values():
            self._close_all(idle)


class GuardStoreBase(Generic[Native, AsyncNative]):
    """A database that keeps marks and enforces them: its URL, and its idle connections. Making it opens nothing."""

    capabilities = GuardCapabilities(enforced_by="store", speaks_asyncio=True)

    def __init__(self, url: str, idle: IdleConnections[Native], async_idle: AsyncIdleConnections[AsyncNative]) -> None:
        self.url = url
        self._idle = idle
        self._async_idle = async_idle
        weakref.finalize(self, idle.close)
        weakref.finalize(self, async_idle.close)
