"""The state of one lease in this process, which keeper, lease and guards share.

    held ──release()──────────────> released ──the source had ended it before──> lost
      ├──own deadline passed──────> expired
      ├──the source refused───────> lost
      └──fork, in the child───────> inherited

Promise: one thread moves the record out of `held`, once and for good; only the source's answer to that release, "not
yours", still changes what it was (H3). A renewal never moves the deadline of a lease that was over when its reply
arrived, nor of one that was reported to be over. Never: I/O, or a mutex held while a user's code runs; a strong
reference to a user's object, which may refer to the lease.
"""

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from fencelock._drivers.sync import SyncDriver
from fencelock._flows.acquire import Grant
from fencelock.clock import boottime_ms
from fencelock.errors import (
    LeaseError,
    LeaseExpiredError,
    LeaseInheritedError,
    LeaseLostError,
    LeaseReleasedError,
)
from fencelock.hooks import NO_HOOKS, Event, Hooks, emit, is_observed

if TYPE_CHECKING:
    from fencelock._flows.tenure import Tenure

HELD = "held"
RELEASED = "released"
EXPIRED = "expired"
LOST = "lost"
INHERITED = "inherited"
DEADLINE_PASSED = "its deadline passed without word from the source"


class Process:
    """What all leases of this process share: one mutex, because state changes are short and rare, and a generation,
    by which a forked child recognises inherited leases (H6). The mutex is re-entrant: a finalizer may end one lease
    while its thread is changing another.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._make_locks()

    def _make_locks(self) -> None:
        self.mutex = threading.RLock()
        self.drained = threading.Condition(self.mutex)

    def after_fork_in_child(self) -> None:
        """Replace the mutex, which another thread may have held, and mark all leases so far as inherited."""
        self._make_locks()
        self.generation += 1


PROCESS = Process()


_ENDS = ("released", "lost")
"""The events that say for how long the lease was held."""


class Listeners:
    """The callbacks and hooks of one lease. The public lease refers to them, the record does so weakly: a callback
    often belongs to the object that has the lease, and would keep that alive through the keeper for ever (H2).
    """

    __slots__ = ("__weakref__", "callbacks", "hooks")

    def __init__(self, hooks: Hooks, on_lost: Callable[[str], object] | None = None) -> None:
        self.hooks = hooks
        self.callbacks: tuple[Callable[[str], object], ...] = () if on_lost is None else (on_lost,)

    def emit(
        self, record: "LeaseRecord", name: str, *, duration: float | None = None, reason: str | None = None
    ) -> None:
        """Call hooks and log for an event of the lease."""
        if is_observed(self.hooks, name):
            if name in _ENDS:
                duration = (boottime_ms() - record.began_ms) / 1000
            event = Event(
                name, record.lock, token=record.grant.token, holder=record.holder, duration=duration, reason=reason
            )
            emit(self.hooks, event)


_NO_LISTENERS = Listeners(NO_HOOKS)


class LeaseRecord:
    """One lease of this process. The keeper refers to it while it is held, the public Lease as long as that lives."""

    __slots__ = (
        "_generation",
        "_listeners",
        "_state",
        "_was_reported_over",
        "began_ms",
        "claim",
        "deadline_ms",
        "driver",
        "grant",
        "holder",
        "is_announced",
        "lock",
        "open_transactions",
        "reason",
        "tenure",
        "ttl_ms",
        "wakers",
    )

    def __init__(
        self,
        driver: SyncDriver,
        lock: str,
        claim: str,
        holder: str,
        ttl_ms: int,
        grant: Grant,
        listeners: Listeners,
    ) -> None:
        self.driver = driver
        self.lock = lock
        self.claim = claim
        self.holder = holder
        self.ttl_ms = ttl_ms
        self.grant = grant
        self.began_ms = boottime_ms()
        self.deadline_ms = grant.deadline_ms
        self._listeners = weakref.ref(listeners)
        self._generation = PROCESS.generation
        self._state = HELD
        self._was_reported_over = False
        self.is_announced = False
        self.reason: str | None = None
        self.wakers: tuple[Callable[[], object], ...] = ()
        self.tenure: Tenure | None = None
        self.open_transactions: dict[object, int] = {}

    @property
    def state(self) -> str:
        """One of the states above; a forked child of the process that acquired the lease sees `inherited`."""
        return self._state if self._generation == PROCESS.generation else INHERITED

    @property
    def is_held(self) -> bool:
        """True until the lease leaves held, in the process that acquired it."""
        return self._state == HELD and self._generation == PROCESS.generation

    @property
    def is_inherited(self) -> bool:
        """True in a forked child of the process that acquired the lease."""
        return self._generation != PROCESS.generation

    def check_own(self) -> None:
        """Raise LeaseInheritedError in a forked child of the process that acquired the lease."""
        if self._generation != PROCESS.generation and (problem := self.problem()) is not None:
            raise problem

    @property
    def listeners(self) -> Listeners:
        """The callbacks and hooks of this lease; none after the public lease is gone."""
        return self._listeners() or _NO_LISTENERS

    def leave_held(self, state: str, reason: str) -> bool:
        """Move from held to another state, once, and wake the waiters for that; return whether this call did it."""
        with PROCESS.mutex:
            if self._state != HELD or self._generation != PROCESS.generation:
                return False
            # The reason first: `problem` reads it after the state, and takes no mutex.
            self.reason = reason
            self._state = state
            for wake in self.wakers:
                wake()
            return True

    def remaining_ms(self) -> int:
        """Return for how long the lease may be relied on. After the first 0 it stays 0, even if a renewal succeeds."""
        if self._state != HELD or self._generation != PROCESS.generation:
            return 0
        left_ms = self.deadline_ms - boottime_ms()
        return left_ms if left_ms > 0 else self._report_over()

    def _report_over(self) -> int:
        with PROCESS.mutex:
            left_ms = self.deadline_ms - boottime_ms()
            if left_ms > 0 and not self._was_reported_over:
                return left_ms  # Renewed at this moment.
            self._was_reported_over = True
            return 0

    def renewed_until(self, deadline_ms: int, received_ms: int) -> bool:
        """Move the deadline forward after a renewal whose reply arrived at `received_ms`; return False, and do not move
        it, if the lease was over by then.
        """
        with PROCESS.mutex:
            if self._was_reported_over or received_ms >= self.deadline_ms:
                return False
            # An earlier confirmation stays valid.
            self.deadline_ms = max(self.deadline_ms, deadline_ms)
            return True

    def when_over(self, wake: Callable[[], object]) -> None:
        """Call `wake`, which must not block, when the lease leaves held, or now if it has."""
        with PROCESS.mutex:
            self.wakers = (*self.wakers, wake)
            if self.state != HELD:
                wake()

    def forget_waker(self, wake: Callable[[], object]) -> None:
        """Undo `when_over`."""
        with PROCESS.mutex:
            self.wakers = tuple(waker for waker in self.wakers if waker is not wake)

    def is_lost(self) -> bool:
        """Return whether the lease was lost or has expired, by its state or by the clock at this moment."""
        # The state is read last, here and in `problem`: another thread, or a signal handler, may change it meanwhile.
        return self.is_over() and self.state in {HELD, EXPIRED, LOST}

    def enter_guarded(self, block: object, who: int) -> None:
        """Count a guarded transaction of thread or task `who`; raise if the lease is over.

        `block` identifies it and must not refer to the lease: through the keeper, which refers to this record, it would
        keep the lease alive for ever (H2).
        """
        with PROCESS.mutex:
            if (problem := self.problem()) is not None:
                raise problem
            self.open_transactions[block] = who

    def leave_guarded(self, block: object) -> None:
        """Count a guarded transaction out if it is counted; an interrupted caller may repeat this."""
        with PROCESS.mutex:
            self.open_transactions.pop(block, None)
            if self._state != HELD:  # Otherwise no release is waiting: it leaves held first.
                PROCESS.drained.notify_all()

    def wait_for_guarded(self) -> None:
        """Wait until no guarded transaction of this lease is open, or its deadline: then they are stale anyway."""
        if not self.open_transactions:
            return
        with PROCESS.drained:
            left_s = max(0, self.deadline_ms - boottime_ms()) / 1000
            PROCESS.drained.wait_for(lambda: not self.open_transactions, left_s)

    def check_may_release(self, who: int) -> None:
        """Raise LeaseError inside `who`'s own guarded transaction: its release would wait for itself."""
        if who in self.open_transactions.values():
            raise LeaseError(
                f"{self._name()} cannot be released inside its own guarded transaction: leave that block first"
            )

    def begin_release(self) -> str | None:
        """Leave held for released, or for expired if it is too late; return the new state, None if it had left held."""
        state, reason = (RELEASED, "it was released") if self.remaining_ms() else (EXPIRED, DEADLINE_PASSED)
        return state if self.leave_held(state, reason) else None

    def found_lost(self, reason: str) -> None:
        """Make a released lease a lost one: the source answered the release that it had ended the lease before."""
        with PROCESS.mutex:
            if self._state == RELEASED:
                self.reason = reason
                self._state = LOST

    def is_over(self) -> bool:
        """Return whether the lease is over, by its state or by the clock at this moment."""
        return self.remaining_ms() == 0

    def problem(self) -> LeaseError | None:
        """Return the error that says why the lease is over; None while it is not."""
        if not self.is_over():
            return None
        state = self.state
        if state in {HELD, EXPIRED}:
            return self._expiry()
        if state == RELEASED:
            return LeaseReleasedError(f"{self._name()} was released before: acquire lock {self.lock!r} again")
        if state == INHERITED:
            return LeaseInheritedError(
                f"{self._name()} belongs to the parent process: only its token and sequencer can be read here. Acquire "
                f"lock {self.lock!r} in this process"
            )
        reason = self.reason or "the source did not say why"
        return LeaseLostError(
            f"{self._name()} was lost: {reason}. Stop writing, and acquire lock {self.lock!r} again",
            reason=reason,
        )

    def _expiry(self) -> LeaseExpiredError:
        late_ms = max(0, boottime_ms() - self.deadline_ms)
        return LeaseExpiredError(
            f"{self._name()} expired {late_ms / 1000:.3f} s ago, its ttl of {self.ttl_ms / 1000:g} s not renewed in "
            "time: somebody else may hold the lock. Stop writing, and acquire it again"
        )

    def _name(self) -> str:
        return f"the lease on lock {self.lock!r} with token {self.grant.token}"

    def emit(self, name: str, *, duration: float | None = None, reason: str | None = None) -> None:
        """Call hooks and log for an event of this lease."""
        self.listeners.emit(self, name, duration=duration, reason=reason)
