"""The lock libraries on one machine's disk; fencelock takes part with SQLite."""

import os
from typing import Any

from fencelock_lab.benchmarks.peers.contender import Calls, Contender, ContenderLock
from fencelock_lab.benchmarks.peers.ours import OURS
from fencelock_lab.benchmarks.stores.sqlite import folder_of

_FLOCK = "no token, no lease: freed by the kernel when the process ends, never taken from a frozen one"


def _by_hand(url: str, name: str) -> ContenderLock:
    from fencelock_lab.benchmarks.stores.sqlite import SQLiteHandWrittenLock

    lock = SQLiteHandWrittenLock(folder_of(url) / f"by-hand-{name}.db")
    return Calls(lock.take, lock.free)


def _flock(url: str, name: str) -> ContenderLock:
    import fcntl

    descriptor = os.open(folder_of(url) / f"flock-{name}", os.O_RDWR | os.O_CREAT, 0o600)
    return Calls(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX), lambda: fcntl.flock(descriptor, fcntl.LOCK_UN))


def _filelock(url: str, name: str) -> ContenderLock:
    import filelock

    lock = filelock.FileLock(folder_of(url) / f"filelock-{name}")
    return Calls(lock.acquire, lock.release)


def _generation(url: str, name: str) -> ContenderLock:
    import filelock

    lock: Any = filelock.SoftReadWriteLock(str(folder_of(url) / f"generation-{name}"))
    return Calls(lock.acquire_write, lock.release)


def _portalocker(url: str, name: str) -> ContenderLock:
    import portalocker

    lock = portalocker.Lock(str(folder_of(url) / f"portalocker-{name}"), "a", timeout=600)
    return Calls(lock.acquire, lock.release)


def _fasteners(url: str, name: str) -> ContenderLock:
    import fasteners

    lock = fasteners.InterProcessLock(folder_of(url) / f"fasteners-{name}")
    return Calls(lock.acquire, lock.release)


def _tooz(url: str, name: str) -> ContenderLock:
    from tooz import coordination

    coordinator = coordination.get_coordinator(f"file://{folder_of(url)}/tooz", b"bench")
    coordinator.start()
    lock = coordinator.get_lock(name.encode())
    return Calls(lock.acquire, lock.release)


IMPORTS = ("fasteners", "filelock", "portalocker", "sqlite3", "tooz.coordination", "tooz.drivers.file")
CONTENDERS = [
    Contender("two SQLite transactions by hand", _by_hand, "no waiting, no renewal", can_wait=False),
    *OURS,
    Contender("flock(2) by hand", _flock, _FLOCK),
    Contender("fasteners", _fasteners, _FLOCK),
    Contender("portalocker", _portalocker, f"{_FLOCK}; polls"),
    Contender("filelock FileLock", _filelock, f"{_FLOCK}; polls"),
    Contender(
        "filelock SoftReadWriteLock",
        _generation,
        "a generation that nothing enforces; polls for minutes among many",
        can_wait=False,
    ),
    Contender("tooz", _tooz, _FLOCK),
]
