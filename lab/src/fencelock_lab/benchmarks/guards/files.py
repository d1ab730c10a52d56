"""A guarded write of files against one by hand, with a flock and a look at a mark, and one without a check.

A statement is a file of a few bytes. All three write a draft, flush it, rename it, and flush the folder. The one by
hand lacks: the same for several files at once, in a crash; the mark's lock and source; the refusal of files that
changed meanwhile, of links, and of names that lead out of the folder.
"""

import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import fencelock
from fencelock_lab.benchmarks.guards import BY_HAND, GUARDED, LEASE, LOCK, NO_CHECK, RESOURCE, Kind

KINDS = (
    Kind("1 writer, 1 file", batch=5, aim=1.3),
    Kind("1 writer, 20 files", statements=20, batch=2, aim=1.3),
)
_MARK = b"1"


def prepare(url: str) -> None:
    """Make a folder with a mark by hand, and seal the resource."""
    folder = _by_hand(url)
    folder.mkdir()
    (folder / "mark").write_bytes(_MARK)
    (folder / "lock").touch()
    guard = _guard(url)
    guard.protect()
    guard.seal(LEASE)


def variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    """Return a write with a check by hand, one without a check, and a guarded one."""
    folder, guard = _by_hand(url), _guard(url)
    names = [f"{number}.txt" for number in range(kind.statements)]

    def by_hand() -> None:
        lock = os.open(folder / "lock", os.O_RDWR)
        try:
            drafts = _drafts(folder, names)
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert (folder / "mark").read_bytes() == _MARK
            _publish(folder, drafts)
        finally:
            os.close(lock)

    def unguarded() -> None:
        _publish(folder, _drafts(folder, names))

    def guarded() -> None:
        with guard.transaction(LEASE) as txn:
            for name in names:
                txn.write(name, b"x")

    return {BY_HAND: by_hand, NO_CHECK: unguarded, GUARDED: guarded}


def _drafts(folder: Path, names: Iterable[str]) -> dict[Path, Path]:
    """Write drafts to the disk, and return the file of each."""
    files = {folder / f"{name}.draft": folder / name for name in names}
    for draft in files:
        with draft.open("wb") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    return files


def _publish(folder: Path, drafts: dict[Path, Path]) -> None:
    for draft, file in drafts.items():
        draft.rename(file)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _by_hand(url: str) -> Path:
    return Path(url.removeprefix("file://"), "by-hand")


def _guard(url: str) -> fencelock.Guard:
    return fencelock.guard(url, resource=RESOURCE, lock=LOCK)
