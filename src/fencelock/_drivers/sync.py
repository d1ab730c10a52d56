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
from fencelock.protocol.source_requests import (
    Acquire,
    Draw,
    DriverRequest,
    Listen,
    Now,
    SourceFlow,
    SourceRequest,
    Wait,
)
from fencelock.protocol.stores import Channel, SourceStore

REQUEST_TIMEOUT_S = 5.0
"""How long a caller's request waits for a busy store before SourceUnavailableError."""
STOP_CHECK_MS = 100
"""How often a caller who may wait no longer is asked: an event of threading cannot be waited for with a descriptor."""
IsStopped = Callable[[], bool]
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

    def run(self, flow: SourceFlow[Result], is_stopped: IsStopped | None = None) -> Result:
        """Run the flow to its end and return its result; `is_stopped` says that the caller waits no longer."""
        channels: list[Channel] = []
        try:
            result = run_generator(flow, partial(self._answer, channels, is_stopped))
            # A grant that arrives after the exit has released the process's leases would be held for its ttl.
            SHUTDOWN.check_acquired()
            return result
        finally:
            SHUTDOWN.end_acquire()
            for channel in channels:
                channel.close()

    def _answer(
        self, channels: list[Channel], is_stopped: IsStopped | None, request: SourceRequest | DriverRequest
    ) -> object:
        # Tests of type, not patterns: this runs for every request of every flow.
        if not isinstance(request, DRIVER_REQUESTS):
            if type(request) is Acquire:
                SHUTDOWN.begin_acquire()
            return self._pool.perform(request)
        if isinstance(request, Draw):
            return draw_claim(), self._now_us()
        if isinstance(request, Now):
            return self._now_us() // US_PER_MS
        if isinstance(request, Listen):
            channels.append(self._store.listen(request.lock, request.claim))
            return None
        return wait_for_channels(channels, request.timeout_ms, is_stopped)

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()


def wait_for_channels(channels: list[Channel], timeout_ms: int, is_stopped: IsStopped | None = None) -> bool:
    """Sleep until a channel is notified, for `timeout_ms` at most; SourceError when the interpreter ends.

    Return whether the caller waits no longer, for which it is asked every STOP_CHECK_MS.
    """
    waiting = select.poll()
    waiting.register(SHUTDOWN.fileno(), select.POLLIN)
    for channel in channels:
        waiting.register(channel.fileno(), select.POLLIN)
    thread = threading.get_ident()
    SHUTDOWN.waiting.add(thread)
    try:
        has_ended = _poll(waiting, timeout_ms, is_stopped)
    finally:
        SHUTDOWN.waiting.discard(thread)
    SHUTDOWN.check()
    for channel in channels:
        # Before the source is polled: a notification that comes later is about something that the poll may have missed.
        channel.drain()
    return has_ended


def _poll(waiting: "select.poll", timeout_ms: int, is_stopped: IsStopped | None) -> bool:
    # One millisecond more than asked: poll() rounds down, and waking too early costs a round trip.
    left_ms = timeout_ms + 1
    if is_stopped is None:
        waiting.poll(left_ms)
        return False
    while not is_stopped():
        if left_ms <= 0 or waiting.poll(min(left_ms, STOP_CHECK_MS)):
            return False
        left_ms -= STOP_CHECK_MS
    return True
