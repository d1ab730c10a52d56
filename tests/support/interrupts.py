"""A cancellation, or a signal handler's exception, at any await."""

import asyncio
import sys
from collections.abc import Awaitable, Generator
from types import TracebackType
from typing import Any

from fencelock.testing.conformance.interrupts import INTERRUPTS


class CancelledAt:
    """Runs an awaitable, and cancels the running task when it waits for the time with this number."""

    def __init__(self, awaitable: Awaitable[Any], wait: int) -> None:
        self.has_come = False
        self._inner = awaitable.__await__()
        self._left = wait

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def __iter__(self) -> "CancelledAt":
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Go on until the next wait."""
        return self._count(self._inner.send(value))

    def throw(self, error: BaseException, _: object = None, __: TracebackType | None = None) -> Any:
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


class InterruptedAt(CancelledAt):
    """Runs an awaitable, and raises what a signal handler may raise as it goes on after the wait with this number."""

    def send(self, value: Any) -> Any:
        """Go on until the next wait."""
        if self._left >= 0:
            return super().send(value)
        self.has_come, self._left = True, sys.maxsize
        return self.throw(INTERRUPTS[0]())

    def _count(self, waited_for: Any) -> Any:
        self._left -= 1
        return waited_for
