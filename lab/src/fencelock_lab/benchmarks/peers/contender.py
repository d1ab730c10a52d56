"""The interface of a contender: acquire and release a lock; and the text that says what it lacks.

Each contender runs with the settings that its own documents recommend, and reuses its handle where it allows that.
Never: a contender slowed down by the benchmark's own code.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio


class ContenderLock(Protocol):
    """One handle on one lock, in one process."""

    def acquire(self) -> object:
        """Acquire the lock, waiting without limit."""

    def release(self) -> object:
        """Free it."""

    def cycles(self, count: int) -> list[int]:
        """Acquire and release it this many times, and return the nanoseconds of each cycle."""


class Calls:
    """A lock of two plain calls."""

    def __init__(self, acquire: Callable[[], object], release: Callable[[], object]) -> None:
        self.acquire = acquire
        self.release = release

    def cycles(self, count: int) -> list[int]:
        """Acquire and release it this many times."""
        taken = []
        for _ in range(count):
            began_ns = perf_counter_ns()
            self.acquire()
            self.release()
            taken.append(perf_counter_ns() - began_ns)
        return taken


class Coroutines:
    """A lock of two coroutine functions, used on one loop."""

    def __init__(
        self, acquire: Callable[[], Coroutine[Any, Any, object]], release: Callable[[], Coroutine[Any, Any, object]]
    ) -> None:
        self._acquire = acquire
        self._release = release

    def acquire(self) -> object:
        """Take the lock."""
        return run(self._acquire())

    def release(self) -> object:
        """Free it."""
        return run(self._release())

    def cycles(self, count: int) -> list[int]:
        """Acquire and release it this many times, without leaving the loop in between."""

        async def work() -> list[int]:
            taken = []
            for _ in range(count):
                began_ns = perf_counter_ns()
                await self._acquire()
                await self._release()
                taken.append(perf_counter_ns() - began_ns)
            return taken

        return run(work())


Result = TypeVar("Result")


@cache
def _runner() -> "asyncio.Runner":
    import asyncio

    return asyncio.Runner()


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on this process's one loop."""
    return _runner().run(work)


@dataclass(frozen=True, slots=True)
class Contender:
    """One row of the comparison. `make` is given the store's address and the lock's name, in the contender's process.

    `lacks` says in a few words what fencelock does and it does not.
    """

    name: str
    make: Callable[[str, str], ContenderLock]
    lacks: str = ""
    can_wait: bool = True
    """Whether it is fit for contention: it waits by itself, and frees what it took when its process ends."""
