"""The sync lease: what `Lock.acquire` returns. `BaseLease` is what it shares with its async twin, without I/O.

Promise: every answer is true at the moment of asking, by the state and by the clock; `token` and `sequencer` can
always be read. `release` gives the lock back at most once, after the lease's own guarded transactions have ended; if
the source cannot be told, the keeper goes on trying. A lease that nothing refers to is abandoned (H2). Never: the lock
of another holder freed, a loss without an event, a claim in `repr`.
"""

import math
import queue
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from fencelock._api.credentials import MEMORY
from fencelock._api.durations import Duration
from fencelock._api.lock_options import check_timeout
from fencelock._api.uncopyable import Uncopyable
from fencelock._drivers.sync import SyncDriver
from fencelock._flows import renewal
from fencelock._flows.tenure import Tenure
from fencelock._keeper.lifecycle import keeper
from fencelock._keeper.record import EXPIRED, RELEASED, LeaseRecord, Listeners
from fencelock.errors import FencelockError, LeaseReleasedError
from fencelock.hooks import logger
from fencelock.model import LeaseCheck, Sequencer, one_way


class BaseLease(Uncopyable):
    """One time-limited holding of a lock. Methods may be called from any thread."""

    __slots__ = ("__weakref__", "_listeners", "_record", "_sequencer")
    _instead = (
        "the end of a copy would end the lease. Use the lease itself in other threads, and send its sequencer to other "
        "processes"
    )

    def __init__(self, record: LeaseRecord, listeners: Listeners) -> None:
        self._record = record
        self._listeners = listeners
        self._sequencer: Sequencer | None = None

    def __repr__(self) -> str:
        record = self._record
        return f"<{type(self).__name__} lock={record.lock!r} token={record.grant.token} {record.state}>"

    def __del__(self) -> None:
        record: LeaseRecord | None = getattr(self, "_record", None)
        # The program has dropped the lease, or an exception came between its acquire and the assignment (H2, H5).
        if record is not None and record.is_held:
            self.release_soon()

    @property
    def token(self) -> int:
        """The fencing token: an integer higher than that of every earlier lease on the lock."""
        return self._record.grant.token

    @property
    def sequencer(self) -> Sequencer:
        """The portable proof of this lease, for guards and for other processes."""
        if self._sequencer is None:
            record = self._record
            grant = record.grant
            # Made once: a sequencer checks its parts, and each guarded transaction asks for it.
            self._sequencer = Sequencer(
                grant.source_id,
                grant.history_id,
                record.lock,
                grant.token,
                one_way(record.claim),
                key_id=grant.signature.key_id,
                signature=grant.signature.text,
            )
        return self._sequencer

    @property
    def claim(self) -> str:
        """The secret that ends this lease, which only its process has; for guards."""
        self._record.check_own()
        return self._record.claim

    @property
    def lock(self) -> str:
        """The name of the lock."""
        return self._record.lock

    @property
    def holder(self) -> str:
        """The holder's name, for people to read."""
        return self._record.holder

    @property
    def ttl(self) -> float:
        """The length of the lease in seconds, as it was granted."""
        return self._record.ttl_ms / 1000

    @property
    def deadline_ms(self) -> int:
        """The end of the time for which the lease may be relied on, in ms of CLOCK_BOOTTIME; each renewal moves it."""
        self._record.check_own()
        return self._record.deadline_ms

    @property
    def is_valid(self) -> bool:
        """True while the lease may be relied on: not released, not lost, and its deadline not passed at this moment."""
        self._record.check_own()
        return not self._record.is_over()

    @property
    def is_inherited(self) -> bool:
        """True in a forked child of the process that acquired the lease."""
        return self._record.is_inherited

    def remaining(self) -> float:
        """Return the seconds for which the lease may be relied on without another renewal; 0.0 when it is over."""
        self._record.check_own()
        return self._record.remaining_ms() / 1000

    def check_valid(self) -> None:
        """Raise the error that says why the lease may not be relied on; do nothing while it may.

        LeaseExpiredError, LeaseLostError, LeaseReleasedError or LeaseInheritedError.
        """
        if (problem := self._record.problem()) is not None:
            raise problem

    def release_soon(self) -> None:
        """End the lease at once, and tell the source in the background: the only call allowed in a signal handler.

        If the source then reports that it had ended the lease before, that is announced as any loss.
        """
        self._record.check_own()
        if self._begin_release():
            keeper().release(self._record)

    @property
    def tenure(self) -> Tenure:
        """The memory that guards have of this lease: which resources it sealed."""
        record = self._record
        if record.tenure is None:
            record.tenure = MEMORY.of(self.sequencer)
        return record.tenure

    def _begin_release(self) -> bool:
        """Leave held, and return whether this call did. If it is too late, announce the loss: the keeper may not have
        seen it yet, and takes a lease that has left held for a released one (H3).
        """
        ended_as = self._record.begin_release()
        if ended_as == EXPIRED:
            keeper().announce_loss(self._record)
        return ended_as is not None

    def _after_release(self, loss: str | None) -> bool:
        """Announce the loss that the source reported, or call hooks and log; return whether the lease was still ours
        (H3).
        """
        record = self._record
        keeper().forget(record)
        if loss is not None:
            record.found_lost(loss)
            keeper().announce_loss(record)
        elif record.state == RELEASED:
            self._listeners.emit(record, "released")
        return record.state == RELEASED

    def _after_failed_release(self, error: BaseException) -> bool:
        """Have the keeper abandon a claim that the source may still have; return whether the lease was still ours."""
        record = self._record
        keeper().forget(record)
        # An exception may have come before the lease left held.
        record.leave_held(RELEASED, "it was released")
        if record.state == EXPIRED:  # Perhaps interrupted before the loss was announced.
            keeper().announce_loss(record)
        keeper().abandon(record.driver, record.lock, record.claim, record.ttl_ms)
        if isinstance(error, FencelockError):
            logger.warning("lock %r is released in the background: %s", record.lock, error)
            if record.state == RELEASED:
                record.emit("released", reason=str(error))
        return record.state == RELEASED

    def leave_inner_block(self, error: BaseException | None) -> None:
        """End a `with` block inside another one with the same lease: as the outer one will, without the release."""
        note_loss(self._problem_at_end(), error)

    def _problem_at_end(self) -> BaseException | None:
        """Return the loss that the end of a `with` block must report; a release by hand is not a loss."""
        problem = self._record.problem()
        return None if isinstance(problem, LeaseReleasedError) else problem


