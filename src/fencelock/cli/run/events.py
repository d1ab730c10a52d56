"""What happens to a run, in one pipe: signals, the loss of the lease, and what the watchdog does.

Promise: whoever waits sleeps in the kernel until one of these happens. Writing is safe in signal handlers,
in other threads and in other processes, and never blocks.
"""

import os
import select
import signal
from contextlib import suppress

LEASE_LOST = 201
"""The keeper says that the lease is over."""
GROUP_IS_ENDED = 202
"""The watchdog says that it has begun to end CMD's group."""
_READ_BYTES = 512


class Events:
    """A pipe of one-byte events: a signal's number, or one of the above."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()
        os.set_blocking(self.writer, False)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)

    def take_signals(self) -> None:
        """Have every signal with a Python handler arrive here; to be called in the main thread."""
        signal.set_wakeup_fd(self.writer, warn_on_full_buffer=False)

    def tell(self, event: int) -> None:
        """Add an event; one that does not fit is dropped: whoever reads has thousands to wake it."""
        with suppress(BlockingIOError):
            os.write(self.writer, bytes((event,)))

    def wait(self, timeout_ms: int | None) -> list[int]:
        """Return what has happened, in its order, each once; empty after `timeout_ms` (None: for ever)."""
        if not self._poll.poll(timeout_ms):
            return []
        return list(dict.fromkeys(os.read(self._reader, _READ_BYTES)))
