"""Tell the next waiter that its turn has come: a named pipe for each waiting claim, beside the database file.

Promise: `notify` never blocks and never fails; a waiter that hears nothing looks by itself after `wait_ms`, so a bell
that is lost costs time and nothing else. A bell takes its pipe away however its waiter ends, an exception out of a
signal handler included; that of a killed one goes with its place in the queue. Pipes have the permissions of the
database, and work between containers that share its folder. Never: state that matters (deleting the whole folder harms
nobody), or a claim in a name, since names turn up in error messages and listings.
"""

import os
from contextlib import suppress
from io import FileIO
from pathlib import Path

from fencelock.errors import SourceUnavailableError

_DRAIN_BYTES = 4096
_NAME_BYTES = 16
_MAX_RACES = 100


class PipeWakeup:
    """The listening end: one waiting claim hears here that it should look again."""

    _is_open = False

    def __init__(self, database: Path, claim: str) -> None:
        self._process_id = os.getpid()
        self._path = _path(database, claim)
        self._is_open = True
        try:
            self._pipe = _open_listening(database, self._path)
        except OSError as error:
            raise SourceUnavailableError(
                f"{self._path} could not be made ({error.strerror}): waiting for a lock needs a writable folder beside "
                f"{database}"
            ) from error

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when somebody rang."""
        return self._pipe.fileno()

    def drain(self) -> None:
        """Forget the rings until now."""
        self._pipe.read(_DRAIN_BYTES)

    def close(self) -> None:
        """Stop listening, and take the pipe away; to a forked child it is its parent's, and stays."""
        if self._is_open:
            # In this order: what a signal handler's exception breaks off, the finalizer does again.
            if self._process_id == os.getpid():
                with suppress(OSError):
                    os.unlink(self._path)
            if hasattr(self, "_pipe"):
                self._pipe.close()
            self._is_open = False

    def __del__(self) -> None:
        """Close what an exception out of a signal handler left open."""
        self.close()


def notify(database: Path, claim: str) -> None:
    """Wake the waiter of this claim, if it listens."""
    with suppress(OSError):
        descriptor = os.open(_path(database, claim), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, b"!")
        finally:
            os.close(descriptor)


def remove(database: Path, claim: str) -> None:
    """Take away the pipe of a waiter that died."""
    with suppress(OSError):
        os.unlink(_path(database, claim))


def _path(database: Path, claim: str) -> str:
    import hashlib  # Only who waits, or has a waiter behind, pays for it.

    # Beside the file itself, as SQLite's log is, also for who opens it by a symbolic link.
    return f"{os.path.realpath(database)}-wake/{hashlib.blake2b(claim.encode(), digest_size=_NAME_BYTES).hexdigest()}"


def _open_listening(database: Path, path: str) -> FileIO:
    """Make the pipe and open it: a file object closes itself where a bare descriptor would be lost with a signal."""
    permissions = os.stat(database).st_mode & 0o666
    folder = os.path.dirname(path)
    for _ in range(_MAX_RACES):
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            os.chmod(folder, permissions | (permissions & 0o444) >> 2)
        with suppress(FileExistsError, FileNotFoundError):
            os.mkfifo(path, 0o600)
            os.chmod(path, permissions)
        # Reading and writing: with a reader alone, the first ringer's close would make the pipe readable for ever.
        with suppress(FileNotFoundError):
            pipe = FileIO(path, "r+")
            os.set_blocking(pipe.fileno(), False)
            return pipe
    raise FileNotFoundError(2, "the folder is taken away again and again", folder)
