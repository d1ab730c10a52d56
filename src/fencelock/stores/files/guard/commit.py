"""Carries out the operations of a folder's guard, each under the folder's lock.

A commit compares what it relies on, writes its renames into the journal, renames, flushes the folders, and empties the
journal. A commit of one rename does not flush the journal: the rename itself is one step on the disk.

Promise: a commit is whole or nothing, wherever its process is killed or the power is cut. Whoever takes the lock next
finishes it first, so nobody decides on half of one. A rename is repeated at most once, because a draft's name is drawn
anew each time and is gone after its rename; a journal with a deletion is emptied on the disk too, before its commit
is confirmed. An error before the first rename is definite.
Relies on: after a crash, a rename within one file system is there with both of its sides or not at all, as the journals
of Linux's file systems have it.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from fencelock.errors import GuardError
from fencelock.protocol.guard_requests import ConflictError
from fencelock.stores.errors import ErrorMapper
from fencelock.stores.files.guard.errors import not_finished, unavailable, unknown
from fencelock.stores.files.guard.folder import OpenFolder, identify, write_all
from fencelock.stores.files.guard.journal import decode_journal, encode_journal
from fencelock.stores.files.guard.layout import (
    DRAFTS,
    STAGED,
    CommitFiles,
    ListNames,
    Outdated,
    Parts,
    ReadValues,
    Seen,
    Step,
    name_parts,
    new_staged,
    token_of_draft,
)

_HERE = "."


class FolderClient:
    """Performs a codec's operations in a guarded folder; opens its descriptors for each."""

    def __init__(self, url: str, path: Path) -> None:
        self.url = url
        self.path = path
        self._mapping = ErrorMapper(partial(unavailable, path))

    def perform(self, operation: Any) -> Any:
        """Answer one operation of the codec; FencelockError if the system refuses a step of it."""
        folder = OpenFolder(self.path)
        try:
            with self._mapping:
                return self._ANSWERS[type(operation)](self, folder, operation)
        finally:
            if folder.locked >= 0:
                # Not left to the close: if a signal handler raises there, the open descriptor would keep the lock.
                fcntl.flock(folder.locked, fcntl.LOCK_UN)
            folder.close()

    def _read_values(self, folder: OpenFolder, operation: ReadValues) -> tuple[bytes | None, ...]:
        if not folder.lock(create=False):
            return (None,) * len(operation.paths)
        self._finish_interrupted(folder)
        return tuple(folder.read(parts) for parts in operation.paths)

    def _list_names(self, folder: OpenFolder, operation: ListNames) -> list[Parts]:
        if not folder.lock(create=False):
            return []
        self._finish_interrupted(folder)
        return [found[len(operation.parts) :] for found in _files_below(folder, operation.parts)]

    # --- a commit -----------------------------------------------------------------------------------------------------
    def _commit(self, folder: OpenFolder, operation: CommitFiles) -> str | None:
        steps = list(operation.steps)
        is_decided = False
        try:
            flushed = {step.draft: _flush_draft(folder, step.draft) for step in steps if step.draft is not None}
            folder.lock(create=True)
            self._finish_interrupted(folder)
            changed = _find_change(folder, operation)
            if changed is None:
                for parts, value in operation.values:
                    steps.append(_stage(folder, parts, value))
                _prepare(folder, steps, flushed)
                is_decided = True
                self._carry_out(folder, steps)
                for outdated in operation.outdated:
                    _collect(folder, outdated)
        finally:
            # Once it is decided, whoever finishes it needs its drafts.
            if not is_decided:
                _remove_drafts(folder, steps)
        return changed

    def _carry_out(self, folder: OpenFolder, steps: list[Step]) -> None:
        """Rename and delete, all or nothing; OutcomeUnknownError if some of it is done, and the rest is not yet."""
        if not steps:
            return
        is_begun = False
        try:
            # One rename is one step on the disk: its journal serves killed processes, and need not survive a power cut.
            _write_journal(folder, encode_journal(steps), is_flushed=len(steps) > 1)
            for step in steps:
                _take(folder, step)
                is_begun = True
            _flush_and_empty(folder, steps)
        except OSError as error:
            if is_begun or _is_renamed(folder, steps[0]) or not _is_taken_back(folder):
                raise unknown(self.path, error) from error
            _remove_drafts(folder, steps)
            raise

    def _finish_interrupted(self, folder: OpenFolder) -> None:
        """Finish the commit that the lock's former holder has begun, if its journal is whole."""
        size_bytes = os.fstat(folder.journal).st_size
        if size_bytes == 0:
            return
        steps = decode_journal(self.url, os.pread(folder.journal, size_bytes, 0))
        try:
            for step in steps:
                _take(folder, step)
            _flush_and_empty(folder, steps, is_emptied_on_disk=True)
        except OSError as error:
            raise not_finished(self.path, error) from error

    _ANSWERS: ClassVar[dict[type, Callable[..., Any]]] = {
        ReadValues: _read_values,
        ListNames: _list_names,
        CommitFiles: _commit,
    }


# --- before the first rename ------------------------------------------------------------------------------------------
def _flush_draft(folder: OpenFolder, draft: Parts) -> int:
    """Put a draft's bytes onto the disk, and return its inode; ConflictError if it is gone."""
    try:
        file = folder.open_file(draft)
    except FileNotFoundError:
        raise ConflictError(
            f"no file is at {folder.path.joinpath(*draft)}, where the block has a draft (it asked for the path and "
            f"created nothing there, its write failed, or somebody deleted it)"
        ) from None
    with closing(file):
        found = os.fstat(file.fileno())
        folder.check_plain(draft, found)
        os.fsync(file.fileno())
    return found.st_ino


