"""`fencelock run --once`: CMD is run at least once for a key, and not again after that was recorded.

Promise: the key is looked up under the lock before CMD runs, and recorded after CMD has ended with 0. Never: recorded
for a CMD that failed, or by a stale lease. What cannot be promised: that a CMD whose end was not recorded did nothing.
"""

import os

import fencelock
from fencelock.cli.errors import complain
from fencelock.cli.run.options import RunOptions


class CommandOnce:
    """The key of one run, which the guard keeps at the resource that has the lock's name."""

    def __init__(self, key: str, options: RunOptions) -> None:
        self._guard = fencelock.guard(options.guards[0], resource=options.name, lock=options.name)
        self._once = fencelock.Once(key, request=b"\0".join(map(os.fsencode, options.words)))

    def was_done(self, lease: fencelock.Lease) -> bool:
        """Return whether CMD was recorded under the key, and say so; the resource is sealed with the lease's token."""
        block = self._guard.transaction(lease, once=self._once)
        try:
            block.__enter__()
        except fencelock.AlreadyDoneError as error:
            complain(f"{self._once.key!r} was done before, with token {error.token}: CMD is not run")
            return True
        undone = _UndoneError()
        block.__exit__(_UndoneError, undone, None)
        return False

    def record(self, lease: fencelock.Lease) -> bool:
        """Record that CMD has ended with 0, and return whether that succeeded."""
        try:
            with self._guard.transaction(lease, once=self._once):
                pass
        except fencelock.AlreadyDoneError as error:
            complain(f"{self._once.key!r} was also done with token {error.token}, while CMD ran")
        except fencelock.FencelockError as error:
            complain(f"CMD ended with 0, but {self._once.key!r} was not recorded, so it will be run again: {error}")
            return False
        return True


class _UndoneError(Exception):
    """Undoes the block that found the key free."""
