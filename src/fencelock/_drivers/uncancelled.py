"""Work that runs to its end although its task is cancelled, in a thread or in a task of its own.

Promise: submitted work runs to its end. A cancelled task either waits for that end and then gets its CancelledError, or
gets it at once and the thread undoes the result.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from fencelock._drivers.aio import Threads

if TYPE_CHECKING:
    from concurrent.futures import Future

Result = TypeVar("Result")


class UncancelledThreads(Threads):
    """A few threads for work that must not be abandoned halfway."""

    async def run_or_undo(self, function: Callable[[], Result], undo: Callable[[], Any]) -> Result:
        """Run a blocking function; if an exception ends the wait for it, have `undo` called after it succeeded."""
        future = self.started().submit(function)
        try:
            return await asyncio.wrap_future(future)
        except BaseException:  # Cancelled, or a signal handler raised as the task went on.

            def undo_success(done: "Future[Result]") -> None:
                if not done.cancelled() and done.exception() is None:
                    undo()

            future.add_done_callback(undo_success)
            raise

    async def run_to_end(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a blocking function; a cancelled task waits for its end before it gets its CancelledError."""
        return await wait_to_the_end(asyncio.wrap_future(self.started().submit(function, *arguments)))


async def wait_to_the_end(work: "asyncio.Future[Result]") -> Result:
    """Return the result of the work; a cancelled task waits for its end before it gets its CancelledError."""
    cancelled: asyncio.CancelledError | None = None
    # In a loop, because a task may be cancelled several times; asyncio.wait() leaves the work itself alone.
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        work.exception()  # Marks the exception as retrieved, so that asyncio does not log it.
        raise cancelled
    return work.result()
