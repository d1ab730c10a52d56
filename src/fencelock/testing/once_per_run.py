"""Work that several processes of one run need done once: the first one does it, the last one undoes it.

Promise: one `setup` at a time, and none while its value is in use. `teardown` runs when nobody uses the value any more;
what killed users left is undone by the next one that comes, if one does. A `setup` that raises is tried again by the
next process.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote


def _nothing(value: Any) -> None:
    """Undo nothing."""


class OncePerRun:
    """Does things once for all processes that are given the same folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def __call__(
        self, name: str, setup: Callable[[], Any], teardown: Callable[[Any], object] = _nothing
    ) -> Iterator[Any]:
        """Yield what `setup` returned in the process that came first: a value that JSON can hold.

        The last process to leave calls `teardown` with the value. A process that comes after that begins anew.
        """
        shared = _Shared(self._folder, name)
        with open(shared.users, "a") as users:
            with shared.locked():
                if _is_alone(users.fileno()):
                    shared.undo(teardown)
                    shared.keep(setup())
                fcntl.flock(users, fcntl.LOCK_SH)
                value = shared.value()
            try:
                yield value
            finally:
                with shared.locked():
                    if _is_alone(users.fileno()):
                        shared.undo(teardown)


class _Shared:
    """The files of one name: who uses the value, and the value itself."""

    def __init__(self, folder: Path, name: str) -> None:
        base = folder / f"fencelock-once-{quote(name, safe='')}"
        self.users = Path(f"{base}.users")
        self._lock = Path(f"{base}.lock")
        self._value = Path(f"{base}.json")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other process out of the block."""
        with open(self._lock, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def keep(self, value: Any) -> None:
        whole = self._value.with_suffix(".new")
        whole.write_text(json.dumps(value))
        os.replace(whole, self._value)

    def value(self) -> Any:
        return json.loads(self._value.read_text())

    def undo(self, teardown: Callable[[Any], object]) -> None:
        """Undo the setup, if one is left."""
        if self._value.exists():
            value = self.value()
            self._value.unlink()
            teardown(value)


def _is_alone(users: int) -> bool:
    """Return whether no other process uses the value: who does holds a lock on the file, shared, until it ends."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
