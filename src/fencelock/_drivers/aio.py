"""Run a flow on an event loop: round trips on the loop where the store's client speaks asyncio, else in threads.

Promise: a request never blocks the loop, and a cancelled task gets its CancelledError at once. A request that runs in a
thread then ends there, and its connection goes back to the pool; a request that runs on the loop has its connection
closed. The keeper abandons the claim: the source refuses one that was released before it arrived (H4). Acquires of
one lock enter its queue in the order of their calls (H7).
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

from fencelock._drivers.aio_pool import AsyncPool
from fencelock._drivers.pool import Pool, pool_for
from fencelock._drivers.sync import REQUEST_TIMEOUT_S, STOP_CHECK_MS, IsStopped
from fencelock._drivers.turns import Turn, Turns
from fencelock._flows.acquire import US_PER_MS
from fencelock._threads import do_nothing, mapping_start_failures
from fencelock.clock import boottime_us
from fencelock.model import draw_claim
from fencelock.protocol.generators import run_generator_async
from fencelock.protocol.source_requests import (
    Draw,
    DriverRequest,
    Listen,
    Now,
    SourceFlow,
    SourceReply,
    SourceRequest,
    Wait,
)
from fencelock.protocol.stores import AsyncSourceStore, Channel, SourceStore

MAX_THREADS = 4
Result = TypeVar("Result")


class _Executor(ThreadPoolExecutor):
    """A pool whose first thread is there from the beginning, so that work which was taken in is always done."""

    def __init__(self) -> None:
        super().__init__(MAX_THREADS, thread_name_prefix="fencelock")
        self.submit(do_nothing)

    def _adjust_thread_count(self) -> None:
        # `submit` has queued the work before it calls this. An error would tell the caller that the work is not done,
        # and the next thread that is free would do it all the same.
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                raise


class Threads:
    """A few threads for blocking calls, started when first needed, and started again in a forked child."""

    def __init__(self) -> None:
        self._of_process: dict[int, ThreadPoolExecutor] = {}
        """This process's pool by its id, once there is one; and its parent's, which is not its own."""

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a blocking function in a thread and return its result."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.started(), function, *arguments)

    def started(self) -> ThreadPoolExecutor:
        """Return the pool, with a thread that runs; SourceUnavailableError if none can be started."""
        process_id = os.getpid()
        if (executor := self._of_process.get(process_id)) is None:
            with mapping_start_failures():
                made = _Executor()
            # In one step: loops of several threads may start it at the same moment, and one pool is enough.
            executor = self._of_process.setdefault(process_id, made)
            if executor is not made:
                made.shutdown(wait=False)
        return executor

    @property
    def are_running(self) -> bool:
        """Whether this process has used them."""
        return os.getpid() in self._of_process

    def close(self) -> None:
        """Let the threads end after their current work."""
        if (executor := self._of_process.pop(os.getpid(), None)) is not None:
            executor.shutdown(wait=False)


class AsyncDriver:
    """Runs flows against one source, for any number of tasks on any loop."""

    def __init__(self, store: SourceStore, *, now_us: Callable[[], int] = boottime_us) -> None:
        self._store = store
        self._threads = Threads()
        self._pool: Pool | AsyncPool
        self._perform: Callable[[SourceRequest], Awaitable[SourceReply]]
        if store.capabilities.speaks_asyncio:
            self._pool = AsyncPool(cast("AsyncSourceStore", store), REQUEST_TIMEOUT_S)
            self._perform = self._pool.perform
        else:
            self._pool = pool_for(store, REQUEST_TIMEOUT_S)
            self._perform = partial(self._threads.run, self._pool.perform)
        self._now_us = now_us
        self._turns = Turns()

    async def run(self, flow: SourceFlow[Result]) -> Result:
        """Run the flow to its end and return its result."""
        return await self._run(flow, None)

    async def run_in_turn(
        self,
        lock: str,
        timeout_ms: int | None,
        begin: Callable[[int | None], SourceFlow[Result | None]],
        is_stopped: IsStopped | None = None,
    ) -> Result | None:
        """Run an acquire of the lock as soon as those that began earlier on this loop are in its queue.

        `begin` makes the flow; it is passed what is left of the timeout. None if that passed before its turn came.
        `is_stopped` says that the caller waits no longer.
        """
        turn = self._turns.enter(lock)
        try:
            left_ms = await turn.wait(timeout_ms)
            return None if turn.is_late else await self._run(begin(left_ms), turn, is_stopped)
        finally:
            turn.leave()

    async def _run(self, flow: SourceFlow[Result], turn: Turn | None, is_stopped: IsStopped | None = None) -> Result:
        channels: list[Channel] = []
        try:
            return await run_generator_async(flow, lambda request: self._answer(request, channels, turn, is_stopped))
        finally:
            for channel in channels:
                channel.close()

    async def _answer(
        self,
        request: SourceRequest | DriverRequest,
        channels: list[Channel],
        turn: Turn | None,
        is_stopped: IsStopped | None,
    ) -> object:
        match request:
            case Now():
                return self._now_us() // US_PER_MS
            case Draw():
                return draw_claim(), self._now_us()
            case Listen():
                # A flow listens as soon as its claim is in the queue.
                if turn is not None:
                    turn.leave()
                channels.append(self._store.listen(request.lock, request.claim))
                return None
            case Wait():
                return await _wait_for_channels(channels, request.timeout_ms, is_stopped)
            case _:
                return await self._perform(request)

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a blocking function in one of the driver's threads."""
        return await self._threads.run(function, *arguments)

    async def close(self) -> None:
        """Close the connections; in a thread those that were used in threads, for their end may wait for a server."""
        try:
            if self._threads.are_running:
                await self._threads.run(self._pool.close)
            else:
                self._pool.close()
        finally:
            self._threads.close()


async def _wait_for_channels(channels: list[Channel], timeout_ms: int, is_stopped: IsStopped | None) -> bool:
    """Sleep until a channel is notified, for `timeout_ms` at most; return whether the caller waits no longer."""
    loop = asyncio.get_running_loop()
    woken = asyncio.Event()
    for channel in channels:
        loop.add_reader(channel.fileno(), woken.set)
    end_s = loop.time() + timeout_ms / 1000
    try:
        while not (has_ended := is_stopped is not None and is_stopped()) and not woken.is_set():
            left_s = end_s - loop.time()
            if left_s <= 0:
                break
            # Not wait_for(): in Python 3.11 it can swallow a cancellation that arrives together with the result.
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s if is_stopped is None else min(left_s, STOP_CHECK_MS / 1000)):
                    await woken.wait()
    finally:
        for channel in channels:
            loop.remove_reader(channel.fileno())
            # Before the source is polled: a notification that comes later tells what the poll may have missed.
            channel.drain()
    return has_ended
