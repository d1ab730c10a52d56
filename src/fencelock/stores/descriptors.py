"""Open files and folders that are closed exactly once, whatever exception comes from outside.

A signal handler runs between two instructions of Python, and may raise there. A number that `os.open` has returned and
nobody has noted yet would stay open for ever; a number that is noted still and closed already may be another file by
then. So opening and noting is one call of C code here, closing and forgetting another, and the finalizer a third.

Promise: a descriptor belongs to one object, which closes it once, at the latest when nothing refers to the object.
"""

import os
from collections import deque
from functools import partial
from operator import attrgetter

_CLOSED = -1
"""A number that the kernel refuses."""


class Descriptor:
    """An open file or folder of the system.

    `close()` may be called again, and does nothing then; OSError if the system reports one at the first call.
    """

    __del__ = property(attrgetter("close"))
    """A method in Python could be interrupted as it begins."""

    def __init__(self, path: str | os.PathLike[str], flags: int, mode: int = 0o777, parent: int | None = None) -> None:
        # One of the two stays when the descriptor is closed.
        self._numbers = numbers = [_CLOSED, _CLOSED]
        # `pop` until it returns _CLOSED, and close each.
        self.close = partial(deque[None], map(os.close, iter(numbers.pop, _CLOSED)), 0)
        numbers.extend(map(partial(os.open, dir_fd=parent), (path,), (flags,), (mode,)))

    def fileno(self) -> int:
        """Return the number; -1 if it is closed."""
        return self._numbers[-1]
