"""Run the users' callbacks in a thread of their own, so that none of them can delay a renewal.

Promise: callbacks run one after another, in the order of the events, in one daemon thread; their exceptions are logged,
SystemExit too. A callback that blocks delays later callbacks and nothing else. The thread runs before the first lease
is granted, so that a loss is told even if no thread can be started at that moment.
"""

import queue
from collections.abc import Callable

from fencelock._threads import BackgroundThread
from fencelock.hooks import logger


class CallbackThread:
    """A queue of callbacks and the thread that runs them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._background = BackgroundThread("fencelock-callbacks")

    def start(self) -> None:
        """Start the thread unless it runs; SourceUnavailableError if it cannot be started."""
        self._background.start(self._run)

    def submit(self, callback: Callable[[], object]) -> None:
        """Run the callback soon."""
        self._queue.put(callback)

    def _run(self) -> None:
        while True:
            callback = self._queue.get()
            try:
                callback()
            except BaseException:
                # A callback that calls sys.exit() must not suppress the callbacks of later losses.
                logger.exception("a callback of a lease raised; the lease is over all the same")
