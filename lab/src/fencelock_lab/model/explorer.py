"""Explore every reachable state, breadth first.

Promise: a trace is always a shortest one; the same start and the same successors give the same trace and the same
counts in every run. Never omits a state or visits one twice. The explorer does not know about locks.
"""

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)
Step = TypeVar("Step")

MAX_STATES = 1_000_000
"""The most states of one exploration; split a larger scene into several smaller ones."""


class TooManyStatesError(Exception):
    """The space is larger than MAX_STATES."""


class Exploration(NamedTuple, Generic[State, Step]):
    """The size of the explored space, and the shortest trace to a wanted step; None if no state has one."""

    states: int
    transitions: int
    trace: tuple[tuple[Step, State], ...] | None


def explore(
    start: State,
    successors: Callable[[State], Iterable[tuple[Step, State]]],
    is_wanted: Callable[[Step], bool],
) -> Exploration[State, Step]:
    """Return the shortest trace that ends in a wanted step; the trace is None if the whole space has none."""
    with _no_collector():
        return _explore(start, successors, is_wanted)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Disable the cycle collector inside the block: states have no cycles, and it would rescan them repeatedly."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _explore(
    start: State,
    successors: Callable[[State], Iterable[tuple[Step, State]]],
    is_wanted: Callable[[Step], bool],
) -> Exploration[State, Step]:
    came_by: dict[State, tuple[State, Step] | None] = {start: None}
    to_visit = deque([start])
    transitions = 0
    while to_visit:
        state = to_visit.popleft()
        for step, following in successors(state):
            transitions += 1
            if is_wanted(step):
                trace = (*_way_to(state, came_by), (step, following))
                return Exploration(len(came_by), transitions, trace)
            if following not in came_by:
                came_by[following] = (state, step)
                to_visit.append(following)
        if len(came_by) > MAX_STATES:
            raise TooManyStatesError(f"more than {MAX_STATES} states, after {transitions} transitions")
    return Exploration(len(came_by), transitions, None)


def _way_to(state: State, came_by: dict[State, tuple[State, Step] | None]) -> list[tuple[Step, State]]:
    """Return the steps from the start to a state, and the state after each."""
    way = []
    while (origin := came_by[state]) is not None:
        before, step = origin
        way.append((step, state))
        state = before
    return way[::-1]
