"""What `guard.transaction(lease)` yields at a folder: files are read at once, and written as drafts until the end.

Promise: no reader sees a draft. At its end the block compares the mark and every file that it has read; if one of them
has changed since, nothing is written. Nothing outside the guard's resource is read or written. What a block has not
committed is deleted at its end, or by a later seal if its process died.
Never: a draft of the parent process touched in a forked child.
"""

import errno
import os
from contextlib import closing, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from stat import S_IMODE

from fencelock.errors import ConfigError
from fencelock.stores.descriptors import Descriptor
from fencelock.stores.errors import ErrorMapper
from fencelock.stores.files.guard.errors import unavailable
from fencelock.stores.files.guard.folder import OpenFolder, identify, write_all
from fencelock.stores.files.guard.layout import (
    CommitFiles,
    Expected,
    Parts,
    Seen,
    Step,
    file_parts,
    new_draft,
    suffix_of,
)
from fencelock.stores.optimistic.write_buffer import WriteBuffer, inherited_error, too_large_error, unstored_error

MAX_FILES = 512
"""Of one block, read and written: the files that were read stay open until its end."""
_PRIVATE = 0o600
_DRAFT = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_LEFT_TO_COMMIT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES}
"""No file is there yet, or the commit refuses what is in a folder's place: a file, or a link that leads wherever."""


class FilesTransaction(WriteBuffer):
    """One guarded block's reads and writes. One thread at a time.

    A name is a path below the resource's folder, with `/` between its parts. What was read is compared at the end: if
    it was replaced or written since, nothing of the block is written.
    """

    def __init__(self, path: Path, resource: str, token: int, expected: tuple[Expected, ...]) -> None:
        super().__init__()
        self._path = path
        self._resource = resource
        self._token = token
        self._expected = list(expected)
        self._values: dict[Parts, bytes | None] = {}
        self._seen: dict[str, set[Seen]] = {}
        self._open: dict[int, Descriptor] = {}
        self._drafts: dict[str, Parts | None] = {}
        self._process_id = os.getpid()
        self._mapping = ErrorMapper(partial(unavailable, path))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._resource!r} at {self._path}: {len(self._drafts)} files>"

    # --- reads --------------------------------------------------------------------------------------------------------
    def read(self, name: str) -> bytes | None:
        """Return what a file holds; None if it does not exist."""
        parts = self._checked(name)
        if name in self._drafts:
            raise unstored_error(repr(name))
        folder = OpenFolder(self._path)
        try:
            with self._mapping:
                return self._read(folder, name, parts)
        finally:
            folder.close()

    def _read(self, folder: OpenFolder, name: str, parts: Parts) -> bytes | None:
        try:
            file = folder.open_file(parts)
        except FileNotFoundError:
            self._see(name, Seen(parts, None, f"file {name!r}"))
            return None
        found = os.fstat(file.fileno())
        # One stays open for each inode, so that no other file gets it while the block relies on it.
        kept = self._open.setdefault(found.st_ino, file)
        try:
            folder.check_plain(parts, found)
            self._see(name, Seen(parts, identify(found), f"file {name!r}"))
            with os.fdopen(file.fileno(), "rb", closefd=False) as reader:
                return reader.read()
        finally:
            if kept is not file:
                file.close()

    def _see(self, name: str, seen: Seen) -> None:
        """Compare this at the end; a file that was seen in two states cannot have both, so the block is refused."""
        self._seen.setdefault(name, set()).add(seen)

    # --- writes -------------------------------------------------------------------------------------------------------
    def write(self, name: str, data: str | bytes) -> None:
        """Write a file at the end of the block; text is written in UTF-8.

        It keeps the permissions of the file that it replaces; a new one is readable by this user alone.
        """
        if not isinstance(data, (str, bytes)):
            raise ConfigError(f"a file's data must be str or bytes, not {type(data).__name__}")
        draft = self.path(name)
        try:
            with self._mapping:
                self._write(draft, self._target(name), data.encode() if isinstance(data, str) else data)
        except BaseException:
            # A program that goes on would publish half a file: its commit finds no draft of this name instead.
            half, self._drafts[name] = self._drafts[name], self._new_draft(name)
            self._remove(half)
            raise

    def _write(self, draft: Path, target: Path, data: bytes) -> None:
        with closing(Descriptor(draft, _DRAFT, _PRIVATE)) as file:
            try:
                os.fchmod(file.fileno(), S_IMODE(os.stat(target, follow_symlinks=False).st_mode))
            except OSError as error:
                if error.errno not in _LEFT_TO_COMMIT:
                    raise
            write_all(file.fileno(), data)

    def path(self, name: str) -> Path:
        """Return the path at which to create a draft, by any program: it becomes the file at the end of the block.

        Close the draft before that. Nothing is there yet, unless the block has written this file before.
        """
        self._checked(name)
        draft = self._drafts.get(name)
        if draft is None:
            draft = self._new_draft(name)
            self._make_folder(draft[:-1])
            self._drafts[name] = draft
        return self._path.joinpath(*draft)

    def _new_draft(self, name: str) -> Parts:
        return new_draft(self._resource, self._token, suffix_of(file_parts(self._resource, name)[-1]))

    def delete(self, name: str) -> None:
        """Delete a file at the end of the block, if it exists."""
        self._checked(name)
        self._remove(self._drafts.get(name))
        self._drafts[name] = None

    def _target(self, name: str) -> Path:
        return self._path.joinpath(*file_parts(self._resource, name))

    def _make_folder(self, parts: Parts) -> None:
        if self._path.joinpath(*parts).is_dir():
            return
        folder = OpenFolder(self._path)
        try:
            with self._mapping:
                folder.folder(parts, create=True)
        finally:
            folder.close()

    # --- the guard's own ----------------------------------------------------------------------------------------------
    def rely_on(self, parts: Parts, value: bytes | None, name: str) -> None:
        """Refuse the block if a value of the guard's own is another one at its end."""
        self._expected.append(Expected(parts, value, name))

    def keep(self, parts: Parts, value: bytes | None) -> None:
        """Write a value of the guard's own at the end of the block, or delete it."""
        self._values[parts] = value

    def request(self) -> CommitFiles:
        """Return the commit of the block, which has its drafts from now on."""
        steps = tuple(Step(draft, file_parts(self._resource, name)) for name, draft in self._drafts.items())
        self._drafts = {}
        seen = tuple(chain.from_iterable(self._seen.values()))
        return CommitFiles(tuple(self._expected), seen, tuple(self._values.items()), steps)

    def end(self) -> None:
        """Refuse everything from now on, and delete what was not committed."""
        super().end()
        while self._open:
            self._open.popitem()[1].close()
        drafts, self._drafts = self._drafts, {}
        if self._process_id == os.getpid():
            for draft in drafts.values():
                self._remove(draft)

    def _remove(self, draft: Parts | None) -> None:
        if draft is not None:
            with suppress(OSError):
                os.unlink(self._path.joinpath(*draft))

    # --- what is allowed ----------------------------------------------------------------------------------------------
    def _checked(self, name: str) -> Parts:
        """Return the path of a file of the resource; GuardError if the block is over, or has too many."""
        self._check_open()
        if self._process_id != os.getpid():
            raise inherited_error()
        parts = file_parts(self._resource, name)
        known = self._seen.keys() | self._drafts.keys()
        if name not in known and len(known) >= MAX_FILES:
            raise too_large_error(
                f"reads or writes more than {MAX_FILES} files",
                f"a guard of files takes {MAX_FILES} of them in one block",
            )
        return parts
