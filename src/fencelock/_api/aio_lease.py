"""The async lease: what `AsyncLock.acquire` returns.

Promise: as its twin, with tasks instead of threads; notifications from other threads arrive on the loop. Never: a task
cancelled that has left its block.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from fencelock._api.durations import Duration
from fencelock._api.lease import BaseLease, BaseLost, note_loss
from fencelock._api.lock_options import check_timeout
from fencelock._drivers.aio import AsyncDriver
from fencelock._flows import renewal
from fencelock._keeper.record import DEADLINE_PASSED, LeaseRecord, Listeners
from fencelock.errors import FencelockError
from fencelock.model import LeaseCheck


def call_on_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Have the loop call a function soon, from any thread; do nothing if the loop is closed."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *arguments)


class AsyncLost(BaseLost):
    """Announces that a lease was lost or has expired."""

    __slots__ = ()

    async def wait(self, timeout: Duration | None = None) -> bool:
        """Wait at most `timeout` seconds until the lease is over; return whether it was lost.

        False: it was released, or the timeout passed. None waits until the lease is over; OverflowError above
        threading.TIMEOUT_MAX.
        """
        timeout_s = check_timeout(timeout)
        over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            call_on_loop(loop, over.set)

        self._record.when_over(wake)
        try:
            async with asyncio.timeout(timeout_s):
                # Not without a bound: a deadline that passes is noticed here, whatever the keeper's thread does.
                while left_ms := self._record.remaining_ms():
                    with suppress(TimeoutError):
                        async with asyncio.timeout(left_ms / 1000):
                            await over.wait()
        except TimeoutError:
            pass
        finally:
            self._record.forget_waker(wake)
        return self.is_set()


class AsyncLease(BaseLease):
    """One time-limited holding of a lock, renewed in the background until it is released; acquiring a lock gives it.

    As an async context manager it releases itself at the end of the block.
    """

    __slots__ = ("_cancelled", "_driver", "_to_cancel")

    def __init__(self, record: LeaseRecord, listeners: Listeners, driver: AsyncDriver) -> None:
        super().__init__(record, listeners)
        self._driver = driver
        self._to_cancel: set[asyncio.Task[Any]] = set()
        self._cancelled: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        self.check_valid()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.leave_block(error)

    @property
    def lost(self) -> AsyncLost:
        """Announces the loss of this lease: `is_set()`, `await wait(timeout)`."""
        self._record.check_own()
        return AsyncLost(self._record)

    def cancel_on_lost(self) -> None:
        """Cancel the current task when the lease is lost, until it is released; soon if that has happened already. The
        CancelledError carries the reason.
        """
        self._record.check_own()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("cancel_on_lost() must be called inside the task that is to be cancelled")
        self._to_cancel.add(task)
        loop = asyncio.get_running_loop()

        def cancel(reason: str) -> None:
            call_on_loop(loop, self._cancel, task, reason)

        self._listeners.callbacks = (*self._listeners.callbacks, cancel)
        # Checked after the callback is registered: either the keeper calls it, or the loss is seen here.
        if self.lost.is_set():
            cancel(self._record.reason or DEADLINE_PASSED)

    def _cancel(self, task: "asyncio.Task[Any]", reason: str) -> None:
        """Runs on the loop, as `release` does: a task that has left its block is no longer cancelled."""
        if task in self._to_cancel:
            self._to_cancel.discard(task)
            self._cancelled.add(task)
            task.cancel(f"lock {self.lock!r} with token {self.token} was lost: {reason}")

    async def without_own_cancellation(self, error: BaseException | None) -> BaseException | None:
        """Return how the current task's block ended, if this lease had not cancelled the task; for loops of leaders.

        A cancellation that is still to arrive is waited for, so that no later line gets it; one by anybody else stays.
        """
        task = asyncio.current_task()
        if task is None or task not in self._cancelled:
            return error
        self._cancelled.discard(task)
        own = error if isinstance(error, asyncio.CancelledError) else None
        if own is None:
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as late:
                own = late
        if task.uncancel():
            return own or error
        return None if own is error else error

    async def release(self) -> bool:
        """Give the lock back; return whether the lease was still ours: False if it had expired, was lost, or was
        released before. Idempotent; never frees another holder's lock (H4).

        Waits for the lease's open guarded transactions, until its deadline at most. If the source is unavailable,
        or the task is cancelled meanwhile, the keeper goes on trying in the background. LeaseInheritedError in a
        forked child, LeaseError inside a guarded transaction of the same task.
        """
        record = self._record
        record.check_own()
        if record.open_transactions:
            record.check_may_release(self._who())
        self._to_cancel.clear()
        try:
            if not self._begin_release():
                return False
            if record.open_transactions:
                await self._driver.in_thread(record.wait_for_guarded)
            loss = await self._driver.run(renewal.end_lease(record.lock, record.claim))
        except FencelockError as error:
            return self._after_failed_release(error)
        except BaseException as error:
            self._after_failed_release(error)
            raise
        return self._after_release(loss)

    async def check(self) -> LeaseCheck:
        """Ask the source whether this lease holds the lock now, and for how long. A check is not a guard."""
        self._record.check_own()
        return await self._driver.run(renewal.check(self.sequencer))

    async def leave_block(self, error: BaseException | None) -> None:
        """End an `async with` block: release, and raise the loss after a good body, or note it on its
        exception (H3).
        """
        if self.is_inherited or not await self.release():
            note_loss(self._problem_at_end(), error)

    def enter_guarded(self, block: object) -> None:
        """Count a guarded transaction that this task begins; for guards."""
        self._record.enter_guarded(block, self._who())

    def leave_guarded(self, block: object) -> None:
        """Count a guarded transaction out if it is counted, in any task; for guards."""
        self._record.leave_guarded(block)

    def _who(self) -> int:
        return id(asyncio.current_task())
