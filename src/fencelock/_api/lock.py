"""`Lock` and `RLock`: handles to a named lock that behave as those of `threading`. `BaseLock` is what the twins share.

Promise: `__exit__` releases the lease that its own `__enter__` got, and no other, even if a signal handler raises in
the middle of it; `acquire` returns the lease, or None when it was not obtained. Threads may share a handle: `release`
ends the thread's own lease, even one that is over, and never another thread's; a thread that has none ends the last
one acquired (H4). A second acquire of a `Lock` by its holder waits. Entering an `RLock` again returns the same lease
with the same token (T3) and costs no round trip; after a loss it raises, and never gets a fresh grant under an outer
frame that still believes in the old one.
"""

import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Generic

from fencelock._api.advice import MADE_BY_SOURCE, advised
from fencelock._api.decorators import Decorators
from fencelock._api.durations import Duration
from fencelock._api.lease import Lease
from fencelock._api.lock_options import LockOptions, waiting
from fencelock._api.own_leases import AnyLease, Holding, OwnLease, OwnLeases
from fencelock._api.uncopyable import Uncopyable
from fencelock.errors import AcquireTimeoutError, FencelockError, NotHeldError

if TYPE_CHECKING:
    from fencelock._api.source import Source


class BaseHandle(Uncopyable):
    """What all handles to a lock share, without I/O."""

    _instead = "it knows which thread has which lease. Make another handle of the same name"

    def __init__(self, options: LockOptions) -> None:
        if not isinstance(options, LockOptions):
            raise TypeError(f"{type(self).__name__}() is not for programs: {MADE_BY_SOURCE}")
        self._options = options

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._options.name

    @property
    def ttl(self) -> float:
        """The length of the leases that this handle asks for, in seconds."""
        return self._options.ttl_ms / 1000

    @property
    def timeout(self) -> float | None:
        """How long this handle waits for the lock, in seconds; None: for ever."""
        return self._options.timeout

    def _described(self, is_locked: bool) -> str:
        state = "locked" if is_locked else "unlocked"
        return f"<{state} fencelock.{type(self).__name__} object {self.name!r} at {id(self):#x}>"

    def _timed_out(self) -> AcquireTimeoutError:
        return AcquireTimeoutError(
            f"lock {self.name!r} was not obtained within {self.timeout:g} s; this waiter has left the queue. "
            f"`fencelock show` tells who holds it"
        )

    def _not_held(self) -> NotHeldError:
        return NotHeldError(f"lock {self.name!r} cannot be released: this handle holds nothing; acquire it first")


class BaseLock(BaseHandle, Generic[AnyLease]):
    """What `Lock` and its async twin share, without I/O: which lease a release ends."""

    def __init__(self, options: LockOptions) -> None:
        super().__init__(options)
        self._current: OwnLease[AnyLease] | None = None
        self._blocks: list[OwnLease[AnyLease]] = []
        """The `with` blocks that are open, in all threads."""

    def __repr__(self) -> str:
        return self._described(self._current is not None)

    @property
    def current(self) -> AnyLease | None:
        """The lease of the last `acquire()` of this handle, in any thread, that the handle has not released."""
        current = self._current  # Read once: another thread may release it meanwhile.
        return None if current is None else current.lease

    def _find(self, own: OwnLeases[AnyLease]) -> OwnLease[AnyLease] | None:
        return own.newest() or self._current

    def _find_block(self, own: OwnLeases[AnyLease]) -> OwnLease[AnyLease] | None:
        """Return the block that ends: the thread's innermost one, or, if it has none, the only one that is open.

        A generator, and the block in it, may be closed by another thread, or by a task of the event loop's own.
        """
        if (block := own.innermost_block()) is not None:
            return block
        others = self._blocks.copy()
        return others[0] if len(others) == 1 else None

    def _held(self, found: OwnLease[AnyLease] | None) -> OwnLease[AnyLease]:
        if found is None:
            raise self._not_held()
        return found

    def _return(self, own: OwnLease[AnyLease]) -> None:
        own.set_returned()
        self._drop_current(own)

    def _enter(self, own: OwnLeases[AnyLease], lease: AnyLease) -> None:
        self._blocks.append(own.enter(lease))

    def _undo_enter(self, own: OwnLeases[AnyLease], lease: AnyLease) -> None:
        own.undo_enter(lease)
        for block in [block for block in self._blocks if block.lease is lease]:
            self._forget(block)

    def _forget(self, block: OwnLease[AnyLease]) -> None:
        block.forget()
        with suppress(ValueError):
            self._blocks.remove(block)
        self._drop_current(block)

    def _not_held(self) -> NotHeldError:
        if len(self._blocks) > 1:
            return NotHeldError(
                f"lock {self.name!r} cannot be released: this thread or task has entered no block of this handle, and "
                f"{len(self._blocks)} others have. Enter the lease itself, `with lock.acquire():`, where a block may "
                f"end in another thread or task than it began in"
            )
        return super()._not_held()

    def _drop_current(self, own: OwnLease[AnyLease]) -> None:
        if self._current is own:
            self._current = None


class _OfThread(threading.local):
    """One thread's own leases; a thread takes them along when it ends, and no later thread has them."""

    def __init__(self) -> None:
        self.own: OwnLeases[Lease] = OwnLeases()


