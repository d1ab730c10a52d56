"""The open connections of this process, so that a forked child neither uses nor ends its parent's.

Promise: in a forked child every inherited connection is dropped unclosed: its descriptor is closed there, so that the
server still learns when the parent is gone, and not a byte is written to it. Never: a connection of the parent used.
"""

import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fenceline.stores.postgres.client import AsyncConnection, Connection


class Forks:
    """Whose the open connections are."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[Connection | AsyncConnection] = weakref.WeakSet()

    def add(self, native: "Connection | AsyncConnection") -> None:
        """Take note of a connection that this process has opened."""
        self._open.add(native)

    def is_ours(self, native: "Connection | AsyncConnection") -> bool:
        """Tell whether this process has opened it, and not closed it."""
        return native in self._open

    def close(self, native: "Connection | AsyncConnection") -> None:
        """Close a connection without waiting for the server; one of the parent's is left as it is. Never raises."""
        if native in self._open:
            self._open.discard(native)
            native.pgconn.finish()

    def after_fork_in_child(self) -> None:
        """Let go of what the parent has open."""
        for native in list(self._open):
            if not native.closed:
                os.close(native.pgconn.socket)
        self._open = weakref.WeakSet()


FORKS = Forks()
os.register_at_fork(after_in_child=FORKS.after_fork_in_child)
