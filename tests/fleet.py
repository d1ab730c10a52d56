"""The servers of a test session, whatever they serve: private ones, in folders of their own, and all gone with it."""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

from tests.private_server import give, roomy_folder, watch


class Closable(Protocol):
    """A server, or several."""

    def close(self) -> None:
        """End it, in whatever state it is."""


class BaseFleet:
    """What all kinds of fleets know: their folder, and what is to be ended with them. Each server writes its pid into
    its `lock_file`.
    """

    def __init__(self, folder: Path, lock_file: str) -> None:
        self.folder = folder
        # A session that is killed, by a time limit for one, leaves no server behind.
        self._watcher = watch(folder, lock_file)
        self._numbers = itertools.count(1)
        self._owned: list[Closable] = []

    def new_folder(self, name: str) -> Path:
        """Return a new folder of the runner's."""
        folder = self.folder / f"{name}-{next(self._numbers)}"
        folder.mkdir(mode=0o700)
        return give(folder)

    def close(self) -> None:
        """End all that was started."""
        for each in self._owned:
            each.close()
        # Nothing is left to be watched; a forked child of some test may have the other end of its pipe, and hang.
        self._watcher.terminate()
        self._watcher.communicate()


AnyFleet = TypeVar("AnyFleet", bound=BaseFleet)


@contextmanager
def fleet_of(kind: type[AnyFleet], prefix: str) -> Iterator[AnyFleet]:
    """Yield a fleet in a new folder. It is no temporary one of pytest's: the runner has to reach it."""
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=roomy_folder()))
    folder.chmod(0o755)
    fleet = kind(folder)  # type: ignore[call-arg]
    try:
        yield fleet
    finally:
        fleet.close()
        shutil.rmtree(folder, ignore_errors=True)