class Lock(BaseLock[Lease], Decorators):
    """A handle to a named lock: `source.lock(name)` makes one.

    Acquire it, or use it as a context manager, which yields the lease, or as a decorator.
    """

    @advised({}, MADE_BY_SOURCE)
    def __init__(self, source: "Source", options: LockOptions) -> None:
        super().__init__(options)
        self._source = source
        self._of_thread = _OfThread()

    def acquire(self, blocking: bool = True, timeout: Duration | None = -1) -> Lease | None:
        """Acquire the lock and return the lease, or None if it was not obtained.

        `timeout` is seconds or a timedelta, None waits for ever, and -1 is the handle's own. ValueError and
        OverflowError as `threading.Lock.acquire` has them, SourceError if the source cannot be asked.
        """
        may_wait, timeout_ms = waiting(blocking, timeout, self._options.timeout_ms)
        own = self._of_thread.own
        own.check_may_acquire()
        lease = self._source.take(self._options, may_wait, timeout_ms)
        if lease is not None:
            try:
                self._current = own.acquire(lease)
            except BaseException:
                # A signal handler raised at the last moment: the caller has no lease to release (H5).
                own.undo_acquire(lease)
                lease.release_soon()
                raise
        return lease

    def release(self) -> bool:
        """Release this thread's own lease, or, if it has none, the last one acquired; return whether it was still ours.

        Its own is the last lease that the thread got from this handle and has not released through it, even if that
        is over: then this returns False, and ends no other thread's (H4). NotHeldError if there is nothing to release.
        """
        own = self._of_thread.own
        found = None
        try:
            found = self._held(self._find(own))
            is_ours = found.lease.release()
            # After the release: inside a guarded block that raises LeaseError, and the lease is still held.
            self._return(found)
        except FencelockError:
            raise
        except BaseException:
            # A signal handler raised before the release was on its way: nobody else would see to it.
            if (found := found or self._find(own)) is not None:
                self._return(found)
                found.lease.release_soon()
            raise
        return is_ours

    def locked(self) -> bool:
        """Ask the source whether anybody holds the lock."""
        return self._source.info(self.name).is_held

    def __enter__(self) -> Lease:
        own = self._of_thread.own
        lease = self._source.take(self._options, True, self._options.timeout_ms)
        if lease is None:
            raise self._timed_out()
        try:
            self._enter(own, lease)
        except BaseException:
            # A signal handler raised at the last moment: `__exit__` will not run and release the lease (H5).
            self._undo_enter(own, lease)
            lease.release_soon()
            raise
        return lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        own = self._of_thread.own
        block = None
        try:
            block = self._held(self._find_block(own))
            # Before the release: whatever it raises, the block is over.
            self._forget(block)
            block.lease.leave_block(error)
        except FencelockError:
            raise
        except BaseException:
            # A signal handler raised before the release was on its way: nobody else would see to it.
            if (block := block or self._find_block(own)) is not None:
                self._forget(block)
                block.lease.release_soon()
            raise


class _Local(threading.local):
    def __init__(self) -> None:
        self.holding: Holding[Lease] = Holding()


class RLock(BaseHandle, Decorators):
    """A re-entrant handle to a named lock: `source.rlock(name)` makes one.

    Each thread must release it as often as it acquired it.
    """

    @advised({}, MADE_BY_SOURCE)
    def __init__(self, source: "Source", options: LockOptions) -> None:
        super().__init__(options)
        self._source = source
        self._local = _Local()

    def __repr__(self) -> str:
        return self._described(self.current is not None)

    @property
    def current(self) -> Lease | None:
        """The lease that this thread holds by this handle."""
        return self._local.holding.lease

    def acquire(self, blocking: bool = True, timeout: Duration | None = -1) -> Lease | None:
        """Acquire the lock, or enter it again, and return the lease; None if it was not obtained.

        `timeout` as for `Lock.acquire`. LeaseExpiredError or LeaseLostError if this thread's lease was lost:
        its outer frames must end first. SourceError if the source cannot be asked.
        """
        may_wait, timeout_ms = waiting(blocking, timeout, self._options.timeout_ms)
        holding = self._local.holding
        if (lease := holding.again()) is not None:
            return lease
        lease = self._source.take(self._options, may_wait, timeout_ms)
        if lease is not None:
            try:
                holding.begin(lease)
            except BaseException:
                # A signal handler raised at the last moment: the caller has no lease to release (H5).
                holding.end(1)
                lease.release_soon()
                raise
        return lease

    def release(self) -> bool:
        """Take one frame off, and release the lease with the last one; return whether it was still ours.

        NotHeldError if this thread holds nothing.
        """
        holding = self._local.holding
        lease, depth = holding.lease, holding.depth
        if lease is None:
            raise self._not_held()
        try:
            # Before the frame is off: inside a guarded block this raises LeaseError, and the lease is still held.
            is_ours = lease.release() if depth == 1 else lease.is_valid
            holding.end(depth)
        except FencelockError:
            raise
        except BaseException:
            # A signal handler raised before the frame was off, or before the release was on its way.
            if holding.end(depth):
                lease.release_soon()
            raise
        return is_ours

    def locked(self) -> bool:
        """Ask the source whether anybody holds the lock."""
        return self._source.info(self.name).is_held

    def __enter__(self) -> Lease:
        lease = self.acquire()
        if lease is None:
            raise self._timed_out()
        return lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        holding = self._local.holding
        lease, depth = holding.lease, holding.depth
        if lease is None:
            raise self._not_held()
        try:
            if holding.end(depth):
                lease.leave_block(error)
            else:
                lease.leave_inner_block(error)
        except FencelockError:
            raise
        except BaseException:
            # A signal handler raised before the frame was off, or before the release was on its way.
            if holding.end(depth):
                lease.release_soon()
            raise
