"""The wakeup of one waiting claim inside this process: a descriptor that a driver can wait on.

Promise: `notify` never blocks and may be called from any thread, also after `close`. A lost notification costs time
only, because a waiter polls by itself after the time that the store tells it.
"""

import threading

from fencelock._platform import Notification


class EventWakeup:
    """A descriptor that becomes readable when another thread notifies the waiter."""

    def __init__(self) -> None:
        self._notification = Notification()
        # The kernel reuses the number of a closed descriptor: the mutex keeps `notify` from writing to a stranger's.
        self._mutex = threading.RLock()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the waiter was notified."""
        return self._notification.fileno()

    def notify(self) -> None:
        """Wake the waiter; do nothing after `close`."""
        with self._mutex:
            if self._notification.fileno() >= 0:
                self._notification.notify()

    def drain(self) -> None:
        """Discard the notifications so far."""
        self._notification.drain()

    def close(self) -> None:
        """Stop listening; never raises."""
        with self._mutex:
            if self._notification.fileno() >= 0:
                self._notification.close()
