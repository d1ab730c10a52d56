"""Pauses between the operations of a store whose logic is a generator.

Promise: a pause takes no thread of its own, and is no operation: no client gets it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

FIRST_S = 0.02
"""The longest that the first of several pauses may be; it doubles with each further one."""
LONGEST_S = 1.0


class Pause(NamedTuple):
    """Wait this long before the next operation."""

    seconds: float


def growing_pauses(draw: Callable[[], float] = random.random) -> Iterator[Pause]:
    """Yield pauses of random lengths: processes that collide once must not collide again."""
    longest_s = FIRST_S
    while True:
        yield Pause(draw() * longest_s)
        longest_s = min(2 * longest_s, LONGEST_S)


def pausing(perform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what performs an operation, or pauses, in the caller's thread."""

    def perform_or_pause(step: Any) -> Any:
        return time.sleep(step.seconds) if isinstance(step, Pause) else perform(step)

    return perform_or_pause


def pausing_async(perform: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Return what performs an operation, or pauses, on the running loop."""

    async def perform_or_pause(step: Any) -> Any:
        return await (asyncio.sleep(step.seconds) if isinstance(step, Pause) else perform(step))

    return perform_or_pause
