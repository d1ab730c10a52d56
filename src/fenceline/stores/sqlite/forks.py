"""Keep SQLite whole across fork: a child must find no open connection of its parent to a file that it opens itself.

SQLite keeps its table of open files per process and fork copies it, while the kernel's file locks stay with the
parent: a child that opens the same file believes that it holds locks which it does not have, and the parent may then
delete the write-ahead log under it (https://www.sqlite.org/howtocorrupt.html, section 2.6).

Promise: before a fork every idle connection of fenceline is closed (it reopens by itself), and every short transaction
has FORK_PATIENCE_S to end. A file on which a transaction stayed open is refused in the child by `check_may_open`.
Never: a connection of the parent's closed in the child, which would work on files that the parent has in use.
"""

import os
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from fenceline.errors import UnsupportedError

FORK_PATIENCE_S = 1.0
_POLL_S = 0.000_2


class Forkable(Protocol):
    """What the gate knows of a connection."""

    path: Path
    is_inside: bool
    """True while a thread is inside SQLite, or inside a transaction that ends by itself in a moment."""

    @property
    def is_open(self) -> bool: ...

    def close_if_idle(self) -> None:
        """Close the connection unless a transaction is open on it."""

    def leak(self) -> None:
        """Make sure that this process never closes the connection."""


class ForkGate:
    """Lets a fork wait for the threads that are inside SQLite, and holds new ones back until it is done.

    A thread says `is_inside = True` on its connection and then looks whether the gate `is_shut`; the fork shuts the
    gate and then looks who is inside. In this order one of the two sees the other, without a lock in the common path.
    """

    def __init__(self) -> None:
        self.is_shut = False
        self._databases: weakref.WeakSet[Any] = weakref.WeakSet()
        self._inherited: set[Path] = set()
        self._forker = 0
        self._fork_lock = threading.RLock()

    def watch(self, database: Forkable) -> None:
        """Close this connection before forks from now on."""
        self._databases.add(database)

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
        while any(database.is_inside for database in databases) and time.monotonic() < give_up:
            time.sleep(_POLL_S)
        for database in databases:
            database.close_if_idle()

    def after_fork_in_parent(self) -> None:
        """Let everybody in again."""
        self.is_shut = False
        self._fork_lock.release()

    def after_fork_in_child(self) -> None:
        """Disown what is still open, which is the parent's; what was closed serves this process, and its own forks."""
        for database in self._watched():
            database.is_inside = False  # Whichever thread was inside is not in this process.
            if database.is_open:
                self._inherited.add(database.path)
                database.leak()
        self.is_shut = False
        self._fork_lock = threading.RLock()

    def _watched(self) -> list[Forkable]:
        while True:
            with suppress(RuntimeError):  # Another thread made a connection while these were counted.
                return list(self._databases)


GATE = ForkGate()
os.register_at_fork(
    before=GATE.before_fork,
    after_in_parent=GATE.after_fork_in_parent,
    after_in_child=GATE.after_fork_in_child,
)
