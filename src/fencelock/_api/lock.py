"""`Lock` and `RLock`: handles to a named lock that behave as those of `threading`. `BaseLock` is what the twins share.

Promise: `__exit__` releases the lease that its own `__enter__` got, and no other, even if a signal handler raises in
the middle of it; `acquire` returns the lease, or None when it was not obtained; threads may share a handle. A second
acquire of a `Lock` by its holder waits. Entering an `RLock` again returns the same lease with the same token (T3) and
costs no round trip; after a loss it raises, and never gets a fresh grant under an outer frame that still believes in
the old one.
"""

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from fencelock._api.lease import BaseLease, Lease
from fencelock._api.lock_options import LockOptions, waiting
from fencelock.errors import AcquireTimeoutError, FencelockError, NotHeldError

if TYPE_CHECKING:
    from fencelock._api.source import Source


class Entered(threading.local):
    """The leases that one thread's `with` blocks over one handle got, the innermost last."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []


class BaseLock:
    """What all handles to a lock share, without I/O."""

    def __init__(self, options: LockOptions) -> None:
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


class Lock(BaseLock):
    """A handle to a named lock: `source.lock(name)` makes one.

    Acquire it, or use it as a context manager, which yields the lease.
    """

    def __init__(self, source: "Source", options: LockOptions) -> None:
        super().__init__(options)
        self._source = source
        self._entered = Entered()
        self.current: Lease | None = None
        """The lease of the last `acquire()` of this handle that was not released by the handle."""

    def __repr__(self) -> str:
        return self._described(self.current is not None)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Lease | None:
        """Acquire the lock and return the lease, or None if it was not obtained.

        `timeout` is seconds, -1 the handle's own. ValueError and OverflowError as `threading.Lock.acquire` has them,
        SourceError if the source cannot be asked.
        """
        lease = self._source.take(self._options, *waiting(blocking, timeout, self._options.timeout_ms))
        if lease is not None:
            self.current = lease
        return lease

    def release(self) -> None:
        """Release what the last `acquire()` of this handle got, from any thread; NotHeldError if there is nothing."""
        lease, self.current = self.current, None
        if lease is None:
            raise self._not_held()
        lease.release()

    def locked(self) -> bool:
        """Ask the source whether anybody holds the lock; one round trip."""
        return self._source.info(self.name).is_held

    def __enter__(self) -> Lease:
        entered = self._entered.leases
        lease = self._source.take(self._options, True, self._options.timeout_ms)
        if lease is None:
            raise self._timed_out()
        try:
            entered.append(lease)
        except BaseException:
            # A signal handler raised at the last moment: `__exit__` will not run and release the lease (H5).
            entered[:] = [kept for kept in entered if kept is not lease]
            lease.release_soon()
            raise
        return lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        entered = self._entered.leases
        if not entered:
            raise self._not_held()
        lease = entered[-1]
        try:
            entered.pop()
            lease.leave_block(error)
        except FencelockError:
            raise
        except BaseException:
            # A signal handler raised before the release was on its way: nobody else would see to it.
            lease.release_soon()
            raise


AnyLease = TypeVar("AnyLease", bound=BaseLease)


class Holding(Generic[AnyLease]):
    """A re-entrant lock in one thread or task: the lease, and how many frames hold it."""

    __slots__ = ("depth", "lease")

    def __init__(self) -> None:
        self.lease: AnyLease | None = None
        self.depth = 0

    def again(self) -> AnyLease | None:
        """Return the lease for one more frame; None if there is none yet. Raises the loss if it was lost."""
        lease = self.lease
        if lease is None or lease.is_inherited:
            return None
        lease.check_valid()
        self.depth += 1
        return lease

    def begin(self, lease: AnyLease) -> None:
        """Hold a fresh lease for a first frame."""
        self.depth = 1
        self.lease = lease

    def end(self, depth: int) -> bool:
        """Take the frame off that was entered as the `depth`th, and return whether it was the first one.

        Idempotent, so that a caller may repeat it after a signal handler interrupted it.
        """
        self.depth = depth - 1
        if depth == 1:
            self.lease = None
        return depth == 1


class _Local(threading.local):
    def __init__(self) -> None:
        self.holding: Holding[Lease] = Holding()


class RLock(BaseLock):
    """A re-entrant handle to a named lock: `source.rlock(name)` makes one.

    Each thread must release it as often as it acquired it.
    """

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

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Lease | None:
        """Acquire the lock, or enter it again, and return the lease; None if it was not obtained.

        `timeout` is seconds, -1 the handle's own. LeaseExpiredError or LeaseLostError if this thread's lease was lost:
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

    def release(self) -> None:
        """Take one frame off, and release the lease with the last one; NotHeldError if this thread holds nothing."""
        holding = self._local.holding
        lease = holding.lease
        if lease is None:
            raise self._not_held()
        if holding.end(holding.depth):
            lease.release()

    def locked(self) -> bool:
        """Ask the source whether anybody holds the lock; one round trip."""
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
