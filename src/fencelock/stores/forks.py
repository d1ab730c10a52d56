"""The open connections of this process, so that a forked child neither uses nor ends its parent's.

Promise: a forked child drops every inherited connection: it closes the descriptor, so that the server still notices the
parent's end, and writes nothing to it. Never: uses a connection of the parent.
"""

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from fencelock._platform import at_fork

Native = TypeVar("Native")


class Forks(Generic[Native]):
    """The open connections of one client library that belong to this process.

    `close` ends one without waiting for the server, or, for ZooKeeper, for a second at most; `drop` only closes its
    descriptor, in a forked child. Neither raises.
    """

    def __init__(self, *, close: Callable[[Native], None], drop: Callable[[Native], None]) -> None:
        self._close = close
        self._drop = drop
        self._open: weakref.WeakSet[Native] = weakref.WeakSet()
        at_fork(after_in_child=self._after_fork_in_child)

    def add(self, native: Native) -> None:
        """Register a connection that this process has opened."""
        self._open.add(native)

    def is_ours(self, native: Native) -> bool:
        """Return whether this process has opened the connection and not closed it."""
        return native in self._open

    def close(self, native: Native) -> None:
        """Close a connection of this process; leave one of the parent's alone. Never raises."""
        if native in self._open:
            self._open.discard(native)
            self._close(native)

    def _after_fork_in_child(self) -> None:
        """Drop the parent's open connections."""
        for native in list(self._open):
            self._drop(native)
        self._open = weakref.WeakSet()
