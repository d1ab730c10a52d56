"""A guarded transaction against an unguarded one that begins, checks a mark by hand, writes one row and commits."""

import sqlite3
from pathlib import Path

import fenceline
from benchmarks.measure import Result, take_turns

_INSERT = "INSERT INTO report (text) VALUES ('x')"


def run(folder: Path, scale: float) -> list[Result]:
    """Measure one guarded transaction, in both of SQLite's common journal modes."""
    results = []
    for mode in ("wal", "delete"):
        place = folder / mode
        place.mkdir()
        batch = 20 if mode == "wal" else 5
        results += _compare(place, mode, rounds=int(120 * scale) + 3, batch=batch)
    return results


def _compare(folder: Path, mode: str, *, rounds: int, batch: int) -> list[Result]:
    plain = _file(folder / "plain.db", mode)
    plain.execute("CREATE TABLE mark (resource TEXT PRIMARY KEY, token INTEGER) WITHOUT ROWID")
    plain.execute("INSERT INTO mark VALUES ('reports', 1)")
    _file(folder / "guarded.db", mode).close()
    guard = fenceline.guard(f"sqlite:///{folder / 'guarded.db'}", resource="reports", lock="bench")
    guard.protect("report")

    def unguarded() -> None:
        plain.execute("BEGIN IMMEDIATE")
        assert plain.execute("SELECT token FROM mark WHERE resource = ?", ("reports",)).fetchone() == (1,)
        plain.execute(_INSERT)
        plain.execute("COMMIT")

    with fenceline.connect(f"sqlite:///{folder / 'locks.db'}") as source, source.lock("bench", ttl=600) as lease:

        def guarded() -> None:
            with guard.transaction(lease) as connection:
                connection.execute(_INSERT)

        variants = {"unguarded, checked by hand": unguarded, "guard.transaction": guarded}
        return take_turns(f"transaction, journal {mode}", variants, rounds=rounds, batch=batch, target="1.25x")


def _file(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode = {mode}")
    connection.execute("CREATE TABLE report (id INTEGER PRIMARY KEY, text TEXT)")
    return connection
