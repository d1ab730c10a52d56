"""The open connections of this process, so that a forked child neither uses nor ends its parent's.

Promise: in a forked child every inherited connection is dropped unclosed: its descriptor is closed there, so that the
server still learns when the parent is gone, and not a byte is written to it. Never: a connection of the parent used.
"""

import os
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

Native = TypeVar("Native")


class Forks(Generic[Native]):
    """Whose the open connections of one client library are. `close` ends one without waiting for the server, and `drop`
    closes its descriptor in a forked child and nothing else; neither raises.
    """

    def __init__(self, *, close: Callable[[Native], None], drop: Callable[[Native], None]) -> None:
        self._close = close
        self._drop = drop
        self._open: weakref.WeakSet[Native] = weakref.WeakSet()
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    def add(self, native: Native) -> None:
        """Take note of a connection that this process has opened."""
        self._open.add(native)

    def is_ours(self, native: Native) -> bool:
        """Tell whether this process has opened it, and not closed it."""
        return native in self._open

    def close(self, native: Native) -> None:
        """Close a connection without waiting for the server; one of the parent's is left as it is. Never raises."""
        if native in self._open:
            self._open.discard(native)
            self._close(native)

    def _after_fork_in_child(self) -> None:
        """Let go of what the parent has open."""
        for native in list(self._open):
            self._drop(native)
        self._open = weakref.WeakSet()
