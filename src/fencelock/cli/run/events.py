"""The events of a run, in one pipe: signals, the loss of the lease, and the watchdog's actions.

Promise: the reader sleeps in the kernel until an event arrives. Writing is safe in signal handlers, in other threads
and in other processes, and never blocks.
"""

import os
import select
import signal
from contextlib import suppress

LEASE_LOST = 201
"""The keeper reports that the lease is over."""
GROUP_IS_ENDED = 202
"""The watchdog reports that it has begun to end CMD's group."""
_READ_BYTES = 512


class Events:
    """A pipe of one-byte events: a signal's number, or one of the above."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)

    def take_signals(self) -> None:
        """Make every signal with a Python handler arrive here. Call it in the main thread."""
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)

    def notify(self, event: int) -> None:
        """Add an event. If the pipe is full, drop it: the reader has thousands of unread events to wake it."""
        with suppress(BlockingIOError):
            os.write(self.writer, bytes((event,)))

    def wait(self, timeout_ms: int | None) -> list[int]:
        """Return the distinct events in order of arrival; empty after `timeout_ms` (None: wait without limit)."""
        if not self._poll.poll(timeout_ms):
            return []
        return list(dict.fromkeys(os.read(self._reader, _READ_BYTES)))
