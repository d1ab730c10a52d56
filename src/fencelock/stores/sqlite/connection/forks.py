"""Keep SQLite whole across fork: a child must find no open connection of its parent to a file that it opens itself.

SQLite keeps its table of open files per process and fork copies it, while the kernel's file locks stay with the
parent: a child that opens the same file believes that it holds locks which it does not have, and the parent may then
delete the write-ahead log under it (https://www.sqlite.org/howtocorrupt.html, section 2.6).

Promise: before a fork every idle connection of fencelock is closed (it reopens by itself), and every short transaction
has FORK_PATIENCE_S to end. A file on which a transaction stayed open is refused in the child by `check_may_open`. A
connection that nobody refers to any more is closed at once, or after the fork that is under way.
Never: a connection of the parent's closed in the child, which would work on files that the parent has in use; a wait
in a finalizer, which may run in any thread, whatever locks that holds.
"""

import os
import sqlite3
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from fencelock.errors import UnsupportedError

FORK_PATIENCE_S = 1.0
_POLL_S = 0.000_2


class Forkable(Protocol):
    """What the gate knows of a connection."""

    is_inside: bool
    """True while a thread is inside SQLite, or inside a transaction that ends by itself in a moment."""

    def close_if_idle(self) -> None:
        """Close the connection unless a transaction is open on it."""

    def disown(self) -> None:
        """Forget the connection, which is the parent's."""


class SQLiteForkGate:
    """Lets a fork wait for the threads that are inside SQLite, and holds new ones back until it is done.

    A thread says `is_inside = True` on its connection and then looks whether the gate `is_shut`; the fork shuts the
    gate and then looks who is inside. In this order one of the two sees the other, without a lock in the common path.
    """

    def __init__(self) -> None:
        self.is_shut = False
        self._databases: weakref.WeakSet[Any] = weakref.WeakSet()
        self._open: dict[sqlite3.Connection, Path] = {}
        self._orphans: deque[sqlite3.Connection] = deque()
        self._burials: set[object] = set()
        self._inherited: set[Path] = set()
        self._forker = 0
        self._fork_lock = threading.RLock()

    def watch(self, database: Forkable) -> None:
        """Close this connection before forks from now on."""
        self._databases.add(database)

    def opened(self, native: sqlite3.Connection, path: Path) -> None:
        """Keep a connection until it is closed here: the collector would close it outside of the gate."""
        self._open[native] = path

    def close(self, native: sqlite3.Connection) -> None:
        """Close a connection; for those who are inside the gate. Never raises."""
        self._open.pop(native, None)
        with suppress(sqlite3.Error):
            native.close()

    def bury(self, native: sqlite3.Connection) -> None:
        """Close a connection whose database was collected, now or after the fork that is under way; never waits."""
        self._orphans.append(native)
        self._close_orphans()

    def _close_orphans(self) -> None:
        burial = object()
        try:
            # As with `is_inside`: said first, and looked afterwards.
            self._burials.add(burial)
            while self._orphans and not self.is_shut:
                self._close_orphan()
        finally:
            self._burials.discard(burial)

    def _close_orphan(self) -> None:
        with suppress(IndexError):  # Another thread was faster.
            native = self._orphans.popleft()
            if native in self._open:
                self.close(native)

    def wait_until_open(self) -> None:
        """Wait for another thread's fork to be over; the forking thread itself never waits here."""
        assert self._forker != threading.get_ident(), "a fork handler used SQLite"
        while self.is_shut:
            time.sleep(_POLL_S)

    def check_may_open(self, path: Path) -> None:
        """Raise UnsupportedError if this process inherited an open transaction on the file."""
        if path in self._inherited:
            raise UnsupportedError(
                f"{path} cannot be opened in this process: it was forked while a transaction was open on that file, "
                "and SQLite cannot tell the two processes' locks apart. Fork outside of guarded transactions, "
                "or use spawn"
            )

    def before_fork(self) -> None:
        """Keep everybody out, wait until nobody is inside, and close what is idle; one fork at a time."""
        self._fork_lock.acquire()
        self._forker = threading.get_ident()
        self.is_shut = True
        databases = self._watched()
        give_up = time.monotonic() + FORK_PATIENCE_S
        while self._is_anybody_inside(databases) and time.monotonic() < give_up:
            time.sleep(_POLL_S)
        for database in databases:
            database.close_if_idle()
        while self._orphans:  # Of finalizers that found the gate shut a moment ago.
            self._close_orphan()

    def _is_anybody_inside(self, databases: list[Forkable]) -> bool:
        return bool(self._burials) or any(database.is_inside for database in databases)

    def after_fork_in_parent(self) -> None:
        """Let everybody in again."""
        self.is_shut = False
        self._fork_lock.release()
        self._close_orphans()

    def after_fork_in_child(self) -> None:
        """Disown what is still open, which is the parent's; what was closed serves this process, and its own forks."""
        for database in self._watched():
            database.is_inside = False  # Whichever thread was inside is not in this process.
            database.disown()
        self._inherited.update(self._open.values())
        for native in self._open:
            _leak(native)
        self._open.clear()
        self._orphans.clear()
        self._burials.clear()
        self.is_shut = False
        self._fork_lock = threading.RLock()

    def _watched(self) -> list[Forkable]:
        while True:
            with suppress(RuntimeError):  # Another thread made a connection while these were counted.
                return list(self._databases)


def _leak(native: sqlite3.Connection) -> None:
    """Never close the connection in this process, not even when the interpreter ends."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))


GATE = SQLiteForkGate()
os.register_at_fork(
    before=GATE.before_fork,
    after_in_parent=GATE.after_fork_in_parent,
    after_in_child=GATE.after_fork_in_child,
)