def _find_change(folder: OpenFolder, operation: CommitFiles) -> str | None:
    """Return what is no longer what was read, as a clause; None if everything is."""
    for expected in operation.expected:
        if folder.read(expected.parts) != expected.value:
            return f"{expected.name} has changed"
    for seen in operation.seen:
        if not _is_unchanged(folder, seen):
            return f"{seen.name}, which the block had read, has changed"
    return None


def _is_unchanged(folder: OpenFolder, seen: Seen) -> bool:
    found = folder.status(seen.parts)
    return (None if found is None else identify(found)) == seen.identity


def _stage(folder: OpenFolder, target: Parts, value: bytes | None) -> Step:
    if value is None:
        return Step(None, target)
    draft = new_staged()
    folder.create(draft, value)
    return Step(draft, target)


def _prepare(folder: OpenFolder, steps: list[Step], flushed: dict[Parts, int]) -> None:
    """Make the folders of all targets, and refuse what could fail between two renames."""
    # Each folder is open from here on: nobody can put a link in its place between two renames.
    steps[:] = [step for step in steps if _is_writable(folder, step)]
    for step in steps:
        if (found := folder.status(step.target)) is not None:
            folder.check_plain(step.target, found)
    for draft, inode in flushed.items():
        found = folder.status(draft)
        # Only the file that was flushed may be renamed: the bytes of another one may not be on the disk.
        if found is None or found.st_ino != inode:
            raise ConflictError("a draft of the block was replaced while it was committed")
    if len(steps) > 1:
        # Whoever finishes this commit takes a draft without a name for one that was renamed.
        for parts in {step.draft[:-1] for step in steps if step.draft is not None}:
            folder.flush_folder(parts)


def _is_writable(folder: OpenFolder, step: Step) -> bool:
    """Return whether the step has anything to do; PermissionError if it may not."""
    where = step.target[:-1]
    try:
        parent = folder.folder(where, create=step.draft is not None)
    except FileNotFoundError:
        return False  # Nothing is to be deleted there.
    if not os.access(_HERE, os.W_OK | os.X_OK, dir_fd=parent, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder.path.joinpath(*where)))
    return True


# --- from the journal on ----------------------------------------------------------------------------------------------
def _write_journal(folder: OpenFolder, content: bytes, *, is_flushed: bool) -> None:
    # The lock's taker has opened it, so that it is empty and its position is at the beginning.
    write_all(folder.journal, content)
    if is_flushed:
        os.fsync(folder.journal)


def _take(folder: OpenFolder, step: Step) -> None:
    if step.draft is None:
        folder.remove(step.target)
    else:
        folder.rename(step.draft, step.target)


def _flush_and_empty(folder: OpenFolder, steps: list[Step], *, is_emptied_on_disk: bool = False) -> None:
    for parts in {step.target[:-1] for step in steps}:
        with suppress(FileNotFoundError):  # Nothing was to be deleted in a folder that is not there.
            folder.flush_folder(parts)
    # The journal of a deletion must not come back after a power cut, when somebody has made a file of that name again.
    _empty_journal(folder, is_flushed=is_emptied_on_disk or any(step.draft is None for step in steps))


def _empty_journal(folder: OpenFolder, *, is_flushed: bool) -> None:
    os.ftruncate(folder.journal, 0)
    if is_flushed:
        os.fsync(folder.journal)


def _is_renamed(folder: OpenFolder, step: Step) -> bool:
    """Return whether a rename was done, or may have been, although the system has reported an error."""
    try:
        return step.draft is not None and folder.status(step.draft) is None
    except OSError:
        return True


def _is_taken_back(folder: OpenFolder) -> bool:
    """Empty the journal of a commit that has renamed nothing; a journal that stays would be carried out later."""
    try:
        _empty_journal(folder, is_flushed=True)
    except OSError:
        return False
    return True


# --- what is left over ------------------------------------------------------------------------------------------------
def _remove_drafts(folder: OpenFolder, steps: Iterable[Step]) -> None:
    """Delete drafts that will not be committed; what is left is collected by a later seal."""
    _remove_all(folder, (step.draft for step in steps if step.draft is not None))


def _remove_all(folder: OpenFolder, files: Iterable[Parts]) -> None:
    for parts in files:
        with suppress(OSError, GuardError):
            folder.remove(parts)


def _collect(folder: OpenFolder, outdated: Outdated) -> None:
    """Delete what killed processes have left behind: the mark refuses drafts under lower tokens, and nobody else stages
    a value while the lock is held.
    """
    drafts = (*DRAFTS, *name_parts(outdated.resource))
    with suppress(OSError, GuardError):  # The commit is done: what stays is deleted after the next one.
        old = [name for name in folder.names(drafts) if _is_below(name, outdated.below_token)]
        _remove_all(folder, [(*drafts, name) for name in old] + [(*STAGED, name) for name in folder.names(STAGED)])


def _is_below(name: str, token: int) -> bool:
    found = token_of_draft(name)
    return found is not None and found < token


def _files_below(folder: OpenFolder, parts: Parts) -> Iterable[Parts]:
    """Yield the files below a folder of the guard's own."""
    for name in folder.names(parts):
        found = folder.status((*parts, name))
        if found is not None and stat.S_ISDIR(found.st_mode):
            yield from _files_below(folder, (*parts, name))
        elif found is not None:
            yield (*parts, name)
