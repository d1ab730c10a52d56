"""Wakes the next waiter: one named pipe per waiting claim, in a folder beside the database file.

Promise: `notify` never blocks and never fails. A waiter polls by itself after `wait_ms`, so a lost notification costs
time only. A wakeup removes its pipe however the wait ends, also by an exception from a signal handler; the pipe of a
killed waiter is removed with its queue entry. Pipes have the permissions of the database, and work between containers
that share its folder.
Never: state that matters (the whole folder may be deleted at any time), or a claim or proof in a file name, because
names appear in error messages and listings. A pipe has the name of its claim's digest.
"""

import os
from contextlib import closing, suppress
from io import FileIO
from pathlib import Path

from fencelock._platform import no_descriptor_left
from fencelock.errors import SourceUnavailableError
from fencelock.stores.descriptors import Descriptor

_DRAIN_BYTES = 4096
_MAX_RACES = 100


class PipeWakeup:
    """The listening end: becomes readable when the waiting claim should poll."""

    _is_open = False

    def __init__(self, database: Path, digest: str) -> None:
        self._process_id = os.getpid()
        self._path = _path(database, digest)
        # Before the pipe is made: if a signal handler raises after that, the finalizer still removes the name.
        self._is_open = True
        try:
            self._pipe = _open_listening(database, self._path)
        except OSError as error:
            raise no_descriptor_left(error) or SourceUnavailableError(
                f"{self._path} could not be made ({error.strerror}): waiting for a lock needs a writable folder beside "
                f"{database}"
            ) from error

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the waiter was notified."""
        return self._pipe.fileno()

    def drain(self) -> None:
        """Discard the notifications so far."""
        self._pipe.read(_DRAIN_BYTES)

    def close(self) -> None:
        """Stop listening and remove the pipe; in a forked child the pipe stays, because it is the parent's."""
        if self._is_open:
            # `_is_open` is cleared last: if a signal handler's exception interrupts this, the finalizer repeats it.
            if self._process_id == os.getpid():
                with suppress(OSError):
                    os.unlink(self._path)
            if hasattr(self, "_pipe"):
                self._pipe.close()
            self._is_open = False

    def __del__(self) -> None:
        """Close what an exception from a signal handler left open."""
        self.close()


def notify(database: Path, digest: str) -> None:
    """Wake the waiter of the claim with this digest, if it is listening."""
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(OSError), closing(Descriptor(_path(database, digest), flags)) as pipe:
        os.write(pipe.fileno(), b"!")


def remove(database: Path, digest: str) -> None:
    """Remove the pipe of a waiter that died."""
    with suppress(OSError):
        os.unlink(_path(database, digest))


def remove_all(database: Path) -> None:
    """Remove every pipe, with the folder that they are in."""
    folder = Path(_path(database, "any")).parent
    for pipe in folder.glob("*"):
        with suppress(OSError):
            pipe.unlink()
    with suppress(OSError):
        folder.rmdir()


def _path(database: Path, digest: str) -> str:
    # Beside the file itself, as SQLite's log is, also when it is opened through a symbolic link.
    return f"{os.path.realpath(database)}-wake/{digest}"


def _open_listening(database: Path, path: str) -> FileIO:
    """Create the pipe and open it. A file object closes itself where a signal would leak a bare descriptor."""
    permissions = os.stat(database).st_mode & 0o666
    folder = os.path.dirname(path)
    for _ in range(_MAX_RACES):
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            # By chmod, since mkdir subtracts the umask. Who may read the database may enter the folder (r gives x).
            os.chmod(folder, permissions | (permissions & 0o444) >> 2)
        with suppress(FileExistsError, FileNotFoundError):
            os.mkfifo(path, 0o600)
            os.chmod(path, permissions)
        # For reading and writing: without a writer of its own, the pipe stays readable after the first notifier closes.
        with suppress(FileNotFoundError):
            pipe = FileIO(path, "r+")
            os.set_blocking(pipe.fileno(), False)
            return pipe
    raise FileNotFoundError(2, "the folder is removed again and again", folder)
