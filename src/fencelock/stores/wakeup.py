"""The wakeup of one waiting claim inside this process: a descriptor that a driver can wait on.

Promise: `notify` never blocks and may be called from any thread, also after `close`. A lost notification costs time
only, because a waiter polls by itself after the time that the store tells it.
"""

import os
import threading
from contextlib import suppress


class EventWakeup:
    """An eventfd that becomes readable when another thread notifies the waiter."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # The kernel reuses the number of a closed descriptor: the mutex keeps `notify` from writing to a stranger's.
        self._mutex = threading.RLock()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the waiter was notified."""
        return self._descriptor

    def notify(self) -> None:
        """Wake the waiter; do nothing after `close`."""
        with self._mutex:
            if self._descriptor >= 0:
                os.eventfd_write(self._descriptor, 1)

    def drain(self) -> None:
        """Discard the notifications so far."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Stop listening; never raises."""
        with self._mutex:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
