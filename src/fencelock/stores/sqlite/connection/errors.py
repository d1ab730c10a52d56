"""The errors that sqlite3 raises, by SQLite's result code, and the remedy for each.

Promise: the remedy fits the cause. SQLITE_CANTOPEN stands for a missing folder and for a process without a free file
descriptor, so `remedy_for` checks which of the two it is.
"""

import errno
import os
import sqlite3

from fencelock.stores.descriptors import Descriptor

FAULTS = (sqlite3.Error, UnicodeDecodeError)
"""What a call of sqlite3 raises. Text from a damaged file, SQLite's messages included, may not be UTF-8."""
Fault = sqlite3.Error | UnicodeDecodeError
BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_REMEDIES = {
    sqlite3.SQLITE_READONLY: "it or its folder is read-only: make both writable, or choose another file",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: its folder must exist and be writable",
    sqlite3.SQLITE_PERM: "permission is denied: make it and its folder readable and writable for this user",
    sqlite3.SQLITE_FULL: "the disk is full: make room, then try again; nothing was changed",
    sqlite3.SQLITE_IOERR: "reading or writing it failed: see the system log, the disk may be failing",
    sqlite3.SQLITE_CORRUPT: "it is corrupted: restore it from a backup, then run `fencelock epoch --raise`",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database: choose another file",
}
_NO_DESCRIPTOR = (
    "it cannot be opened, nor can any other file: too many are open. Close some, or raise the limit (`ulimit -n`)"
)


def code_of(error: Fault) -> int:
    """Return SQLite's primary result code; 0 if the error comes from Python's module itself."""
    if isinstance(error, UnicodeDecodeError):
        return sqlite3.SQLITE_CORRUPT
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def remedy_for(code: int) -> str | None:
    """Return what is wrong and how to fix it; None if only the error's own text says so."""
    if code == sqlite3.SQLITE_CANTOPEN and not _has_descriptor_left():
        return _NO_DESCRIPTOR
    return _REMEDIES.get(code)


def _has_descriptor_left() -> bool:
    try:
        Descriptor(os.devnull, os.O_RDONLY | os.O_CLOEXEC).close()
    except OSError as error:
        return error.errno not in {errno.EMFILE, errno.ENFILE}
    return True
