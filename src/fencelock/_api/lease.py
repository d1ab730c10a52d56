"""The sync lease: what `Lock.acquire` returns.

Promise: `release` gives the lock back at most once, after the lease's own guarded transactions have ended; a failure to
tell the source is logged and left to the keeper. Never: the lock of somebody else freed, a loss left untold.
"""

import queue
import threading
from contextlib import suppress

from fencelock._api.base_lease import BaseLease, note_loss
from fencelock._drivers.sync import SyncDriver
from fencelock._flows import renewal
from fencelock._keeper.record import RELEASED, LeaseRecord, Listeners
from fencelock.errors import FencelockError


class Lost:
    """Announces that a lease was lost or has expired; like an Event that nobody can clear."""

    __slots__ = ("_record",)

    def __init__(self, record: LeaseRecord) -> None:
        self._record = record

    def is_set(self) -> bool:
        """Return whether the lease was lost or its deadline has passed, at this moment."""
        return self._record.is_lost()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the lease is over, `timeout` seconds at most; return whether it was lost (False: released, or
        timeout).
        """
        # Not an Event, whose lock is not re-entrant: `release_soon` wakes this thread, perhaps from a signal handler
        # that runs in this very thread.
        over: queue.SimpleQueue[None] = queue.SimpleQueue()

        def wake() -> None:
            over.put(None)

        self._record.when_over(wake)
        try:
            with suppress(queue.Empty):
                over.get(timeout=None if timeout is None else max(0, timeout))
        finally:
            self._record.forget_waker(wake)
        return self.is_set()


class Lease(BaseLease):
    """One time-limited holding of a lock, renewed in the background until it is released; acquiring a lock gives it."""

    __slots__ = ("_driver",)

    def __init__(self, record: LeaseRecord, audience: Listeners, driver: SyncDriver) -> None:
        super().__init__(record, audience)
        self._driver = driver

    @property
    def lost(self) -> Lost:
        """Tells of the loss of this lease: `is_set()`, `wait(timeout)`."""
        self._record.check_own()
        return Lost(self._record)

    def release(self) -> bool:
        """Give the lock back; return whether it was still ours. Idempotent, and never frees somebody else's lock (H4).

        Waits for the lease's open guarded transactions, until its deadline at most. If the source cannot be told now,
        the keeper goes on trying in the background, and the ttl ends the lease at the latest. LeaseInheritedError in a
        forked child, LeaseError inside a guarded transaction of the same thread.
        """
        record = self._record
        record.check_own()
        if record.open_transactions:
            record.check_may_release(self._who())
        ended_as = None
        try:
            ended_as = self._begin_release()
            if ended_as is None:
                return False
            if record.open_transactions:
                record.wait_for_guarded()
            self._driver.run(renewal.release(record.lock, record.claim))
        except FencelockError as error:
            self._after_release(error)
        except BaseException as error:
            self._after_release(error)
            raise
        else:
            self._after_release(None)
        return ended_as == RELEASED

    def leave_block(self, error: BaseException | None) -> None:
        """End a `with` block: release, and raise the loss if the body ended well, or note it on the body's exception
        (H3).
        """
        if self.is_inherited or not self.release():
            note_loss(self._problem_at_end(), error)

    def enter_guarded(self, block: object) -> None:
        """Count a guarded transaction that this thread begins; for guards."""
        self._record.enter_guarded(block, self._who())

    def leave_guarded(self, block: object) -> None:
        """Count it out, in whichever thread, if it is counted; for guards."""
        self._record.leave_guarded(block)

    def _who(self) -> int:
        return threading.get_ident()
