"""Run a flow in the caller's thread.

Promise: exceptions from the store, and those that a signal handler raises in the middle of a request, are thrown into
the flow. A waiting thread sleeps in the kernel; the store's channel, a signal or the interpreter's end wakes it.
"""

import select
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from fencelock._drivers.pool import pool_for
from fencelock._drivers.shutdown import SHUTDOWN
from fencelock._flows.acquire import US_PER_MS
from fencelock.clock import boottime_us
from fencelock.model import draw_claim
from fencelock.protocol.generators import run_generator
from fencelock.protocol.source_requests import Draw, DriverRequest, Listen, Now, SourceFlow, SourceRequest, Wait
from fencelock.protocol.stores import Channel, SourceStore

REQUEST_TIMEOUT_S = 5.0
"""How long a caller's request waits for a busy store before SourceUnavailableError."""
DRIVER_REQUESTS = (Draw, Now, Listen, Wait)
"""The requests that the driver answers itself."""
Result = TypeVar("Result")


class SyncDriver:
    """Runs flows against one source; any thread may run any number of them."""

    def __init__(
        self,
        store: SourceStore,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        now_us: Callable[[], int] = boottime_us,
    ) -> None:
        self._store = store
        self._pool = pool_for(store, request_timeout_s)
        self._now_us = now_us

    def run(self, flow: SourceFlow[Result]) -> Result:
        """Run the flow to its end and return its result."""
        channels: list[Channel] = []
        try:
            return run_generator(flow, partial(self._answer, channels))
        finally:
            for channel in channels:
                channel.close()

    def _answer(self, channels: list[Channel], request: SourceRequest | DriverRequest) -> object:
        # Tests of type, not patterns: this runs for every request of every flow.
        if not isinstance(request, DRIVER_REQUESTS):
            return self._pool.perform(request)
        if isinstance(request, Draw):
            return draw_claim(), self._now_us()
        if isinstance(request, Now):
            return self._now_us() // US_PER_MS
        if isinstance(request, Listen):
            channels.append(self._store.listen(request.lock, request.claim))
        else:
            wait_for_channels(channels, request.timeout_ms)
        return None

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


def wait_for_channels(channels: list[Channel], timeout_ms: int) -> None:
    """Sleep until a channel is notified, for `timeout_ms` at most; SourceError when the interpreter ends."""
    waiting = select.poll()
    waiting.register(SHUTDOWN.fileno(), select.POLLIN)
    for channel in channels:
        waiting.register(channel.fileno(), select.POLLIN)
    thread = threading.get_ident()
    SHUTDOWN.waiting.add(thread)
    # One millisecond more than asked: poll() rounds down, and waking too early costs a round trip.
    try:
        waiting.poll(timeout_ms + 1)
    finally:
        if not SHUTDOWN.has_begun:
            SHUTDOWN.waiting.discard(thread)
    SHUTDOWN.check()
    for channel in channels:
        channel.drain()
