"""Several requests of one store at a time, where its logic is a generator.

Promise: at most MAX_AT_ONCE at a time, and outcomes in the order in which they were asked for. None begins after one
has failed, or after the caller's wait has ended: what a store no longer answers is not asked again and again. A run
that has begun is never broken off in a thread; on a loop it ends with the task that awaits it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fencelock.errors import FencelockError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.helper_threads import in_helper_threads

MAX_AT_ONCE = 8
Result = TypeVar("Result")


class Together(NamedTuple):
    """Do these at the same time. Reply: of each what it returned, or the FencelockError that it raised; of one that did
    not begin, the error of another.
    """

    runs: tuple[Generator[Any, Any, Any], ...]


def all_of(runs: Sequence[Generator[Any, Any, Result]]) -> Generator[Any, Any, list[Result]]:
    """Do these at the same time, and return what each returned; raise the first error."""
    if len(runs) == 1:
        return [(yield from runs[0])]
    outcomes: list[Any] = yield Together(tuple(runs))
    failure = next((one for one in outcomes if isinstance(one, FencelockError)), None)
    if failure is None:
        return outcomes
    try:
        raise failure
    finally:
        del outcomes, failure  # The error's traceback refers to this frame.


def together(perform: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what performs a step, or several in threads."""

    def perform_or_run(step: Any) -> Any:
        if not isinstance(step, Together):
            return perform(step)
        return in_helper_threads([partial(run_generator, one, perform) for one in step.runs], MAX_AT_ONCE)

    return perform_or_run


def together_async(perform: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Return what performs a step, or several on the running loop."""

    async def perform_or_run(step: Any) -> Any:
        return await (_run_async(step, perform) if isinstance(step, Together) else perform(step))

    return perform_or_run


async def _run_async(step: Together, perform: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    gate = asyncio.Semaphore(MAX_AT_ONCE)
    failures: list[BaseException] = []

    async def run(one: Generator[Any, Any, Any]) -> Any:
        async with gate:
            if failures:
                return failures[0]
            try:
                return await run_generator_async(one, perform)
            except BaseException as error:
                failures.append(error)
                raise

    try:
        # A task group would hide an error in a group of its own, and a cancellation behind it.
        outcomes = await asyncio.gather(*map(run, step.runs), return_exceptions=True)
    finally:
        failures.clear()  # An error's traceback refers to this list.
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, FencelockError):
            try:
                raise outcome
            finally:
                del outcomes, outcome
    return outcomes
