"""Inspects a source: its locks one by one for people, and its setup for `fencelock doctor`.

Promise: nothing here changes a lease. Never: a store or a connection made here; the caller passes what is needed.
"""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fencelock.errors import SourceError
from fencelock.model import Finding, LockInfo, SourceInfo, one_way
from fencelock.protocol.source_requests import Check, Checked
from fencelock.stores.errors import refused_finding
from fencelock.stores.filesystems import NETWORK_FILESYSTEMS, VOLATILE_FILESYSTEMS, filesystem_of
from fencelock.stores.sqlite.connection import wal_reset
from fencelock.stores.sqlite.connection.database import Database
from fencelock.stores.sqlite.source.identity import SQL, SQLiteIdentity, missing_source_error, read_source_alone

PAGE_LOCKS = 500


class LockView(NamedTuple):
    """One row of the statement `check`: the source's state, and one lock; None if the lock was never taken."""

    source_id: str
    epoch: int
    history_id: str
    counter: int
    boot_id: str
    time_namespace: str
    digest: str | None
    token: int | None
    remaining_ms: int | None


def check(database: Database, identity: SQLiteIdentity, request: Check) -> Checked:
    """Return whether the lease of this proof holds the lock now; SourceError if the source's history went back."""
    rows = database.run(SQL.check, {"lock": request.lock}, to_write=False)
    if not rows:
        raise missing_source_error(database.path)
    view = LockView._make(rows[0])
    identity.check_state(view)
    is_its = view.digest == one_way(request.proof) and view.history_id == request.history_id
    return Checked(max(0, view.remaining_ms or 0) if is_its else 0, view.token)


def source_info(database: Database) -> SourceInfo:
    """Return the source's identity and counter."""
    return read_source_alone(database).info()


def lock_info(database: Database, lock: str) -> LockInfo:
    """Return the state of one lock; a lock that was never taken is free and has no token."""
    rows = database.run(SQL.inspect, {"lock": lock}, to_write=False)
    if not rows:
        return LockInfo(lock, token=None, holder=None, remaining=0.0, ttl=None, waiters=())
    return _lock_info(rows[0])


def page(database: Database, after: str | None) -> tuple[LockInfo, ...]:
    """Return the next page of locks, in the order of their names."""
    rows = database.run(SQL.inspect_page, {"after": after or "", "page": PAGE_LOCKS}, to_write=False)
    return tuple(_lock_info(row) for row in rows)


def _lock_info(row: tuple[Any, ...]) -> LockInfo:
    name, token, holder, digest, ttl_ms, deadline_ms, now_ms, waiters = row
    remaining_ms = max(0, min(deadline_ms - now_ms, ttl_ms)) if digest is not None else 0
    return LockInfo(
        name,
        token=token,
        holder=holder if remaining_ms else None,
        remaining=remaining_ms / 1000,
        ttl=ttl_ms / 1000 if remaining_ms else None,
        waiters=tuple(json.loads(waiters)),
    )


def examine(path: Path, check_accepted: Callable[[], None]) -> list[Finding]:
    """Return the findings about a file's setup; `check_accepted` raises SourceError if the source is refused."""
    findings = _examine_location(path)
    if not _is_made(path):
        return [*findings, _no_source(path)]
    try:
        check_accepted()
    except SourceError as error:
        findings.append(refused_finding("source-refused", error))
    return findings + wal_reset.examine(
        str(path), "the source may then issue a token twice, or free a lock that is held"
    )


def _is_made(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # Opening the file gives the better error.


def _examine_location(path: Path) -> list[Finding]:
    findings = []
    kind = filesystem_of(path)
    if kind in NETWORK_FILESYSTEMS:
        message = f"{path} is on a network file system ({kind}), where SQLite cannot rely on file locks"
        findings.append(Finding("network-filesystem", message, "put the file on a local disk, or use a server store"))
    if kind in VOLATILE_FILESYSTEMS:
        message = f"{path} is on {kind}: a reboot loses the counter, and guards will refuse the source that replaces it"
        findings.append(Finding("volatile-filesystem", message, "put the file on a disk that survives a reboot"))
    if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o002:
        message = f"{path} is writable by every user, so every user can take or end each lease in it"
        findings.append(Finding("open-permissions", message, f"chmod 600 {path}, or 660 for one group"))
    return findings


def _no_source(path: Path) -> Finding:
    if not path.parent.is_dir():
        message = f"{path} is no source yet: there is no folder {path.parent}"
        return Finding(
            "no-source", message, "correct the URL, or create the folder for the first lock that is acquired"
        )
    message = f"{path} is no source yet: there is no such file, or it is empty"
    return Finding("no-source", message, "correct the URL; the first lock that is acquired makes it")
