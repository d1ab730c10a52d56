"""What the errors of the system mean for a guard of files, and what to do about them.

Promise: an error before a commit's first rename is definite; one after it is not, and says that the commit goes on.
"""

import errno
from pathlib import Path

from fencelock.errors import OutcomeUnknownError, SourceUnavailableError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


def unavailable(path: Path, error: BaseException) -> SourceUnavailableError | None:
    """Return the error for what the system refused before anything was renamed; None for another exception."""
    if not isinstance(error, OSError):
        return None
    if isinstance(error, FileNotFoundError) and not path.is_dir():
        return SourceUnavailableError(f"there is no folder {path}: create it, or correct the URL")
    return SourceUnavailableError(f"{_reason(path, error)}. Nothing was written: {_remedy(error)}, and try again")


def not_finished(path: Path, error: OSError) -> SourceUnavailableError:
    """Return the error for another process's commit that cannot be finished, so that nothing can begin."""
    return SourceUnavailableError(
        f"{_reason(path, error)}, while a commit was finished that another process had begun. Nothing else was "
        f"written: {_remedy(error)}, and try again"
    )


def unknown(path: Path, error: OSError) -> OutcomeUnknownError:
    """Return the error for a commit that the system has stopped halfway."""
    return OutcomeUnknownError(
        f"{_reason(path, error)}, in the middle of a commit, which is in the journal, so that the next use of the "
        f"guard finishes it: {_remedy(error)}, and read what is there"
    )


def _reason(path: Path, error: OSError) -> str:
    where = f" at {error.filename}" if error.filename is not None else ""
    return f"the system refused a step of the guard of {path}{where}: {error.strerror}"


def _remedy(error: OSError) -> str:
    if error.errno in _FULL:
        return "make room on the disk"
    if error.errno in _DENIED:
        return "let this user read and write the folder and everything in it"
    return "fix its cause"
