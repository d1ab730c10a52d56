"""Inspects a guarded file for `fencelock doctor`: whether each mark is enforced, and whether a seal was committed.

Promise: reads only, in one transaction that its caller has begun.
"""

from fencelock.model import Finding
from fencelock.protocol.guard_requests import OBSERVE
from fencelock.stores.sql.inspection import orphaned, tables_lost, unprotected
from fencelock.stores.sqlite.connection import wal_reset
from fencelock.stores.sqlite.guard.marks import SQL, TABLES, SQLiteMarks
from fencelock.stores.sqlite.guard.protection import SQLiteProtectionEntry, is_replaced, read_entries


def examine(marks: SQLiteMarks, url: str) -> list[Finding]:
    """Return the findings about the setup of the file that the marks are in."""
    entries = read_entries(marks)
    lost = sorted(TABLES - marks.read_names())
    if lost and (entries or len(lost) < len(TABLES)):
        return [
            tables_lost(url, lost),
            *(orphaned(url, entry.table or entry.name, entry.resource) for entry in entries),
        ]
    if not marks.has_schema():
        message = f"{url} holds no marks: nothing in it is guarded yet"
        return [Finding("no-marks", message, f"run `fencelock protect {url} --resource R --lock L --table T`")]
    findings = [finding for entry in entries for finding in _examine_entry(entry, url)]
    findings += [_replaced(entry, url) for entry in entries if is_replaced(marks, entry, entries)]
    # A resource that keeps keys (`once=`, `fencelock.dispatch`) needs no table.
    used = {entry.resource for entry in entries} | {resource for (resource,) in marks.ask(SQL.list_kept)}
    findings += [unprotected(url, mark.resource) for mark in marks.read_all(None) if mark.resource not in used]
    if marks.ask(SQL.count_seals)[0][0]:
        message = f"{url} holds a committed seal: some client presented a token without PRAGMA foreign_keys = ON"
        remedy = "find that client; the next guarded transaction of the resource removes the seal"
        findings.append(Finding("committed-seal", message, remedy))
    if marks.is_wal():
        findings += wal_reset.examine(url, "a guarded write, or the mark that refuses stale ones, may be gone then")
    return findings


def _examine_entry(entry: SQLiteProtectionEntry, url: str) -> list[Finding]:
    name = entry.table or entry.name
    if entry.is_orphaned:
        return [orphaned(url, name, entry.resource)]
    if not entry.is_whole:
        what = (
            "its index is gone, so writes by incremental BLOB I/O (sqlite3_blob_open, blobopen) are not refused: it "
            "was dropped, or an older fencelock protected the table"
            if entry.has_triggers
            else "its triggers are gone: it was dropped or recreated"
        )
        message = f"table {name!r} of resource {entry.resource!r} was protected, and {what}"
        remedy = f"run `fencelock protect {url} …` again, as the last step of every migration that recreates a table"
        return [Finding("lost-protection", message, remedy, entry.resource)]
    if entry.mode == OBSERVE:
        message = (
            f"table {name!r} of resource {entry.resource!r} is only observed: stale writes are counted and let through"
        )
        remedy = f"see `fencelock marks {url}`, then protect it with --mode enforce"
        return [Finding("only-observed", message, remedy, entry.resource)]
    return []


def _replaced(entry: SQLiteProtectionEntry, url: str) -> Finding:
    message = (
        f"table {entry.name!r} of resource {entry.resource!r} is not protected: the table that was protected under "
        f"this name is {entry.table!r} now"
    )
    remedy = f"run `fencelock protect {url} …` for {entry.name!r}; if it needs no protection, for {entry.table!r}"
    return Finding("lost-protection", message, remedy, entry.resource)
