"""A guarded transaction in SQLite against one that begins, checks a mark by hand, writes and commits.

With a write-ahead log and with a rollback journal, each commit flushed.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import fencelock
from fencelock_lab.benchmarks.guards import BY_HAND, GUARDED, LEASE, LOCK, NO_CHECK, RESOURCE, Kind
from fencelock_lab.benchmarks.stores.sqlite import folder_of

KINDS = (
    Kind("wal", aim=1.25),
    Kind("delete", batch=5, aim=1.25),
    Kind("wal, 100 statements", statements=100, batch=5),
)
_INSERT = "INSERT INTO report (text) VALUES ('x')"
_CHECK = "SELECT token FROM mark WHERE resource = 'reports' AND token = 1"


def prepare(url: str) -> None:
    """Make a file for each journal mode, guarded and not."""
    for kind in KINDS:
        for path in _paths(url, kind):
            native = sqlite3.connect(path, isolation_level=None)
            native.execute(f"PRAGMA journal_mode = {kind.name.partition(',')[0]}")
            native.execute("CREATE TABLE report (id INTEGER PRIMARY KEY, text TEXT)")
            native.execute("CREATE TABLE mark (resource TEXT PRIMARY KEY, token INTEGER) WITHOUT ROWID")
            native.execute("INSERT INTO mark VALUES ('reports', 1)")
            native.close()
        guard = _guard(url, kind)
        guard.protect("report")
        guard.seal(LEASE)


def variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    """Return a transaction with no check, with one by hand, and a guarded one."""
    native = sqlite3.connect(_paths(url, kind)[0], isolation_level=None)
    guard = _guard(url, kind)

    def unguarded() -> None:
        native.execute("BEGIN IMMEDIATE")
        _write(native, kind)
        native.execute("COMMIT")

    def by_hand() -> None:
        native.execute("BEGIN IMMEDIATE")
        assert native.execute(_CHECK).fetchone() == (1,)
        _write(native, kind)
        native.execute("COMMIT")

    def guarded() -> None:
        with guard.transaction(LEASE) as lent:
            _write(lent, kind)

    return {BY_HAND: by_hand, NO_CHECK: unguarded, GUARDED: guarded}


def _write(connection: sqlite3.Connection, kind: Kind) -> None:
    for _ in range(kind.statements):
        connection.execute(_INSERT)


def _paths(url: str, kind: Kind) -> tuple[Path, Path]:
    folder, name = folder_of(url), kind.name.replace(", ", "-").replace(" ", "-")
    return folder / f"plain-{name}.db", folder / f"guarded-{name}.db"


def _guard(url: str, kind: Kind) -> fencelock.Guard:
    return fencelock.guard(f"sqlite:///{_paths(url, kind)[1]}", resource=RESOURCE, lock=LOCK)
