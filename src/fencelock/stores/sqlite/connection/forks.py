"""Keeps SQLite safe across fork: a child never opens a file to which it inherited an open connection.

SQLite keeps a table of open files per process, and fork copies it, while the kernel's file locks stay with the
parent. A child that opens the same file believes that it holds locks which it does not have, and the parent may then
delete the write-ahead log under it (https://www.sqlite.org/howtocorrupt.html, section 2.6).

Promise: before a fork, every idle connection of fencelock is closed (its next use reopens it), and short transactions
get FORK_TIMEOUT_S to end. `check_may_open` refuses, in the child, a file on which a transaction stayed open. A
connection whose owner was garbage-collected is closed at once, or after the fork that is in progress.
Never: closes a connection of the parent in the child, which would work on files that the parent is using; waits in a
finalizer, which may run in any thread and under any lock.
"""

import sqlite3
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from fencelock._platform import at_fork
from fencelock.errors import UnsupportedError

FORK_TIMEOUT_S = 1.0
_POLL_S = 0.000_2


class Forkable(Protocol):
    """The part of a connection that the gate uses."""

    is_inside: bool
    """True while a thread is inside SQLite, or in a transaction that ends without waiting for the user."""

    def close_if_idle(self) -> None:
        """Close the connection unless a transaction is open on it."""

    def disown(self) -> None:
        """Forget the connection, which belongs to the parent process."""


class SQLiteForkGate:
    """Makes a fork wait for the threads that are inside SQLite, and holds new ones back until the fork is done.

    A thread first sets `is_inside` on its connection and then reads `is_shut`; the fork first shuts the gate and then
    reads every `is_inside`. In this order at least one of the two sees the other, without a lock on the common path.
    """

    def __init__(self) -> None:
        self.is_shut = False
        self._databases: weakref.WeakSet[Any] = weakref.WeakSet()
        self._open: dict[sqlite3.Connection, Path] = {}
        self._orphans: deque[sqlite3.Connection] = deque()
        self._closers: set[object] = set()
        self._inherited: set[Path] = set()
        self._forker = 0
        self._fork_lock = threading.RLock()

    def watch(self, database: Forkable) -> None:
        """Close this connection before each fork from now on."""
        self._databases.add(database)

    def opened(self, native: sqlite3.Connection, path: Path) -> None:
        """Keep a reference until `close`: the garbage collector would close the connection outside the gate."""
        self._open[native] = path

    def close(self, native: sqlite3.Connection) -> None:
        """Close a connection. The caller is inside the gate. Never raises."""
        self._open.pop(native, None)
        with suppress(sqlite3.Error):
            native.close()

    def close_collected(self, native: sqlite3.Connection) -> None:
        """Close a connection whose owner was garbage-collected, now or after the fork in progress; never waits."""
        self._orphans.append(native)
        self._close_orphans()

    def _close_orphans(self) -> None:
        closer = object()
        try:
            # As with `is_inside`: first announce, then read the gate.
            self._closers.add(closer)
            while self._orphans and not self.is_shut:
                self._close_orphan()
        finally:
            self._closers.discard(closer)

    def _close_orphan(self) -> None:
        with suppress(IndexError):  # Another thread was faster.
            native = self._orphans.popleft()
            if native in self._open:
                self.close(native)

    def wait_until_open(self) -> None:
        """Wait until another thread's fork is over; the forking thread itself never waits here."""
        assert self._forker != threading.get_ident(), "a fork handler used SQLite"
        while self.is_shut:
            time.sleep(_POLL_S)

    def check_may_open(self, path: Path) -> None:
        """Raise UnsupportedError if this process inherited an open transaction on the file."""
        if path in self._inherited:
            raise UnsupportedError(
                f"{path} cannot be opened in this process: it was forked while a transaction was open on that file, "
                "and SQLite cannot tell the two processes' locks apart. Fork outside guarded transactions, "
                "or use spawn"
            )

    def before_fork(self) -> None:
        """Shut the gate, wait until no thread is inside, and close idle connections; one fork at a time."""
        # Released by after_fork_in_parent; the child makes a new lock.
        self._fork_lock.acquire()
        self._forker = threading.get_ident()
        self.is_shut = True
        databases = self._watched()
        give_up = time.monotonic() + FORK_TIMEOUT_S
        while self._is_any_inside(databases) and time.monotonic() < give_up:
            time.sleep(_POLL_S)
        for database in databases:
            database.close_if_idle()
        # Finalizers that found the gate shut a moment ago have left these to the fork.
        while self._orphans:
            self._close_orphan()

    def _is_any_inside(self, databases: list[Forkable]) -> bool:
        return bool(self._closers) or any(database.is_inside for database in databases)

    def after_fork_in_parent(self) -> None:
        """Open the gate."""
        self.is_shut = False
        self._fork_lock.release()
        self._close_orphans()

    def after_fork_in_child(self) -> None:
        """Disown connections that are still open, because they are the parent's; closed ones can be used here."""
        for database in self._watched():
            database.is_inside = False  # The thread that was inside does not exist in this process.
            database.disown()
        self._inherited.update(self._open.values())
        for native in self._open:
            # Closing it here, at the interpreter's exit too, would work on files that the parent is using.
            _leak(native)
        self._open.clear()
        self._orphans.clear()
        self._closers.clear()
        self.is_shut = False
        self._fork_lock = threading.RLock()

    def _watched(self) -> list[Forkable]:
        while True:
            with suppress(RuntimeError):  # Another thread added a connection during the iteration.
                return list(self._databases)


def _leak(native: sqlite3.Connection) -> None:
    """Keep the connection from ever being closed in this process, also at interpreter exit."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(native))


GATE = SQLiteForkGate()
at_fork(
    before=GATE.before_fork,
    after_in_parent=GATE.after_fork_in_parent,
    after_in_child=GATE.after_fork_in_child,
)
