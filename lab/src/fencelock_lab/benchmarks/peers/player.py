"""One contender in a process of its own.

Processes are forked from one that has imported the common modules and used none of them, so 64 of them start
in a second. Times are nanoseconds of CLOCK_MONOTONIC, the same for all processes.
"""

import multiprocessing
import os
import time
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fencelock_lab.benchmarks.child import Child, serve
from fencelock_lab.benchmarks.peers.contender import Contender, ContenderLock

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_context = multiprocessing.get_context("forkserver")


def contenders(store: str) -> list[Contender]:
    """Return the contenders on a store; the others are compared with the first."""
    found: list[Contender] = import_module(f"fencelock_lab.benchmarks.peers.{store}").CONTENDERS
    return found


def prepare(store: str) -> None:
    """Import what all players of this store need. A library that is not installed reports that at its first command."""
    peers = f"fencelock_lab.benchmarks.peers.{store}"
    own = (
        __name__,
        peers,
        f"fencelock_lab.benchmarks.stores.{store}",
        f"fencelock.stores.{store}.source",
        "fencelock.aio",
    )
    _context.set_forkserver_preload([*own, *import_module(peers).IMPORTS])


class Player(Child):
    """A contender's process, as its parent sees it."""

    def __init__(self, store: str, contender: Contender, url: str, lock: str) -> None:
        super().__init__(_context, main, contender.name, store, url, lock)
        self.contender = contender


def play(lock: ContenderLock, *command: Any) -> Any:
    """Carry out one command, and return the answer."""
    match command:
        case ("cycles", count):
            return lock.cycles(count)
        case ("acquire",):
            lock.acquire()
            return time.monotonic_ns()
        case ("release",):
            released_ns = time.monotonic_ns()
            lock.release()
            return released_ns
        case ("contend", seconds):
            return _contend(lock, seconds)
        case _:
            raise ValueError(command)


def _contend(lock: ContenderLock, seconds: float) -> tuple[int, int, int]:
    """Acquire and release the lock for some time; return the count, the longest wait in nanoseconds, and the end.

    A process that waits when the time is over still has its turn.
    """
    count = longest_ns = 0
    end_ns = time.monotonic_ns() + int(seconds * 1e9)
    while (began_ns := time.monotonic_ns()) < end_ns:
        lock.acquire()
        longest_ns = max(longest_ns, time.monotonic_ns() - began_ns)
        lock.release()
        count += 1
    return count, longest_ns, time.monotonic_ns()


def main(name: str, store: str, url: str, lock_name: str, line: "Connection[Any, Any]") -> None:
    """Run the contender of this name, and discard what its library prints."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)

    @cache
    def lock() -> ContenderLock:
        (contender,) = [one for one in contenders(store) if one.name == name]
        return contender.make(url, lock_name)

    serve(line, lambda *command: play(lock(), *command))
    os._exit(0)  # Some have threads that never end.
