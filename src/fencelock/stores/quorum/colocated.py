"""A guard whose URL says where in its own store the locks are (`?locks=…`).

Such a guard also compares the lock's own key or node, so that a lease that is over can write nothing, even before a
later holder has sealed. Promise: the place of the locks comes from the URL and is never guessed; a lease from another
source is refused. The guard searches for a lease's key once, so a long queue does not slow later blocks down.
"""

from typing import Generic, TypeVar

from fencelock.errors import GuardError, SchemaError, WrongLockError
from fencelock.model import Sequencer

_PARAMETER = "locks="
MAX_REMEMBERED = 1024
"""Leases whose keys a guard remembers."""
Key = TypeVar("Key", str, bytes)


class RememberedKeys(Generic[Key]):
    """The keys by which leases hold their locks, as far as the guard has searched for them."""

    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}

    def of(self, sequencer: Sequencer) -> Key | None:
        """Return the key by which a lease holds its lock, if it was found before."""
        return self._keys.get(sequencer.digest)

    def remember(self, sequencer: Sequencer, key: Key) -> None:
        """Remember a lease's key; forget all keys first when there are too many."""
        if len(self._keys) >= MAX_REMEMBERED and sequencer.digest not in self._keys:
            self._keys = {}
        self._keys[sequencer.digest] = key


def split_locks(url: str) -> tuple[str, str | None]:
    """Return the URL without `locks=…`, and the value of that parameter; None if the URL has none."""
    base, mark, query = url.partition("?")
    parts = query.split("&") if mark else []
    values = [part.removeprefix(_PARAMETER) for part in parts if part.startswith(_PARAMETER)]
    others = [part for part in parts if not part.startswith(_PARAMETER)]
    return f"{base}?{'&'.join(others)}" if others else base, values[-1] if values else None


def check_source(sequencer: Sequencer, source_id: str, where: str) -> None:
    """Raise WrongLockError unless the lease comes from the source at `where`."""
    if sequencer.source_id != source_id:
        raise WrongLockError(
            f"the lease on lock {sequencer.lock!r} is of source {sequencer.source_id}, and this guard's URL says that "
            f"its locks are at {where}, where source {source_id} is: acquire the lock there, or leave locks=… out"
        )


def no_source(where: str) -> SchemaError:
    """Return the error for a guard's URL that names the wrong place of the locks."""
    return SchemaError(
        f"{where} holds no source of tokens of fencelock's: name the place of the locks by locks=… in the guard's URL"
    )


def lease_is_over(sequencer: Sequencer, where: str) -> GuardError:
    """Return the error for a lease whose own key no longer exists."""
    return GuardError(
        f"the lease with token {sequencer.token} on lock {sequencer.lock!r} is over: {where} no longer has its key, "
        f"because it was released, lost or broken. Nothing was written: stop, and acquire the lock again"
    )
