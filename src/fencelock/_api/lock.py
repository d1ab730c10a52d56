"""`Lock`: a handle to a named lock, with the manners of `threading.Lock`.

Promise: `__exit__` releases the lease that its own `__enter__` got, and no other, also when a signal handler raises in
the middle of it; `acquire` returns the lease, or None when it was not obtained; a handle may be shared by threads. A
second acquire by the holder waits, as a plain lock's does.
"""

import threading
from types import TracebackType
from typing import TYPE_CHECKING

from fencelock._api.lease import Lease
from fencelock._api.lock_options import LockOptions, waiting
from fencelock.errors import AcquireTimeoutError, FencelockError, NotHeldError

if TYPE_CHECKING:
    from fencelock._api.source import Source


class Entered(threading.local):
    """The leases that one thread's `with` blocks over one handle got, the innermost last."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []


class BaseLock:
    """What the handles share, without I/O."""

    def __init__(self, terms: LockOptions) -> None:
        self._checked_terms = terms

    @property
    def name(self) -> str:
        """The lock's name."""
        return self._checked_terms.name

    @property
    def ttl(self) -> float:
        """The length of the leases that this handle asks for, in seconds."""
        return self._checked_terms.ttl_ms / 1000

    @property
    def timeout(self) -> float | None:
        """How long this handle waits for the lock, in seconds; None: for ever."""
        return self._checked_terms.timeout

    def _described(self, is_locked: bool) -> str:
        state = "locked" if is_locked else "unlocked"
        return f"<{state} fencelock.{type(self).__name__} object {self.name!r} at {id(self):#x}>"

    def _timed_out(self) -> AcquireTimeoutError:
        return AcquireTimeoutError(
            f"lock {self.name!r} was not obtained within {self.timeout:g} s; the place in the queue is given up. "
            f"`fencelock show` tells who holds it"
        )

    def _not_held(self) -> NotHeldError:
        return NotHeldError(f"lock {self.name!r} cannot be released: this handle holds nothing; acquire it first")


class Lock(BaseLock):
    """A handle to a named lock: `source.lock(name)` makes one.

    Acquire it, or use it as a context manager, which yields the lease.
    """

    def __init__(self, source: "Source", terms: LockOptions) -> None:
        super().__init__(terms)
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
        lease = self._source.take(self._checked_terms, *waiting(blocking, timeout, self._checked_terms.timeout_ms))
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
        lease = self._source.take(self._checked_terms, True, self._checked_terms.timeout_ms)
        if lease is None:
            raise self._timed_out()
        try:
            entered.append(lease)
        except BaseException:
            # A signal handler raised at the last moment: `__exit__` will not run, so nobody else would release it (H5).
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
