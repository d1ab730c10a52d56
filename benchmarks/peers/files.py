"""Who offers locks on one machine's disk; fenceline is there with SQLite."""

import os
from pathlib import Path
from typing import Any

from benchmarks.peers.contender import Calls, Contender, Lock
from benchmarks.peers.ours import OURS

_FLOCK = "no token, no lease: freed by the kernel when the process ends, never taken from a frozen one"


def _folder(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///")).parent


def _by_hand(url: str, name: str) -> Lock:
    from benchmarks.floor import HandWrittenLock

    lock = HandWrittenLock(_folder(url) / f"by-hand-{name}.db")
    return Calls(lock.take, lock.free)


def _flock(url: str, name: str) -> Lock:
    import fcntl

    descriptor = os.open(_folder(url) / f"flock-{name}", os.O_RDWR | os.O_CREAT, 0o600)
    return Calls(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX), lambda: fcntl.flock(descriptor, fcntl.LOCK_UN))


def _filelock(url: str, name: str) -> Lock:
    import filelock

    lock = filelock.FileLock(_folder(url) / f"filelock-{name}")
    return Calls(lock.acquire, lock.release)


def _generation(url: str, name: str) -> Lock:
    import filelock

    lock: Any = filelock.SoftReadWriteLock(str(_folder(url) / f"generation-{name}"))
    return Calls(lock.acquire_write, lock.release)


def _portalocker(url: str, name: str) -> Lock:
    import portalocker

    lock = portalocker.Lock(str(_folder(url) / f"portalocker-{name}"), "a", timeout=600)
    return Calls(lock.acquire, lock.release)


def _fasteners(url: str, name: str) -> Lock:
    import fasteners

    lock = fasteners.InterProcessLock(_folder(url) / f"fasteners-{name}")
    return Calls(lock.acquire, lock.release)


def _tooz(url: str, name: str) -> Lock:
    from tooz import coordination

    coordinator = coordination.get_coordinator(f"file://{_folder(url)}/tooz", b"bench")
    coordinator.start()
    lock = coordinator.get_lock(name.encode())
    return Calls(lock.acquire, lock.release)


CONTENDERS = [
    Contender("two SQLite transactions by hand", _by_hand, "no waiting, no renewal", can_wait=False),
    *OURS,
    Contender("flock(2) by hand", _flock, _FLOCK),
    Contender("fasteners", _fasteners, _FLOCK),
    Contender("portalocker", _portalocker, f"{_FLOCK}; polls"),
    Contender("filelock FileLock", _filelock, f"{_FLOCK}; polls"),
    Contender("filelock SoftReadWriteLock", _generation, "a generation that nothing enforces; polls"),
    Contender("tooz", _tooz, _FLOCK),
]
