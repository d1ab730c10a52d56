"""Wake every waiting thread when the interpreter ends.

Promise: from `begin` on, a thread that waits for a lock gets SourceError instead of sleeping while the interpreter
ends, and one that is granted a lock meanwhile gets it too. Only daemon threads can be waiting then, because Python has
joined the others. A forked child has a switch of its own.
"""

import threading

from fencelock._platform import Notification, at_fork
from fencelock.errors import SourceError


class Shutdown:
    """A switch that is thrown once per process, with a descriptor that waiting threads poll."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._notification: Notification | None = None
        self.has_begun = False
        self.waiting: set[int] = set()
        """The threads that sleep in a lock's queue."""
        self.acquiring: set[int] = set()
        """The threads that may have a claim at a source; at the interpreter's end each of them has one to abandon."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable at the interpreter's end, and stays so."""
        if self._notification is None:
            with self._lock:
                if self._notification is None:
                    self._notification = Notification()
            # Checked after the descriptor exists, and `begin` checks for the descriptor last: one sees the other.
            if self.has_begun:
                self._notification.notify()
        return self._notification.fileno()

    def begin(self) -> None:
        """Throw the switch."""
        self.has_begun = True
        if self._notification is not None:
            self._notification.notify()

    def check(self) -> None:
        """Raise SourceError if the interpreter is ending."""
        if self.has_begun:
            raise SourceError("the interpreter is ending: no thread can wait for a lock")

    def begin_acquire(self) -> None:
        """Note that this thread may have a claim; not an exit handler's thread, which acquires after `begin`."""
        if not self.has_begun:
            self.acquiring.add(threading.get_ident())

    def end_acquire(self) -> None:
        """Note that this thread has no claim any more, or a lease."""
        # Once the end has begun, only `note_abandoned` may do it: the keeper would end without having the claim.
        if self.acquiring and not self.has_begun:
            self.acquiring.discard(threading.get_ident())

    def note_abandoned(self) -> None:
        """Note that the keeper has this thread's claim, to release it."""
        self.acquiring.discard(threading.get_ident())

    def check_acquired(self) -> None:
        """Raise SourceError if the interpreter's end has begun while this thread acquired a lock."""
        if self.has_begun and threading.get_ident() in self.acquiring:
            self.check()

    def after_fork_in_child(self) -> None:
        """Forget the parent's switch, whose descriptor would wake the parent's threads."""
        self._lock = threading.RLock()
        self._notification = None
        self.has_begun = False
        self.waiting = set()
        self.acquiring = set()


SHUTDOWN = Shutdown()
at_fork(after_in_child=SHUTDOWN.after_fork_in_child)
