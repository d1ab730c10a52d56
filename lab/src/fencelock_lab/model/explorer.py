"""Walk through every state that can be reached, breadth first.

Promise: a trace that is found is a shortest one; the same start and the same successors give the same trace and the
same counts, in every run. Never: a state left out or looked at twice. The explorer knows nothing of locks.
"""

import gc
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)
Step = TypeVar("Step")

MAX_STATES = 1_000_000
"""States after which an exploration gives up: a scene so large belongs into several smaller ones."""


class TooManyStatesError(Exception):
    """The space is larger than MAX_STATES."""


class Exploration(NamedTuple, Generic[State, Step]):
    """What was walked through, and the shortest way to what was looked for. `trace`: None if it is nowhere."""

    states: int
    transitions: int
    trace: tuple[tuple[Step, State], ...] | None


def explore(
    start: State,
    successors: Callable[[State], Iterable[tuple[Step, State]]],
    is_wanted: Callable[[Step], bool],
) -> Exploration[State, Step]:
    """Return the shortest trace that ends in a wanted step, or that there is none in the whole space."""
    with _no_collector():
        return _explore(start, successors, is_wanted)


@contextmanager
def _no_collector() -> Iterator[None]:
    """Keep the collector of cycles away: states have none, and it would look through all of them again and again."""
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
