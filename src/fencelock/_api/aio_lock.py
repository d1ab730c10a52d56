"""The async handles to a named lock: `AsyncLock` and `AsyncRLock`, twins of `Lock` and `RLock`.

Promise: as their twins, with tasks instead of threads; a cancelled acquire leaves no claim behind (H5).
"""

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fencelock._api.advice import MADE_BY_SOURCE, advised
from fencelock._api.aio_lease import AsyncLease
from fencelock._api.decorators import AsyncDecorators
from fencelock._api.durations import Duration
from fencelock._api.lock import BaseHandle, BaseLock
from fencelock._api.lock_options import LockOptions, waiting
from fencelock._api.own_leases import Holding, OwnLeases
from fencelock.errors import FencelockError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from fencelock._api.aio_source import AsyncSource


def this_task() -> "asyncio.Task[Any]":
    """Return the running task; RuntimeError outside of one."""
    try:
        task = asyncio.current_task()
    except RuntimeError as error:  # No event loop runs in this thread, or one of trio.
        raise RuntimeError(
            f"{error}: fencelock.aio needs the event loop of asyncio. Under trio, call fencelock in a thread"
        ) from None
    if task is None:
        raise RuntimeError("an async lock must be used inside a task")
    return task


class AsyncLock(BaseLock[AsyncLease], AsyncDecorators):
    """A handle to a named lock: `source.lock(name)` makes one.

    Acquire it, or use it as an async context manager, which yields the lease, or as a decorator.
    """

    @advised({}, MADE_BY_SOURCE)
    def __init__(self, source: "AsyncSource", options: LockOptions) -> None:
        super().__init__(options)
        self._source = source
        self._of_task: MutableMapping[Any, OwnLeases[AsyncLease]] = WeakKeyDictionary()

    async def acquire(self, blocking: bool = True, timeout: Duration | None = -1) -> AsyncLease | None:
        """Acquire the lock and return the lease, or None if it was not obtained; parameters and errors as
        `Lock.acquire`.
        """
        may_wait, timeout_ms = waiting(blocking, timeout, self._options.timeout_ms)
        own = self._own()
        own.check_may_acquire()
        lease = await self._source.take(self._options, may_wait, timeout_ms)
        if lease is not None:
            self._current = own.acquire(lease)
        return lease

    async def release(self) -> bool:
        """Release this task's own lease, or, if it has none, the last one acquired; return whether it was still ours.
        As `Lock.release`.
        """
        own = self._held(self._find(self._own()))
        try:
            is_ours = await own.lease.release()
        except FencelockError:
            raise
        except BaseException:
            # Cancelled: the keeper sees to the release.
            self._return(own)
            raise
        self._return(own)
        return is_ours

    async def locked(self) -> bool:
        """Ask the source whether anybody holds the lock."""
        return (await self._source.info(self.name)).is_held

    async def __aenter__(self) -> AsyncLease:
        own = self._own()
        lease = await self._source.take(self._options, True, self._options.timeout_ms)
        if lease is None:
            raise self._timed_out()
        self._enter(own, lease)
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        block = self._held(self._find_block(self._own()))
        self._forget(block)
        await block.lease.leave_block(error)

    def _own(self) -> OwnLeases[AsyncLease]:
        return self._of_task.setdefault(this_task(), OwnLeases())


class AsyncRLock(BaseHandle, AsyncDecorators):
    """A re-entrant handle to a named lock: `source.rlock(name)` makes one.

    Each task must release it as often as it acquired it.
    """

    @advised({}, MADE_BY_SOURCE)
    def __init__(self, source: "AsyncSource", options: LockOptions) -> None:
        super().__init__(options)
        self._source = source
        self._holdings: MutableMapping[Any, Holding[AsyncLease]] = WeakKeyDictionary()

    def __repr__(self) -> str:
        return self._described(any(holding.lease is not None for holding in self._holdings.values()))

    @property
    def current(self) -> AsyncLease | None:
        """The lease that this task holds by this handle."""
        return self._holding().lease

    async def acquire(self, blocking: bool = True, timeout: Duration | None = -1) -> AsyncLease | None:
        """Acquire the lock, or enter it again, and return the lease; parameters and errors as `RLock.acquire`."""
        may_wait, timeout_ms = waiting(blocking, timeout, self._options.timeout_ms)
        holding = self._holding()
        if (lease := holding.again()) is not None:
            return lease
        lease = await self._source.take(self._options, may_wait, timeout_ms)
        if lease is not None:
            holding.begin(lease)
        return lease

    async def release(self) -> bool:
        """Take one frame off, and release the lease with the last one; return whether it was still ours. NotHeldError
        if this task holds nothing.
        """
        holding = self._holding()
        lease, depth = holding.lease, holding.depth
        if lease is None:
            raise self._not_held()
        try:
            is_ours = await lease.release() if depth == 1 else lease.is_valid
        except FencelockError:
            raise
        except BaseException:
            # Cancelled: the keeper sees to the release.
            holding.end(depth)
            raise
        holding.end(depth)
        return is_ours

    async def locked(self) -> bool:
        """Ask the source whether anybody holds the lock."""
        return (await self._source.info(self.name)).is_held

    async def __aenter__(self) -> AsyncLease:
        lease = await self.acquire()
        if lease is None:
            raise self._timed_out()
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        holding = self._holding()
        lease = holding.lease
        if lease is None:
            raise self._not_held()
        if holding.end(holding.depth):
            await lease.leave_block(error)
        else:
            lease.leave_inner_block(error)

    def _holding(self) -> Holding[AsyncLease]:
        return self._holdings.setdefault(this_task(), Holding())
