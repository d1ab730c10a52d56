"""Whether the operations on one lock have an order that a lock which does one thing at a time could have shown.

The search is Wing's and Gong's ("Testing and verifying concurrent objects", 1993) with Lowe's refinements ("Testing for
linearizability", 2017): what is known so far is a set of configurations, an operation takes effect only when the end of
one makes it necessary, and equal configurations are kept once. Locks are independent of each other, so each is searched
alone.

A lease may end by itself, which no process sees. So each lease has a time before which it cannot have ended: its holder
relied on it until then, and had not begun to release it. From that time on the next process may have the lock. A holder
that never relied on its lease, since the process was held up until that was over, has no such time.

Promise: True and False are certain; None means that the budget was spent first. An acquire of unknown outcome is left
out, since it could only keep others out. Never blames the lock for an overlap that an expired lease explains.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fencelock_lab.campaigns.history import ACQUIRE, OK, READ, RELEASE, WRITE, Operation

STEPS_PER_CALL = 500
"""How many steps the search of one lock may take, for each of its operations, before it gives up."""


class LinearizedCall(NamedTuple):
    """An operation on a lock that certainly took effect. `ends_ns`: before it the lease cannot have ended by itself."""

    number: int
    process: str
    is_acquire: bool
    token: int
    invoked_ns: int
    returned_ns: int
    ends_ns: int
    operation: Operation


State = tuple[Any, ...]
"""A lock's state: empty at the beginning, then whatever the model makes of it."""


class Model(Protocol):
    """A lock that does one thing at a time. `is_ordered`: it never grants a lower token after a higher one."""

    is_ordered: bool

    def step(self, state: State, call: LinearizedCall, now_ns: int) -> State | None:
        """Return the state after the call, which takes effect at this time at the latest; None if it cannot."""


class Mutex:
    """One holder at a time, whatever its token. The state is the holder's call, or nothing."""

    is_ordered = False

    def step(self, state: State, call: LinearizedCall, now_ns: int) -> State | None:
        """Grant it if it is free, or could have become free by now."""
        if call.is_acquire:
            return (call.process, call.token, call.ends_ns) if not state or state[2] <= now_ns else None
        return () if state[:2] == (call.process, call.token) else state


class FencedMutex:
    """One holder at a time, and each has a higher token than the one before, which the state keeps as its last part."""

    is_ordered = True

    def step(self, state: State, call: LinearizedCall, now_ns: int) -> State | None:
        """Grant it as a mutex does, with a token that is higher than the last."""
        last = state[-1] if state else 0
        if not call.is_acquire:
            return (last,) if state[:2] == (call.process, call.token) else state
        is_free = len(state) <= 1 or state[2] <= now_ns
        return (call.process, call.token, call.ends_ns, call.token) if is_free and call.token > last else None


class ReentrantMutex:
    """A fenced mutex whose holder may enter again, under the same token. The state keeps how often it has."""

    is_ordered = True

    def step(self, state: State, call: LinearizedCall, now_ns: int) -> State | None:
        """Grant it again to its holder, and otherwise as a fenced mutex does."""
        last = state[-1] if state else 0
        is_own = state[:2] == (call.process, call.token)
        if not call.is_acquire:
            if not is_own:
                return state
            return (*state[:3], state[3] - 1, last) if state[3] > 1 else (last,)
        if is_own:
            return (*state[:3], state[3] + 1, last)
        is_free = len(state) <= 1 or state[2] <= now_ns
        return (call.process, call.token, call.ends_ns, 1, call.token) if is_free and call.token > last else None


@dataclass(frozen=True, slots=True)
class Linearization:
    """What a search found: None, the budget was spent; False, `culprit` fits in no order, after these `holders`."""

    is_linearizable: bool | None
    culprit: LinearizedCall | None = None
    holders: tuple[tuple[str, int], ...] = ()


Configuration = tuple[frozenset[int], State]
"""The calls that took effect before their end, and the lock's state."""


