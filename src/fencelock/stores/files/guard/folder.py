"""A guarded folder while it is open for one operation: its descriptors, and the lock on its journal.

Promise: every path is followed from the folder part by part, through no symbolic link and to no other device. The lock
is a flock on the journal, which belongs to the open file: the kernel frees it when its process ends, however that ends.
A forked child closes the copies that it inherited, so that it neither keeps its parent's lock nor continues a commit.
Never: the lock held while user code runs.
"""

import errno
import fcntl
import os
import stat
import threading
import time
import weakref
from contextlib import closing, suppress
from pathlib import Path

from fencelock._platform import at_fork
from fencelock.errors import GuardError, SourceUnavailableError
from fencelock.stores.descriptors import Descriptor
from fencelock.stores.files.guard.layout import JOURNAL, Identity, Parts

LOCK_TIMEOUT_S = 5.0
"""How long an operation waits for another one's end, which takes milliseconds unless its process is frozen."""
_MIN_WAIT_S, _MAX_WAIT_S = 0.000_2, 0.02
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a named pipe that stands in a file's place would wait for its writer.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_JOURNAL = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_FILE = {errno.ELOOP: "is a symbolic link", errno.ENXIO: "is not a plain file", errno.ENODEV: "is not a plain file"}
"""What an error of opening says of what has the name: a socket cannot be opened, nor a device without a driver."""
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
MAX_VALUE_BYTES = 65_536
"""Of the guard's own values, which one call reads; what is longer was not written by a guard."""


