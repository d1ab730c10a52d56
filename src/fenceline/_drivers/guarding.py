"""Run a guard's flow over one connection of its store, in the caller's thread or on the loop of the running task.

Promise: an exception, wherever it comes from, is thrown into the flow; what leaves the flow by an
exception leaves no transaction open. A flow that ends well may leave one open, for the user.
"""

from typing import Any, TypeVar

from fenceline._flows.requests import Flow
from fenceline.stores.contract import AsyncGuardConnection, GuardConnection

Result = TypeVar("Result")


def run(flow: Flow[Result], connection: GuardConnection) -> Result:
    """Run the flow to its end and return its result."""
    step: Any = flow.send
    value: Any = None
    try:
        while True:
            request = step(value)
            try:
                value = connection.perform(request)
                step = flow.send
            except BaseException as error:
                value = error
                step = flow.throw
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    except BaseException:
        connection.rollback()
        raise


async def run_async(flow: Flow[Result], connection: AsyncGuardConnection) -> Result:
    """Run the flow to its end and return its result, waiting on the loop for each reply."""
    step: Any = flow.send
    value: Any = None
    try:
        while True:
            request = step(value)
            try:
                value = await connection.perform(request)
                step = flow.send
            except BaseException as error:
                value = error
                step = flow.throw
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    except BaseException:
        await connection.rollback()
        raise