class Search:
    """One search of one lock."""

    def __init__(self, calls: Sequence[LinearizedCall], model: Model, budget: int | None = None) -> None:
        self._calls = calls
        self._model = model
        self._steps_left = STEPS_PER_CALL * len(calls) if budget is None else budget
        self._pending: dict[int, LinearizedCall] = {}

    def run(self) -> Linearization:
        """Return whether there is an order."""
        # What begins at the very moment at which another ends is concurrent to it: beginnings come first.
        moments = [(call.invoked_ns, 0, call.number) for call in self._calls]
        moments += [(call.returned_ns, 1, call.number) for call in self._calls]
        configurations: set[Configuration] = {(frozenset(), ())}
        for now_ns, is_end, number in sorted(moments):
            call = self._calls[number]
            if not is_end:
                self._pending[number] = call
                continue
            before, configurations = configurations, self._after(configurations, call, now_ns)
            del self._pending[number]
            if self._steps_left < 0:
                return Linearization(None)
            if not configurations:
                holders = sorted({state[:2] for _, state in before if len(state) > 1})
                return Linearization(False, call, tuple(holders))
        return Linearization(True)

    def _after(self, configurations: set[Configuration], call: LinearizedCall, now_ns: int) -> set[Configuration]:
        """Return the configurations in which the call, which ends now, has taken effect."""
        found: set[Configuration] = set()
        stack: list[Configuration] = []
        for effected, state in configurations:
            if call.number in effected:
                found.add((effected - {call.number}, state))
            else:
                stack.append((effected, state))
        seen = set(stack)
        while stack and self._steps_left >= 0:
            effected, state = stack.pop()
            waiting = [other for other in self._pending.values() if other.number not in effected]
            lowest = min((other.token for other in waiting if other.is_acquire), default=0)
            for other in waiting:
                # A higher token first would leave no order for the lower one, which has to take effect, too.
                if self._model.is_ordered and other.is_acquire and other.token > lowest:
                    continue
                self._steps_left -= 1
                after = self._model.step(state, other, now_ns)
                if after is None:
                    continue
                if other is call:
                    found.add((effected, after))
                elif (config := (effected | {other.number}, after)) not in seen:
                    seen.add(config)
                    stack.append(config)
        return found


def calls_of(operations: Iterable[Operation]) -> list[LinearizedCall]:
    """Return the calls on one lock that were answered with ok, each lease with the time before which it cannot end.

    `operations` are those on the lock, and those on its resources: each may say how long its lease was relied on.
    """
    relevant = sorted(operations, key=lambda one: one.invoked_ns)
    ends = _ends_of(relevant)
    calls: list[LinearizedCall] = []
    for one in relevant:
        if one.kind in {ACQUIRE, RELEASE} and one.outcome == OK and one.token is not None:
            assert one.completed_ns is not None
            ends_ns = ends.get((one.process, one.token), one.invoked_ns)
            is_acquire = one.kind == ACQUIRE
            calls.append(
                LinearizedCall(
                    len(calls), one.process, is_acquire, one.token, one.invoked_ns, one.completed_ns, ends_ns, one
                )
            )
    return calls


def _ends_of(operations: Iterable[Operation]) -> dict[tuple[str, int], int]:
    """Return for each lease that was relied on until when: not beyond the beginning of its last release."""
    ends: dict[tuple[str, int], int] = {}
    depths: dict[tuple[str, int], int] = {}
    left: set[tuple[str, int]] = set()
    for one in operations:
        if one.token is None:
            continue
        lease = (one.process, one.token)
        if one.kind == RELEASE:
            depths[lease] = depths.get(lease, 1) - 1
            if depths[lease] <= 0:
                if lease in ends:
                    ends[lease] = min(ends[lease], one.invoked_ns)
                left.add(lease)
        elif one.outcome == OK and one.kind in {ACQUIRE, READ, WRITE} and lease not in left:
            depths[lease] = depths.get(lease, 0) + (one.kind == ACQUIRE)
            if one.until_ns is not None:
                ends[lease] = max(ends.get(lease, one.until_ns), one.until_ns)
    return ends


def is_reentrant(calls: Iterable[LinearizedCall]) -> bool:
    """Return whether some process entered again under its own token."""
    entered: set[tuple[str, int]] = set()
    for call in calls:
        if call.is_acquire:
            if (call.process, call.token) in entered:
                return True
            entered.add((call.process, call.token))
    return False