class OpenFolder:
    """The descriptors of one operation, closed together."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.locked = -1
        """The journal's descriptor, from just before its lock is asked for."""
        self._descriptors: dict[Parts, Descriptor] = {}
        _OPEN.add(self)

    def close(self) -> None:
        """Close every descriptor. Whoever has the lock frees it before, where no signal handler's exception can come
        between: until this object is collected, its descriptors would keep the lock.
        """
        while self._descriptors:
            with suppress(KeyError):
                self._descriptors.popitem()[1].close()

    def disown(self) -> None:
        """Close the copies in a forked child; whatever goes on with them is refused by the kernel."""
        self.locked = -1
        for descriptor in self._descriptors.values():
            descriptor.close()

    def _open(self, parts: Parts, name: str, flags: int, parent: int | None) -> int:
        with _OPENING:
            self._descriptors[parts] = Descriptor(name, flags, _PRIVATE_FILE, parent)
        return self._descriptors[parts].fileno()

    # --- folders ------------------------------------------------------------------------------------------------------
    def folder(self, parts: Parts, *, create: bool = False) -> int:
        """Return the descriptor of a folder below this one; FileNotFoundError if it does not exist."""
        if parts in self._descriptors:
            return self._descriptors[parts].fileno()
        if not parts:
            return self._open(parts, str(self.path), _FOLDER, None)
        parent = self.folder(parts[:-1], create=create)
        try:
            found = self._open(parts, parts[-1], _FOLDER, parent)
        except FileNotFoundError:
            if not create:
                raise
            self._make(parts[-1], parent, is_private=len(parts) == 1 and parts[0].startswith("."))
            found = self._open(parts, parts[-1], _FOLDER, parent)
        except OSError as error:
            if error.errno not in {errno.ELOOP, errno.ENOTDIR}:
                raise
            raise self.refusal(parts, "is a symbolic link, or not a folder") from error
        if os.fstat(found).st_dev != self._device():
            raise self.refusal(parts, "is on another device, to which nothing can be renamed")
        return found

    def _device(self) -> int:
        return os.fstat(self._descriptors[()].fileno()).st_dev

    def _make(self, name: str, parent: int, *, is_private: bool) -> None:
        """Make a folder, with the permissions of the one that it is in unless it is the guard's own."""
        mode = _PRIVATE_FOLDER if is_private else stat.S_IMODE(os.fstat(parent).st_mode)
        with suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=parent)
        os.fsync(parent)

    def flush_folder(self, parts: Parts) -> None:
        """Put the names in a folder onto the disk."""
        os.fsync(self.folder(parts))

    def refusal(self, parts: Parts, why: str) -> GuardError:
        """Return the error for a file or folder that cannot be guarded."""
        return GuardError(
            f"{self.path.joinpath(*parts)} {why}: the guard writes to plain files of one local folder only, so that no "
            f"write leads out of it. Nothing was written; remove it, or keep it outside of the guarded folder"
        )

    # --- files --------------------------------------------------------------------------------------------------------
    def open_file(self, parts: Parts) -> Descriptor:
        """Return a new descriptor of a plain file, for reading; the caller closes it."""
        try:
            return Descriptor(parts[-1], _READ, parent=self.folder(parts[:-1]))
        except OSError as error:
            if error.errno not in _NO_FILE:
                raise
            raise self.refusal(parts, _NO_FILE[error.errno]) from error

    def read(self, parts: Parts) -> bytes | None:
        """Return a value of the guard's own; None if there is none."""
        try:
            file = self.open_file(parts)
        except FileNotFoundError:
            return None
        with closing(file):
            return os.read(file.fileno(), MAX_VALUE_BYTES)

    def create(self, parts: Parts, value: bytes) -> None:
        """Write a new file, and put its bytes onto the disk."""
        folder = self.folder(parts[:-1], create=True)
        with closing(Descriptor(parts[-1], _NEW, _PRIVATE_FILE, folder)) as file:
            write_all(file.fileno(), value)
            os.fsync(file.fileno())

    def status(self, parts: Parts) -> os.stat_result | None:
        """Return the status of what has this name, without following a link; None if nothing has."""
        try:
            return os.stat(parts[-1], dir_fd=self.folder(parts[:-1]), follow_symlinks=False)
        except FileNotFoundError:
            return None

    def check_plain(self, parts: Parts, found: os.stat_result) -> None:
        """Raise GuardError unless it is a plain file with one name, on the folder's device."""
        if not stat.S_ISREG(found.st_mode):
            raise self.refusal(parts, "is not a plain file")
        if found.st_nlink > 1:
            raise self.refusal(parts, f"has {found.st_nlink} names (hard links)")
        if found.st_dev != self._device():
            raise self.refusal(parts, "is on another device")

    def names(self, parts: Parts) -> list[str]:
        """Return the names in a folder; none if it does not exist."""
        try:
            return os.listdir(self.folder(parts))
        except FileNotFoundError:
            return []

    def rename(self, draft: Parts, target: Parts) -> None:
        """Rename a draft to its name, in one step; do nothing if that was done before."""
        folders = {
            "src_dir_fd": self.folder(draft[:-1], create=True),
            "dst_dir_fd": self.folder(target[:-1], create=True),
        }
        try:
            os.rename(draft[-1], target[-1], **folders)
        except FileNotFoundError:
            if self.status(draft) is not None:
                raise

    def remove(self, parts: Parts) -> None:
        """Delete a file, if it exists."""
        with suppress(FileNotFoundError):
            os.unlink(parts[-1], dir_fd=self.folder(parts[:-1]))

    # --- the lock and the journal -------------------------------------------------------------------------------------
    def lock(self, *, create: bool) -> bool:
        """Wait for the lock and take it; return False if no guard was ever used here, and is not now."""
        give_up_s, wait_s = time.monotonic() + LOCK_TIMEOUT_S, _MIN_WAIT_S
        while self._open_journal(create=create):
            self.locked = self.journal
            try:
                fcntl.flock(self.locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    raise self._busy() from None
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, _MAX_WAIT_S)
            else:
                # If somebody has deleted the journal meanwhile, or put another folder in the place of one that it is
                # in, this is the lock of a file that nobody else opens, beside marks that nobody else reads.
                if self._is_journal():
                    return True
                self._start_over()
        return False

    @property
    def journal(self) -> int:
        """The descriptor of the journal."""
        return self._descriptors[JOURNAL].fileno()

    def _open_journal(self, *, create: bool) -> bool:
        if JOURNAL in self._descriptors and self._is_journal():
            return True
        self.folder(())  # A folder that does not exist is an error, whatever is asked for.
        try:
            home = self.folder(JOURNAL[:-1], create=create)
        except FileNotFoundError:
            if create:
                raise  # Somebody has deleted the folder since it was opened, or nothing can be created there.
            return False
        try:
            self._reopen(home, _JOURNAL)
        except FileNotFoundError:
            try:
                self._reopen(home, _JOURNAL | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                return self._open_journal(create=create)  # Another process or thread has made it meanwhile.
            os.fsync(home)
        return True

    def _reopen(self, home: int, flags: int) -> None:
        if JOURNAL in self._descriptors:
            self.locked = -1  # Another thread may get the number.
            self._descriptors.pop(JOURNAL).close()
        self._open(JOURNAL, JOURNAL[-1], flags, home)

    def _start_over(self) -> None:
        """Close everything: whoever goes on opens what is there now."""
        self.locked = -1  # Another thread may get the number.
        self.close()

    def _is_journal(self) -> bool:
        """Return whether the open journal is the one that everybody else finds by its path."""
        try:
            found = os.stat(self.path.joinpath(*JOURNAL), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return os.path.samestat(found, os.fstat(self.journal))

    def _busy(self) -> SourceUnavailableError:
        return SourceUnavailableError(
            f"another process has held the lock of {self.path} for longer than {LOCK_TIMEOUT_S:g} s, as it does where "
            f"it is frozen in the middle of a commit, or its disk hangs. `lslocks` names the process that holds "
            f"{self.path.joinpath(*JOURNAL)}: continue it or kill it, and try again. The next one finishes its commit"
        )


def write_all(descriptor: int, value: bytes) -> None:
    """Write all bytes at the descriptor's position."""
    left = memoryview(value)
    while left:
        left = left[os.write(descriptor, left) :]


def identify(found: os.stat_result) -> Identity:
    """Return the identity of a file in this state."""
    return Identity(found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


_OPEN: "weakref.WeakSet[OpenFolder]" = weakref.WeakSet()
_OPENING = threading.RLock()
"""Held while a descriptor is opened, and during a fork: a child knows every descriptor that it inherits."""


def _after_fork_in_child() -> None:
    for folder in list(_OPEN):
        folder.disown()
    _OPENING.release()  # This thread took it before the fork.


at_fork(
    before=_OPENING.acquire,
    after_in_parent=_OPENING.release,
    after_in_child=_after_fork_in_child,
)
