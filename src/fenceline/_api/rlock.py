"""`RLock`: a handle that the thread which holds the lock may acquire again.

Promise: re-entry returns the same lease, with the same token (T3), and costs no round trip; after a loss it raises,
and never gets a fresh grant under an outer frame that still believes in the old one. Each thread has a holding of its
own.
"""

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from fenceline._api.base_lease import BaseLease
from fenceline._api.lease import Lease
from fenceline._api.lock import BaseLock
from fenceline._api.terms import Terms, waiting

if TYPE_CHECKING:
    from fenceline._api.source import Source

AnyLease = TypeVar("AnyLease", bound=BaseLease)


class Holding(Generic[AnyLease]):
    """What one thread or task has of a re-entrant lock: its lease, and how many frames hold it."""

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

    def end(self) -> tuple[AnyLease, bool] | None:
        """Take one frame off; return the lease and whether that was the last frame, None if nothing is held."""
        lease = self.lease
        if lease is None:
            return None
        self.depth -= 1
        if not self.depth:
            self.lease = None
        return lease, not self.depth


class RLock(BaseLock):
    """A re-entrant handle to a named lock; each thread must release it as often as it acquired it."""

    def __init__(self, source: "Source", terms: Terms) -> None:
        super().__init__(terms)
        self._source = source
        self._local = threading.local()

    def __repr__(self) -> str:
        return self._described(self.current is not None)

    @property
    def current(self) -> Lease | None:
        """The lease that this thread holds by this handle."""
        return self._holding().lease

    def acquire(self, blocking: bool = True, timeout: float = -1) -> Lease | None:
        """Acquire the lock, or enter it again, and return the lease; None if it was not obtained.

        `timeout` is seconds, -1 the handle's own. LeaseExpiredError or LeaseLostError if this thread's lease was lost:
        its outer frames must end first. SourceError if the source cannot be asked.
        """
        may_wait, timeout_ms = waiting(blocking, timeout, self.timeout)
        holding = self._holding()
        if (lease := holding.again()) is not None:
            return lease
        lease = self._source.take(self._checked_terms, may_wait, timeout_ms)
        if lease is not None:
            try:
                holding.begin(lease)
            except BaseException:
                # A signal handler raised at the last moment: the caller has nothing that it could release (H5).
                holding.end()
                lease.release_soon()
                raise
        return lease

    def release(self) -> None:
        """Take one frame off, and release the lease with the last one; NotHeldError if this thread holds nothing."""
        ended = self._holding().end()
        if ended is None:
            raise self._not_held()
        lease, is_last = ended
        if is_last:
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
        ended = self._holding().end()
        if ended is None:
            raise self._not_held()
        lease, is_last = ended
        if is_last:
            lease.leave_block(error)

    def _holding(self) -> Holding[Lease]:
        holding: Holding[Lease] | None = getattr(self._local, "holding", None)
        if holding is None:
            holding = self._local.holding = Holding()
        return holding
