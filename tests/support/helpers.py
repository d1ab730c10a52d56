"""What tests of every kind share: waiting for a condition or a thread, and freezing a process, without a sleep that
guesses.
"""

import asyncio
import os
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
"""The clone: for tests about the source and the documents, never to import from."""

DEADLINE_S = 30.0
"""How long a condition may take on a loaded machine. A test that passes never waits so long."""

_PAUSE_S = 0.005

Value = TypeVar("Value")


def wait_until(predicate: Callable[[], Value], timeout: float = DEADLINE_S) -> Value:
    """Return the first true value of `predicate()`; fail the test after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            reason = f"{predicate} was not true within {timeout} s; its last value: {value!r}"
            raise AssertionError(reason)
        time.sleep(_PAUSE_S)


async def wait_until_async(predicate: Callable[[], Value], timeout: float = DEADLINE_S) -> Value:
    """Do as `wait_until`, while the event loop goes on."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()) and time.monotonic() < deadline:  # noqa: ASYNC110 - the predicate is no event
        await asyncio.sleep(_PAUSE_S)
    if not value:
        reason = f"{predicate} was not true within {timeout} s; its last value: {value!r}"
        raise AssertionError(reason)
    return value


def check_is_quick(work: Callable[[], object], limit_s: float, timeout: float = DEADLINE_S) -> None:
    """Fail the test unless some work takes less than so many seconds.

    A busy machine only adds to them, so the work is done again until it was quick once. What is always slow fails.
    """

    def is_quick() -> bool:
        began_s = time.monotonic()
        work()
        return time.monotonic() - began_s < limit_s

    wait_until(is_quick, timeout)


def meanwhile(function: Callable[[], Any]) -> None:
    """Run something in another thread, and wait for its end."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def folder_in_memory(prefix: str) -> Path:
    """Make a folder where `tmp_path` has its own, for what is no fixture; whoever asks removes it."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))


def freeze(pid: int, *paths: Path) -> None:
    """Stop a process as SIGSTOP does, outside of every write transaction of the SQLite files, its keeper's included.

    Frozen inside one it would hold the whole file, take-over included: a limit that has tests of its own.
    """
    wait_until(lambda: _is_frozen_outside(pid, paths))


def _is_frozen_outside(pid: int, paths: tuple[Path, ...]) -> bool:
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(pid))
    if all(_has_no_writer(path) for path in paths):
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def is_stopped(pid: int) -> bool:
    """Return whether every thread of a process has stopped; the process need not be a child of this one."""
    states = [task.read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{pid}/task").glob("*/stat")]
    return bool(states) and set(states) == {"T"}


def _has_no_writer(path: Path) -> bool:
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
    return True