def note_loss(problem: BaseException | None, error: BaseException | None) -> None:
    """Raise the loss after a good body; add it as a note to the body's own exception, which is never replaced (H3)."""
    if problem is None:
        return
    if error is None:
        raise problem
    if not isinstance(error, type(problem)):  # An inner block may have raised the same loss.
        error.add_note(f"fencelock: {problem}")


class BaseLost(Uncopyable):
    """Announces that a lease was lost or has expired; like an Event that cannot be cleared."""

    __slots__ = ("_record",)
    _instead = "it belongs to its lease. Use `lease.lost` again, or itself in other threads"

    def __init__(self, record: LeaseRecord) -> None:
        self._record = record

    def is_set(self) -> bool:
        """Return whether the lease was lost or its deadline has passed, at this moment."""
        return self._record.is_lost()


class Lost(BaseLost):
    """Announces that a lease was lost or has expired; like an Event that cannot be cleared."""

    __slots__ = ()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait at most `timeout` seconds until the lease is over; return whether it was lost.

        False: it was released, or the timeout passed. None waits until the lease is over; OverflowError above
        threading.TIMEOUT_MAX.
        """
        timeout_s = check_timeout(timeout)
        # Not an Event, whose lock is not re-entrant: `release_soon` wakes this thread, perhaps from a signal handler
        # that runs in this very thread.
        over: queue.SimpleQueue[None] = queue.SimpleQueue()

        def wake() -> None:
            over.put(None)

        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        record = self._record
        record.when_over(wake)
        try:
            # Not without a bound: a deadline that passes is noticed here, whatever the keeper's thread does.
            while (left_s := end_s - time.monotonic()) > 0 and (left_ms := record.remaining_ms()):
                with suppress(queue.Empty):
                    over.get(timeout=min(left_s, left_ms / 1000))
        finally:
            record.forget_waker(wake)
        return self.is_set()


class Lease(BaseLease):
    """One time-limited holding of a lock, renewed in the background until it is released; acquiring a lock gives it.

    As a context manager it releases itself at the end of the block.
    """

    __slots__ = ("_driver",)

    def __init__(self, record: LeaseRecord, listeners: Listeners, driver: SyncDriver) -> None:
        super().__init__(record, listeners)
        self._driver = driver

    def __enter__(self) -> Self:
        self.check_valid()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.leave_block(error)
        except FencelockError:
            raise
        except BaseException:
            # A signal handler raised before the release was on its way.
            self.release_soon()
            raise

    @property
    def lost(self) -> Lost:
        """Announces the loss of this lease: `is_set()`, `wait(timeout)`."""
        self._record.check_own()
        return Lost(self._record)

    def release(self) -> bool:
        """Give the lock back; return whether the lease was still ours: False if it had expired, was lost, or was
        released before. Idempotent; never frees another holder's lock (H4).

        Waits for the lease's open guarded transactions, until its deadline at most. If the source is unavailable,
        the keeper goes on trying in the background, and the ttl ends the lease at the latest. LeaseInheritedError in a
        forked child, LeaseError inside a guarded transaction of the same thread.
        """
        record = self._record
        record.check_own()
        if record.open_transactions:
            record.check_may_release(self._who())
        try:
            if not self._begin_release():
                return False
            if record.open_transactions:
                # The lease has left held before, so that no further guarded transaction begins meanwhile.
                record.wait_for_guarded()
            loss = self._driver.run(renewal.end_lease(record.lock, record.claim))
        except FencelockError as error:
            return self._after_failed_release(error)
        except BaseException as error:
            self._after_failed_release(error)
            raise
        return self._after_release(loss)

    def check(self) -> LeaseCheck:
        """Ask the source whether this lease holds the lock now, and for how long. A check is not a guard: only a mark
        refuses a late writer.
        """
        self._record.check_own()
        return self._driver.run(renewal.check(self.sequencer))

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
        """Count a guarded transaction out if it is counted, in any thread; for guards."""
        self._record.leave_guarded(block)

    def _who(self) -> int:
        return threading.get_ident()
