"""`source.lead` for asyncio, twin of `leading.py`.

Promise: as its twin; and a task that `lease.cancel_on_lost()` has cancelled campaigns again. Any other cancellation
leaves the loop.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self

from fencelock._api.aio_lease import AsyncLease
from fencelock._api.leading import STOP_CHECK_S, BaseTerm, LeaderLoop, StopEvent
from fencelock._api.uncopyable import Uncopyable
from fencelock._drivers.sync import IsStopped
from fencelock.errors import LeaseError
from fencelock.hooks import Hooks


class AsyncTerm(BaseTerm):
    """One term of leadership: `async with term as lease:` is its block, which ends it. `source.lead(…)` yields them."""

    _lease: AsyncLease

    def __init__(self, loop: LeaderLoop, lease: AsyncLease) -> None:
        super().__init__(loop)
        self._lease = lease

    async def __aenter__(self) -> AsyncLease:
        self._enter()
        return self._lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._loop.leave_term()
        ended = await self._lease.without_own_cancellation(error)
        try:
            await self._lease.leave_block(ended)
        except LeaseError as loss:
            # The body ended well, and its lease had not lasted.
            if not self._goes_on(loss):
                raise
            return True
        if ended is not None and ended is not error:  # A cancellation that arrived after the body.
            raise ended
        return self._goes_on(ended)


class AsyncTerms(Uncopyable):
    """The loop over terms: an asynchronous iterator. `source.lead(…)` makes one."""

    _instead = "it is a loop of one task. Call source.lead(…) for each"

    def __init__(
        self,
        take: Callable[[IsStopped], Awaitable[AsyncLease | None]],
        name: str,
        hooks: Hooks,
        stop: StopEvent | None,
        retry_on: Iterable[type[Exception]],
    ) -> None:
        self._loop = LeaderLoop(name, hooks, stop, retry_on)
        self._take = take

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncTerm:
        loop = self._loop
        loop.check_last()
        while await self._has_paused():
            try:
                lease = await self._take(loop.is_stopped)
            except Exception as error:
                if not loop.goes_on_without(error):
                    raise
                continue
            if lease is not None and not loop.is_stopped():
                loop.begin_term(lease)
                return AsyncTerm(loop, lease)
            if lease is not None:
                await lease.release()
        raise StopAsyncIteration

    async def _has_paused(self) -> bool:
        """Pause before the next campaign; return False as soon as the loop is to end."""
        end_s = time.monotonic() + self._loop.pause_s
        while not self._loop.is_stopped():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return True
            await asyncio.sleep(min(left_s, STOP_CHECK_S))
        return False
