"""Run a guard's flow over one connection of its store, in the caller's thread or on the loop of the running task.

Promise: every exception is thrown into the flow. If the flow raises, no transaction is open afterwards; a flow that
ends well may leave one open for the user.
"""

from typing import TypeVar

from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.protocol.guard_requests import GuardFlow
from fencelock.protocol.stores import AsyncGuardConnection, GuardConnection

Result = TypeVar("Result")


def run(flow: GuardFlow[Result], connection: GuardConnection) -> Result:
    """Run the flow to its end and return its result."""
    try:
        return run_generator(flow, connection.perform)
    except BaseException:
        connection.rollback()
        raise


async def run_async(flow: GuardFlow[Result], connection: AsyncGuardConnection) -> Result:
    """Run the flow to its end and return its result, waiting on the loop for each reply."""
    try:
        return await run_generator_async(flow, connection.perform)
    except BaseException:
        await connection.rollback()
        raise
