"""`fencelock.dispatch`: an effect outside of every guard, as safe as it can be made. `BaseDispatch` is shared.

Promise: entering the block asks the source whether the lease is still the holder, with time left, and writes the intent
through the guard; leaving it well records the result. Never: a promise that the effect happens once. A holder that
freezes inside the block may go on later, and nobody can stop it then: the next holder sees the intent, and asks.
"""

from types import TracebackType
from typing import Self, TypeVar

from fencelock._api.base_guard import BaseGuard, core_of
from fencelock._api.durations import Duration, in_seconds, is_number
from fencelock._api.guard import Guard
from fencelock._api.guard_core import check_free
from fencelock._api.lease import BaseLease, Lease
from fencelock._api.once import Once
from fencelock._api.uncopyable import UncopyableBlock
from fencelock._flows.effects import Begun, begin_effect, end_effect
from fencelock._flows.tenure import Scope, Tenure
from fencelock.errors import ConfigError, LeaseExpiredError, LeaseLostError
from fencelock.model import LeaseCheck, Sequencer
from fencelock.protocol.guard_requests import GuardFlow

Result = TypeVar("Result")


class BaseDispatch(UncopyableBlock):
    """What the two kinds of block share: the checks, and the flows."""

    def __init__(self, lease: BaseLease, guard: BaseGuard, key: str, need: Duration, may_repeat: bool) -> None:
        if not isinstance(lease, BaseLease):
            raise ConfigError(f"dispatch takes a lease, as lock.acquire() returns, not {type(lease).__name__}")
        self._once = Once(key)
        need_s: float = in_seconds(need)
        if not is_number(need_s) or not need_s >= 0:  # Written so that it is true of NaN.
            raise ConfigError(f"need is the seconds that the effect takes at most, 0 or more; not {need!r}")
        self._core = core_of(guard)
        if len(guard.resources) != 1:
            raise ConfigError(f"the intent belongs to one resource, and this guard has {len(guard.resources)}")
        self._lease = lease
        self._need_s = need_s
        self._may_repeat = may_repeat

    @property
    def key(self) -> str:
        """The key that stands for the effect."""
        return self._once.key

    @property
    def result(self) -> str:
        """What to keep of the effect, set inside the block: at most 4096 bytes of UTF-8, or ConfigError."""
        return self._once.result

    @result.setter
    def result(self, result: str) -> None:
        self._once.result = result

    def _check(self, found: LeaseCheck) -> None:
        if not found.is_current:
            raise LeaseLostError(
                f"lock {found.lock!r}: the source says that the lease with token {found.token} is over; nothing of "
                f"{self.key!r} was begun. Acquire the lock again",
                reason="the source said so before an effect",
            )
        if found.remaining < self._need_s:
            raise self._too_late(found.remaining)

    def _is_to_take_back(self, begun: Begun) -> bool:
        """Return whether too little time is left, so that the intent is to be taken back."""
        remaining = self._lease.remaining()
        if remaining > 0 and remaining >= self._need_s:
            return False
        if begun.was_in_doubt:
            # `may_repeat` has replaced an earlier intent, whose effect may have happened: it must not be forgotten.
            raise self._too_late(remaining)
        return True

    def _too_late(self, remaining: float) -> LeaseExpiredError:
        return LeaseExpiredError(
            f"lock {self._lease.lock!r}: {remaining:.1f} s of the lease are left, and {self.key!r} needs "
            f"{self._need_s:g}: nothing of it was begun. Take a longer ttl: at least three times that"
        )

    # --- the flows ----------------------------------------------------------------------------------------------------
    def _begin(self) -> GuardFlow[Begun]:
        return begin_effect(*self._tenure(), self._once.intent(self._lease.sequencer), may_repeat=self._may_repeat)

    def _end(self) -> GuardFlow[None]:
        """Record the result. The mark alone judges: a lease that has ended without a successor may still do it."""
        return end_effect(*self._tenure(), self._once.done(self._lease.sequencer))

    def _take_back(self) -> GuardFlow[None]:
        return end_effect(*self._tenure(), self._once.intent(self._lease.sequencer)._replace(holder=""))

    def _tenure(self) -> tuple[Scope, Sequencer, Tenure, int | None]:
        lease = self._lease
        return self._core.scope, lease.sequencer, lease.tenure, int(lease.remaining() * 1000) or None


class Dispatch(BaseDispatch):
    """The block of one effect; `fencelock.dispatch(…)` makes one. Set `result` inside it."""

    def __init__(self, lease: Lease, guard: Guard, key: str, need: Duration, may_repeat: bool) -> None:
        super().__init__(lease, guard, key, need, may_repeat)
        self._holder = lease

    def __enter__(self) -> Self:
        self._lease.check_valid()
        self._check(self._holder.check())
        begun = self._run(self._begin())
        self._core.emit_opened(self._holder, begun.opened)
        if self._is_to_take_back(begun):
            remaining = self._lease.remaining()
            self._run(self._take_back())
            raise self._too_late(remaining)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._run(self._end())

    def _run(self, flow: GuardFlow[Result]) -> Result:
        check_free(self._core.scope.url)
        with self._core.emitting_refusals(self._holder):
            return self._core.run(flow)


def dispatch(lease: Lease, guard: Guard, *, key: str, need: Duration, may_repeat: bool = False) -> Dispatch:
    """Return the block of an effect that nothing can fence: `with fencelock.dispatch(lease, guard, key=…, need=…)`.

    Entering asks the source whether the lease still holds the lock for `need` more seconds, and writes an intent under
    `key` through the guard of one resource; leaving without an exception records the block's `result`. AlreadyDoneError
    if a result is recorded under the key; EffectInDoubtError if an intent is, without one: somebody began, and froze,
    crashed or raised. `may_repeat=True` says that you have found out. An exception out of the block leaves the intent.
    LeaseExpiredError if too little time is left, and LeaseLostError if the source says that the lease is over: the
    effect was not begun. This is the best that can be done, and it is not fencing: a holder that freezes between the
    check and the effect carries it out late.
    """
    return Dispatch(lease, guard, key, need, may_repeat)
