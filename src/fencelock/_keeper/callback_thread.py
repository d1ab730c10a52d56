"""Run the users' callbacks in a thread of their own, so that none of them can delay a renewal.

Promise: callbacks run one after another, in the order of the events, in one daemon thread that starts with the first of
them; their exceptions are logged, SystemExit too. A callback that blocks delays later callbacks and nothing else.
"""

import queue
import threading
from collections.abc import Callable

from fencelock.hooks import logger


class CallbackThread:
    """A queue of callbacks and the thread that runs them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, callback: Callable[[], object]) -> None:
        """Run the callback soon. Only the keeper's thread may call this."""
        self._queue.put(callback)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="fencelock-announcer", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            callback = self._queue.get()
            try:
                callback()
            except BaseException:
                # A callback that calls sys.exit() must not suppress the callbacks of later losses.
                logger.exception("a callback of a lease raised; the lease is over all the same")
