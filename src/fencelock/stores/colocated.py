"""A guard that has been told where in its own store the locks are: `?locks=…` in its URL.

Such a guard compares the lock's own key or node as well, so that a lease that is over writes nothing any more, even
before a later holder has sealed. Promise: said, never guessed; a lock of another source is refused there. A lease's key
is searched for once, so that a long queue costs later blocks nothing.
"""

from typing import Generic, TypeVar

from fencelock.errors import GuardError, WrongLockError
from fencelock.model import Sequencer

_PARAMETER = "locks="
MAX_REMEMBERED = 1024
"""Leases of which a guard remembers where they hold their locks."""
Key = TypeVar("Key", str, bytes)


class Found(Generic[Key]):
    """Where leases hold their locks, as far as it was searched for."""

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}

    def of(self, sequencer: Sequencer) -> Key | None:
        """Return the key by which a lease holds its lock, if it was found before."""
        return self._keys.get(sequencer.claim)

    def remember(self, sequencer: Sequencer, key: Key) -> None:
        """Take note of it."""
        if len(self._keys) >= MAX_REMEMBERED and sequencer.claim not in self._keys:
            self._keys = {}
        self._keys[sequencer.claim] = key


def split_locks(url: str) -> tuple[str, str | None]:
    """Return the URL without `locks=…`, and what that says; None if it says nothing."""
    place, mark, query = url.partition("?")
    parts = query.split("&") if mark else []
    said = [part.removeprefix(_PARAMETER) for part in parts if part.startswith(_PARAMETER)]
    others = [part for part in parts if not part.startswith(_PARAMETER)]
    return f"{place}?{'&'.join(others)}" if others else place, said[-1] if said else None


def check_source(sequencer: Sequencer, source_id: str, where: str) -> None:
    """Raise WrongLockError unless the lease is of the source that is there."""
    if sequencer.source_id != source_id:
        raise WrongLockError(
            f"the lease on lock {sequencer.lock!r} is of source {sequencer.source_id}, and this guard's URL says that "
            f"its locks are at {where}, where source {source_id} is: acquire the lock there, or leave locks=… out"
        )


def is_over(sequencer: Sequencer, where: str) -> GuardError:
    """Return the error for a lease whose own key is not there any more."""
    return GuardError(
        f"the lease with token {sequencer.token} on lock {sequencer.lock!r} is over: {where} knows it no more, since "
        f"it was released, lost or broken. Nothing was written: stop, and acquire the lock again"
    )
