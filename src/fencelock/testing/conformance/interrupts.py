"""Exceptions that come from outside, at any place of a program: what a signal handler raises, and cancellations.

Promise: what a handler raises comes where Python runs handlers, and raises what another thread has asked for: when it
enters a function, and when a call has returned. Never elsewhere: between a `with` and its end, for example, no handler
runs. A cancellation comes where a task waits.
"""

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

_PLACES = {"call", "return", "c_return"}


class HandlerError(Exception):
    """What a handler raises: an ordinary exception, which an `except Exception` catches."""


class HandlerExit(BaseException):
    """What a handler raises: like KeyboardInterrupt, no ordinary exception."""


INTERRUPTS = (HandlerExit, HandlerError)


class Interruption:
    """Raises at the place with this number, of all places where a handler might run in these files."""

    def __init__(self, place: int | None, files: tuple[str, ...]) -> None:
        self.has_come = False
        self.places = 0
        """How many places there were until now."""
        self._place = place
        self._files = files

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """Count one place, and raise at the one that was asked for."""
        if self.has_come or event not in _PLACES or not self._is_ours(frame) or _is_collecting(frame):
            return
        if frame.f_code.co_flags & inspect.CO_COROUTINE and event != "c_return":
            return  # It waits, or goes on: Python reports a return or a call then, but runs no handler there.
        place, self.places = self.places, self.places + 1
        if place == self._place:
            self.has_come = True
            raise INTERRUPTS[place % 2]

    def _is_ours(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        return file != __file__ and any(part in file for part in self._files)


def _is_collecting(frame: FrameType | None) -> bool:
    """Return whether the frame runs in a `__del__`, out of which no exception comes."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


@contextmanager
def interrupted_at(place: int | None, *files: str) -> Iterator[Interruption]:
    """Raise one of INTERRUPTS in this thread, at this place; without a place, or if there are fewer, only count them.

    `files`: parts of the names of the files whose places count.
    """
    interruption, before = Interruption(place, files), sys.getprofile()
    sys.setprofile(interruption.profile)
    try:
        yield interruption
    finally:
        sys.setprofile(before)


class CancelledAt(Generator[Any, Any, Any]):
    """Runs an awaitable, and cancels the running task when it waits for the time with this number."""

    def __init__(self, awaitable: Awaitable[Any], wait: int) -> None:
        self.has_come = False
        self._inner: Any = awaitable.__await__()
        self._left = wait

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def send(self, value: Any) -> Any:
        """Go on until the next wait."""
        return self._count(self._inner.send(value))

    def throw(self, error: Any, _: object = None, __: TracebackType | None = None, /) -> Any:
        """Go on with an exception until the next wait."""
        return self._count(self._inner.throw(error))

    def close(self) -> None:
        """End the awaitable."""
        self._inner.close()

    def _count(self, waited_for: Any) -> Any:
        self._left -= 1
        if self._left == -1:
            self.has_come = True
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return waited_for
