"""`fencelock.aio.dispatch`, twin of `dispatch.py`.

Promise: as its twin; a task that is cancelled inside the block leaves the intent, as any exception does. One that is
cancelled while the result is being recorded gets its CancelledError after that.
"""

import asyncio
from types import TracebackType
from typing import Self

from fencelock._api.aio_guard import AsyncGuard
from fencelock._api.aio_lease import AsyncLease
from fencelock._api.dispatch import BaseDispatch, Result
from fencelock._api.durations import Duration
from fencelock._api.executors import executor_for
from fencelock._api.guard_core import check_free
from fencelock._drivers.uncancelled import wait_to_the_end
from fencelock.protocol.guard_requests import GuardFlow


class AsyncDispatch(BaseDispatch):
    """The `async with` block of one effect; `fencelock.aio.dispatch(…)` makes one."""

    def __init__(self, lease: AsyncLease, guard: AsyncGuard, key: str, need: Duration, may_repeat: bool) -> None:
        super().__init__(lease, guard, key, need, may_repeat)
        self._holder = lease
        self._executor = executor_for(self._core)

    async def __aenter__(self) -> Self:
        self._lease.check_valid()
        self._check(await self._holder.check())
        begun = await self._run(self._begin())
        self._core.emit_opened(self._holder, begun.opened)
        if self._is_to_take_back(begun):
            remaining = self._lease.remaining()
            await self._run(self._take_back())
            raise self._too_late(remaining)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self._run(self._end())

    async def _run(self, flow: GuardFlow[Result]) -> Result:
        check_free(self._core.scope.url, asyncio.current_task())
        with self._core.emitting_refusals(self._holder):
            return await wait_to_the_end(asyncio.ensure_future(self._executor.run(flow)))


def dispatch(
    lease: AsyncLease, guard: AsyncGuard, *, key: str, need: Duration, may_repeat: bool = False
) -> AsyncDispatch:
    """Return the `async with` block of an effect that nothing can fence. As `fencelock.dispatch`."""
    return AsyncDispatch(lease, guard, key, need, may_repeat)
