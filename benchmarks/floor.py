"""The work by hand: what somebody who knows SQLite well would write for one lock with a token, and nothing around it.

The same durability as fenceline's: write-ahead log, `synchronous = NORMAL`, the same page size, a counter under a
bound that is durable already. What it lacks: waiting, renewal, the refusal of late duplicates, the notice of a
restored or moved file, threads, forks, errors, and every check of what the user passes.
"""

import sqlite3
from pathlib import Path

from fenceline.clock import boottime_ms
from fenceline.model import draw_claim
from fenceline.stores.sqlite.identity import PAGE_BYTES

TTL_MS = 30_000


def connect(path: Path) -> sqlite3.Connection:
    """Open a file with fenceline's settings."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


class HandWrittenLock:
    """Acquire and release in two transactions."""

    def __init__(self, path: Path) -> None:
        self.connection = connection = connect(path)
        connection.create_function("now_ms", 0, boottime_ms)
        connection.execute("CREATE TABLE counter (id INTEGER PRIMARY KEY, last INTEGER, bound INTEGER)")
        connection.execute("INSERT INTO counter VALUES (1, 0, 1 << 60)")
        connection.execute(
            "CREATE TABLE lock (name TEXT PRIMARY KEY, token INTEGER, claim TEXT, holder TEXT, deadline_ms INTEGER)"
            " WITHOUT ROWID"
        )

    def cycle(self) -> None:
        """Acquire the lock and release it."""
        run = self.connection.execute
        claim = draw_claim()
        run("BEGIN IMMEDIATE")
        (token,) = run("UPDATE counter SET last = last + 1 WHERE id = 1 AND last < bound RETURNING last").fetchone()
        granted = run(
            "INSERT INTO lock VALUES (?, ?, ?, ?, now_ms() + ?)"
            " ON CONFLICT (name) DO UPDATE SET token = excluded.token, claim = excluded.claim,"
            " holder = excluded.holder, deadline_ms = excluded.deadline_ms"
            " WHERE claim IS NULL OR deadline_ms <= now_ms()",
            ("bench", token, claim, "somebody", TTL_MS),
        ).rowcount
        run("COMMIT")
        assert granted == 1
        run("BEGIN IMMEDIATE")
        run("UPDATE lock SET claim = NULL WHERE name = ? AND claim = ?", ("bench", claim))
        run("COMMIT")
