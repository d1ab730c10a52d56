"""Says on stderr for whom a `fencelock run` waits, if it waits for longer than a moment.

Promise: the wait itself sends no request more, and keeps its place: a thread of its own asks the source, once, and ends
with the process. Never: a line for a lock that was obtained before it could be printed.
"""

import threading
from contextlib import suppress
from typing import Self

import fencelock
from fencelock.cli.errors import complain
from fencelock.cli.output import printable
from fencelock.cli.run.options import RunOptions

SAY_AFTER_S = 1.0
"""A shorter wait is not worth a line."""


class WaitNote:
    """A block around the wait for the lock."""

    def __init__(self, source: fencelock.Source, options: RunOptions) -> None:
        self._source = source
        self._options = options
        self._is_over = threading.Event()

    def __enter__(self) -> Self:
        if self._options.wait != 0:
            with suppress(RuntimeError):  # No thread can be started: the line is missing, and nothing else.
                threading.Thread(target=self._say, name="fencelock-wait-note", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()

    def _say(self) -> None:
        if self._is_over.wait(SAY_AFTER_S):
            return
        # An error of the source is the waiting thread's to report.
        with suppress(Exception):
            holder = holder_text(self._source.info(self._options.name))
            if not self._is_over.is_set():
                complain(
                    f"waiting for lock {self._options.name!r}: {holder or 'it is free or promised to a waiter now'}"
                )


def holder_text(info: fencelock.LockInfo) -> str | None:
    """Return who holds the lock, with which token, for how long at least, and how many wait; None if nobody does."""
    if info.holder is None:
        return None
    left = "its time left is unknown" if info.ttl is None else f"{info.remaining:.1f} s left of its lease"
    return f"{printable(info.holder)} holds it with token {info.token}, {left}; waiting: {len(info.waiters)}"
