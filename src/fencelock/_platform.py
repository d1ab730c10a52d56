"""What the operating system lacks, in one place: `import fencelock` works everywhere.

Only what SQLite asks of macOS is elsewhere: `stores/sqlite/connection/macos.py`.

Promise: Linux is the system that the tests run on. On macOS, eventfd(2) is replaced by a pipe, and the clock is the one
that counts sleep by its manual; nothing of it was ever run there. On Windows, each store of fencelock is refused, in
one sentence that says what it needs. Never: another module that asks for the system's name.
"""

import errno
import os
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from fencelock.errors import SourceUnavailableError, UnsupportedError

_NAME: str = sys.platform
IS_LINUX = _NAME == "linux"
IS_MACOS = _NAME == "darwin"
IS_WINDOWS = _NAME == "win32"
_ONE = (1).to_bytes(8, sys.byteorder)
"""What eventfd(2) takes: a number of eight bytes. A pipe takes it too."""
_DRAIN_BYTES = 4096
_FILE_NEEDS = "POSIX file locks, named pipes and a clock that counts suspend"
_SERVER_NEEDS = "poll(2), with which threads wait for a lock,"


def at_fork(**handlers: Callable[[], object]) -> None:
    """Register handlers with `os.register_at_fork`; a system without it cannot fork."""
    register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
    if register is not None:
        register(**handlers)


class RenewsAfterFork(Protocol):
    """An object that a forked child begins anew, because threads of the parent may have held its locks."""

    def renew_after_fork(self) -> None:
        """Begin anew; called in the child before any of its threads can use the object."""


def renew_after_fork(renewed: RenewsAfterFork) -> None:
    """Have each forked child call the object's `renew_after_fork`, as long as there is the object.

    A comparison of process ids in each method would not do: two threads of the child may come at the same time.
    """
    _RENEWED.add(renewed)


def is_root() -> bool:
    """Return whether this process is the system's administrator, where the system tells."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def clock_ns() -> tuple[Callable[[], int], bool]:
    """Return the function of the clock in nanoseconds, without arguments, and whether it counts suspend."""
    from functools import partial

    if hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME), True
    if IS_MACOS:
        # By clock_gettime(3) of macOS it goes on while the system is asleep, as CLOCK_MONOTONIC does, which was seen
        # to go back there (erlang/otp 5825).
        return partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC_RAW), True
    return time.monotonic_ns, False


def check_store(scheme: str) -> None:
    """Raise UnsupportedError if a store of fencelock cannot work on this system."""
    if IS_WINDOWS:
        needs = _FILE_NEEDS if scheme in {"file", "sqlite"} else _SERVER_NEEDS
        raise UnsupportedError(
            f"{scheme}:// needs {needs} which fencelock does not have on Windows: run this program in WSL 2 or in a "
            f"Linux container"
        )


def check_command(name: str) -> None:
    """Raise UnsupportedError unless a command that supervises processes can do so here."""
    if not IS_LINUX:
        raise UnsupportedError(
            f"`fencelock {name}` supervises processes by Linux's /proc: run it on Linux, or hold the lock in "
            f"Python with fencelock.connect(…)"
        )


def no_descriptor_left(error: OSError) -> SourceUnavailableError | None:
    """Return what to raise if an error says that there are too many open files for a wait; None if it does not."""
    if error.errno not in {errno.EMFILE, errno.ENFILE}:
        return None
    return SourceUnavailableError(
        f"this process could open nothing to wait on ({error.strerror}): close some files, or raise the limit "
        f"(`ulimit -n`). The lock was not acquired"
    )


class Notification:
    """A descriptor that becomes readable when it is notified: an eventfd, or a pipe on a system without one."""

    def __init__(self) -> None:
        try:
            self._reader, self._writer = _open_notification()
        except OSError as error:
            if (mapped := no_descriptor_left(error)) is None:
                raise
            raise mapped from error

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._reader

    def notify(self) -> None:
        """Make the descriptor readable; it is already if a pipe is full."""
        with suppress(BlockingIOError):
            os.write(self._writer, _ONE)

    def drain(self) -> None:
        """Discard the notifications so far."""
        with suppress(BlockingIOError):
            os.read(self._reader, _DRAIN_BYTES)

    def close(self) -> None:
        """Close the descriptor, whose number the kernel gives to others: `fileno` returns -1 from then on."""
        descriptors = {self._reader, self._writer}
        self._reader = self._writer = -1
        for descriptor in descriptors:
            os.close(descriptor)


def _open_notification() -> tuple[int, int]:
    """Return the descriptors to read from and to write to."""
    if hasattr(os, "eventfd"):
        descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        return descriptor, descriptor
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    return reader, writer


def _after_fork_in_child() -> None:
    for renewed in list(_RENEWED):
        renewed.renew_after_fork()


_RENEWED: "weakref.WeakSet[RenewsAfterFork]" = weakref.WeakSet()
at_fork(after_in_child=_after_fork_in_child)
