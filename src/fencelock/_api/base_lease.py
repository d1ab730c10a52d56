"""What a lease tells about itself, without I/O: shared by the sync and the async class.

Promise: every answer is true at the moment of asking, by the state and by the clock; `token` and `sequencer` can
always be read. A lease that nobody refers to any more is abandoned (H2). `repr` shows no claim.
"""

from fencelock._api.credentials import MEMORY
from fencelock._flows.admit import Tenure
from fencelock._keeper.lifecycle import keeper
from fencelock._keeper.record import EXPIRED, RELEASED, LeaseRecord, Listeners
from fencelock.errors import FencelockError, LeaseReleasedError
from fencelock.hooks import logger
from fencelock.model import Sequencer


class BaseLease:
    """One time-limited holding of a lock. Methods may be called from any thread."""

    __slots__ = ("__weakref__", "_audience", "_record", "_sequencer")

    def __init__(self, record: LeaseRecord, audience: Listeners) -> None:
        self._record = record
        self._audience = audience
        self._sequencer: Sequencer | None = None

    def __repr__(self) -> str:
        record = self._record
        return f"<{type(self).__name__} lock={record.lock!r} token={record.grant.token} {record.state}>"

    def __del__(self) -> None:
        record: LeaseRecord | None = getattr(self, "_record", None)
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
            self._sequencer = Sequencer(grant.source_id, grant.history_id, record.lock, grant.token, record.claim)
        return self._sequencer

    @property
    def lock(self) -> str:
        """The name of the lock."""
        return self._record.lock

    @property
    def holder(self) -> str:
        """The holder's name, as people will see it."""
        return self._record.holder

    @property
    def ttl(self) -> float:
        """The length of the lease in seconds, as it was granted."""
        return self._record.ttl_ms / 1000

    @property
    def deadline_ms(self) -> int:
        """Until when the lease may be relied on, in milliseconds of CLOCK_BOOTTIME; it moves with each renewal."""
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
        """Raise the error that says why the lease may not be relied on; do nothing while it may."""
        if (problem := self._record.problem()) is not None:
            raise problem

    def release_soon(self) -> None:
        """End the lease at once, and tell the source in the background: the only call allowed in a signal handler."""
        self._record.check_own()
        if self._begin_release():
            self._abandon()

    @property
    def tenure(self) -> Tenure:
        """What guards remember of this lease: which resources it sealed."""
        record = self._record
        if record.tenure is None:
            record.tenure = MEMORY.of(self.sequencer)
        return record.tenure

    def _begin_release(self) -> str | None:
        """Leave held; return for what, or None if it was left before. If it is too late the loss is announced: the
        keeper may not have seen it yet, and would take a lease that left held for a released one (H3).
        """
        ended_as = self._record.begin_release()
        if ended_as == EXPIRED:
            keeper().expire(self._record)
        return ended_as

    def _abandon(self) -> None:
        record = self._record
        keeper().abandon(record.driver, record.lock, record.claim, record.ttl_ms)

    def _after_release(self, error: BaseException | None) -> None:
        """Tell hooks and log; a claim that the source may still have is the keeper's to abandon."""
        record = self._record
        keeper().forget(record)
        if error is None:
            self._audience.tell(record, "released")
            return
        record.leave_held(RELEASED, "it was released")
        if record.state == EXPIRED:  # Perhaps broken off before it was announced.
            keeper().expire(record)
        self._abandon()
        if isinstance(error, FencelockError):
            logger.warning("lock %r is released in the background: %s", record.lock, error)
            record.tell("released", reason=str(error))

    def leave_inner_block(self, error: BaseException | None) -> None:
        """End a `with` block inside another one that has the same lease: as the outer one will, without the release."""
        note_loss(self._problem_at_end(), error)

    def _problem_at_end(self) -> BaseException | None:
        """Return the loss that the end of a `with` block must tell; a lease released by hand is none."""
        problem = self._record.problem()
        return None if isinstance(problem, LeaseReleasedError) else problem


def note_loss(problem: BaseException | None, error: BaseException | None) -> None:
    """Raise the loss after a good body; add it as a note to the body's own exception, which is never replaced (H3)."""
    if problem is None:
        return
    if error is None:
        raise problem
    if not isinstance(error, type(problem)):  # An inner block may have raised the very same loss.
        error.add_note(f"fencelock: {problem}")
