"""Run a generator of requests to its end: the loop that drivers and stores share, once for threads and once for loops.

Promise: each request is answered by `answer`, and whatever that raises is thrown into the generator, so that the
generator decides what an error means. Nothing is kept of it: an exception refers to the frames that it came through.
Never: a request answered twice, or an error swallowed here.
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_generator(flow: Generator[Any, Any, Result], answer: Callable[[Any], Any]) -> Result:
    """Run the generator to its end and return its result."""
    step: Callable[[Any], Any] = flow.send
    value: Any = None
    try:
        while True:
            request = step(value)
            try:
                value = answer(request)
                step = flow.send
            except BaseException as error:
                value = error
                step = flow.throw
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        value = None


async def run_generator_async(flow: Generator[Any, Any, Result], answer: Callable[[Any], Awaitable[Any]]) -> Result:
    """Run the generator to its end, waiting on the loop for each answer, and return its result."""
    step: Callable[[Any], Any] = flow.send
    value: Any = None
    try:
        while True:
            request = step(value)
            try:
                value = await answer(request)
                step = flow.send
            except BaseException as error:
                value = error
                step = flow.throw
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        value = None
