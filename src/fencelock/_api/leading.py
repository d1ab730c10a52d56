"""`source.lead`: terms of leadership, one after the other, whatever ends them.

Promise: each term is one lease, which ends with the term's block. After a loss, a stale token, a source that cannot be
reached or a block whose connection ended, the loop campaigns again, after a pause that grows with each failure in a row
(K1); any other error of the body leaves the loop with the lease released, KeyboardInterrupt and cancellation included
(K2). Once `stop` is set, the loop ends: a place in the queue is given up, and a body that runs is waited for (K3).
"""

import random
import time
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, Self

from fencelock._api.lease import BaseLease, Lease
from fencelock._api.repeatable import is_repeatable, may_campaign_again
from fencelock._api.uncopyable import Uncopyable
from fencelock._drivers.sync import STOP_CHECK_MS, IsStopped
from fencelock.errors import ConfigError, LeaseError
from fencelock.hooks import Event, Hooks, emit

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
_MAX_DOUBLINGS = 16
STOP_CHECK_S = STOP_CHECK_MS / 1000


class StopEvent(Protocol):
    """What ends a loop: an event of threading, asyncio or multiprocessing, or anything else that can be asked."""

    def is_set(self) -> bool:
        """Return whether the loop is to end."""


class BackOff:
    """The pause after a failure: doubled with each one in a row, half of it drawn, LONGEST_PAUSE_S at most."""

    def __init__(self, draw: Callable[[], float] = random.random) -> None:
        self._draw = draw
        self._failures = 0

    def after_failure_s(self, lasted_s: float) -> float:
        """Return the pause after a term that lasted so long; a long one begins the row again."""
        if lasted_s >= LONGEST_PAUSE_S:
            self._failures = 0
        longest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0**self._failures)
        self._failures = min(self._failures + 1, _MAX_DOUBLINGS)
        return longest_s * (1 + self._draw()) / 2

    def reset(self) -> None:
        """Begin the row again."""
        self._failures = 0


class LeaderLoop:
    """What the loops share: when to go on, after which pause, and whether the last term has ended."""

    def __init__(self, name: str, hooks: Hooks, stop: StopEvent | None, retry_on: Iterable[type[Exception]]) -> None:
        self._name = name
        self._hooks = hooks
        self._stop = _check_stop(stop)
        self._retry_on = _check_retry_on(retry_on)
        self._back_off = BackOff()
        self.pause_s = 0.0
        """How long to wait before the next campaign."""
        # Weakly: a term that the program drops releases its lease (H2).
        self._last: weakref.ref[BaseLease] | None = None
        self._is_entered = False

    def is_stopped(self) -> bool:
        """Return whether the loop is to end."""
        return self._stop is not None and self._stop.is_set()

    def begin_term(self, lease: BaseLease) -> None:
        """Note the lease of a term that was not entered yet."""
        self._last, self._is_entered = weakref.ref(lease), False

    def enter_term(self) -> None:
        """Note that the term was entered."""
        self._is_entered = True

    def leave_term(self) -> None:
        """Note that the term's block has ended."""
        self._last = None

    def check_last(self) -> None:
        """Raise LeaseError if the term before has not ended; one that was never entered ends here."""
        lease = None if self._last is None else self._last()
        if lease is None:
            return
        if not self._is_entered:
            lease.release_soon()
            self._last = None
        raise LeaseError(
            f"lock {self._name!r}: the term before has not ended: enter each one, `with term as lease:`, and leave its "
            f"block before you ask for the next"
        )

    def goes_on_without(self, error: Exception) -> bool:
        """Return whether to campaign again although this one failed, before there was a lease."""
        if not may_campaign_again(error, self._retry_on):
            return False
        self._retry(error, None, 0.0)
        return True

    def goes_on_after(self, error: BaseException | None, lease: BaseLease, lasted_s: float) -> bool:
        """Return whether to swallow the error that ended a term, and campaign again; after none, it begins at once."""
        if error is None:
            self._back_off.reset()
            self.pause_s = 0.0
            return False
        if not is_repeatable(error, self._retry_on):
            return False
        self._retry(error, lease.token, lasted_s)
        return True

    def _retry(self, error: BaseException, token: int | None, lasted_s: float) -> None:
        self.pause_s = self._back_off.after_failure_s(lasted_s)
        reason = f"{type(error).__name__}: {error}"
        emit(self._hooks, Event("retried", self._name, token, duration=self.pause_s, reason=reason))


class BaseTerm(Uncopyable):
    """What the sync and the async term share."""

    _instead = "the end of a copy would end the lease. Enter the term itself"
    _lease: BaseLease

    def __init__(self, loop: LeaderLoop) -> None:
        self._loop = loop
        self._began_s = time.monotonic()
        self._is_entered = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._lease!r}>"

    def _enter(self) -> None:
        if self._is_entered:
            raise LeaseError(f"a term is entered once: {self._lease!r}")
        self._is_entered = True
        self._loop.enter_term()

    def _goes_on(self, error: BaseException | None) -> bool:
        return self._loop.goes_on_after(error, self._lease, time.monotonic() - self._began_s)


class Term(BaseTerm):
    """One term of leadership: `with term as lease:` is its block, which ends it. `source.lead(…)` yields them."""

    _lease: Lease

    def __init__(self, loop: LeaderLoop, lease: Lease) -> None:
        super().__init__(loop)
        self._lease = lease

    def __enter__(self) -> Lease:
        self._enter()
        return self._lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        # Before the release, which may raise: the loop must not take the term for one that still runs.
        self._loop.leave_term()
        try:
            self._lease.__exit__(kind, error, trace)
        except LeaseError as loss:
            # The body ended well, and its lease had not lasted.
            if not self._goes_on(loss):
                raise
            return True
        return self._goes_on(error)


class Terms(Uncopyable):
    """The loop over terms: an iterator. `source.lead(…)` makes one."""

    _instead = "it is a loop of one thread. Call source.lead(…) for each"

    def __init__(
        self,
        take: Callable[[IsStopped], Lease | None],
        name: str,
        hooks: Hooks,
        stop: StopEvent | None,
        retry_on: Iterable[type[Exception]],
    ) -> None:
        self._loop = LeaderLoop(name, hooks, stop, retry_on)
        self._take = take

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Term:
        loop = self._loop
        loop.check_last()
        while self._has_paused():
            try:
                lease = self._take(loop.is_stopped)
            except Exception as error:
                if not loop.goes_on_without(error):
                    raise
                continue
            if lease is not None and not loop.is_stopped():
                loop.begin_term(lease)
                return Term(loop, lease)
            # The lock was granted at the moment of the stop: no term begins after it (K3).
            if lease is not None:
                lease.release()
        raise StopIteration

    def _has_paused(self) -> bool:
        """Pause before the next campaign; return False as soon as the loop is to end."""
        end_s = time.monotonic() + self._loop.pause_s
        while not self._loop.is_stopped():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return True
            time.sleep(min(left_s, STOP_CHECK_S))
        return False


def _check_stop(stop: StopEvent | None) -> StopEvent | None:
    if stop is not None and not callable(getattr(stop, "is_set", None)):
        raise ConfigError(f"stop is an event, whose is_set() ends the loop, not {type(stop).__name__}")
    return stop


def _check_retry_on(kinds: Iterable[type[Exception]]) -> tuple[type[Exception], ...]:
    found = tuple(kinds)
    for kind in found:
        checked: object = kind  # From untyped code it may be anything.
        if not (isinstance(checked, type) and issubclass(checked, Exception)):
            raise ConfigError(f"retry_on is a list of exceptions, each a subclass of Exception; not {kind!r}")
    return found
