"""SQLite's WAL-reset bug: which versions have it, and what `fencelock doctor` says of one that has.

Promise: decides by the version alone; a system that mends an old version under its old number is reported too. The bug
and the versions: https://www.sqlite.org/wal.html#walresetbug
"""

import sqlite3

from fencelock.model import Finding

VERSION = sqlite3.sqlite_version_info
_FIRST = (3, 7, 0)
_FIXED = ((3, 44, 6), (3, 50, 7), (3, 51, 3))
"""The first fixed version of each line of versions that was mended; every version after the last one is fixed."""


def has_bug(version: tuple[int, ...]) -> bool:
    """Return whether this version of SQLite can lose a commit when two processes write or checkpoint at one moment."""
    *mended, last = _FIXED
    is_mended = any(version[:2] == line[:2] and version >= line for line in mended)
    return _FIRST <= version < last and not is_mended


def examine(where: str, loss: str) -> list[Finding]:
    """Return the finding about a file in WAL mode; `loss` says what a lost commit means there."""
    if not has_bug(VERSION):
        return []
    version = ".".join(map(str, VERSION))
    message = (
        f"{where} is in WAL mode, and this Python has SQLite {version}, whose WAL-reset bug can, very rarely, lose a "
        f"commit when two processes write or checkpoint at one moment: {loss}"
    )
    remedy = "use a Python with SQLite 3.51.3 or newer (or 3.50.7, 3.44.6), or a store with a server"
    return [Finding("wal-reset-bug", message, remedy)]
