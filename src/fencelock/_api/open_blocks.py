"""Notice a guarded transaction that would wait for itself.

Whoever holds one place's write lock and asks for it again, in the same thread or task, would wait for
nobody but itself until the patience ends. Promise: that is GuardError at once. A thread conflicts with
everything open in it, since the tasks of its loop cannot go on while it waits; a task conflicts with
itself only.
"""

import os
import threading

from fencelock.errors import GuardError


class OpenBlock:
    """One guarded transaction: where, and in which task (None: by a thread)."""

    __slots__ = ("_home", "place", "task")

    def __init__(self, place: str) -> None:
        self.place = place
        self.task: object = None
        self._home: list[OpenBlock] = []

    def begin(self, task: object = None) -> None:
        """Take the place for this thread or task, until the end; GuardError if it has the place already."""
        check_free(self.place, task)
        self.task = task
        self._home = _THREAD.open
        self._home.append(self)

    def end(self) -> None:
        """The transaction has ended, if it had begun; any thread may say so, and more than once."""
        if self in self._home:
            self._home.remove(self)


class _Thread(threading.local):
    def __init__(self) -> None:
        self.open: list[OpenBlock] = []


_THREAD = _Thread()


def _after_fork_in_child() -> None:
    """Forget the parent's open transactions: what bars the child from the file is that the parent has it open."""
    _THREAD.open = []


os.register_at_fork(after_in_child=_after_fork_in_child)


def check_free(place: str, task: object = None) -> None:
    """Raise GuardError if this thread, or this task, has a guarded transaction open at the place."""
    for open_block in _THREAD.open:
        if open_block.place == place and (task is None or task is open_block.task):
            who = "thread" if task is None else "task"
            raise GuardError(
                f"this {who} has a guarded transaction open on {place} already, and would wait for itself: leave that "
                f"block first, or put everything into one guard(resources=[…])"
            )
