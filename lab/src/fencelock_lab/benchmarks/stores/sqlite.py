"""A folder for SQLite, and the work by hand on it: what an expert in SQLite would write for one lock with a
token, and nothing around it.

The same durability as fencelock's: write-ahead log, `synchronous = NORMAL`, the same page size, a counter under a
bound that is durable already (T1), the clock read under the write lock (H1). What it lacks: waiting, renewal, the
refusal of late duplicates, the notice of a restored or moved file, threads, forks, errors, and every check of what the
user passes. A second variant runs fencelock's own statements by hand: the difference to fencelock
is the cost of its Python code.
"""

import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fencelock
from fencelock.protocol import boottime_ms, boottime_us, digest_of_claim, draw_claim
from fencelock_lab.benchmarks.stores import Operation, Site

TTL_MS = 30_000
PAGE_BYTES = 1024
_MANY_TOKENS = 1 << 60
_GRANT = """
UPDATE fencelock_lock SET
    (token, ended) = (SELECT s.counter + 1, fencelock_emit(s.counter + 1) FROM fencelock_source AS s WHERE s.id = 1),
    digest = ?, holder = ?, ttl_ms = ?, deadline_ms = fencelock_now_ns() / 1000000 + ?
WHERE name = ? AND digest IS NULL AND forgotten_us < ? AND ended_digest IS NOT ?
  AND EXISTS (
      SELECT 1 FROM fencelock_source AS s
      WHERE s.id = 1 AND s.history_id = ? AND s.counter >= max(?, token) AND s.counter < s.bound
        AND s.boot_id = ? AND s.time_namespace = ? AND s.born_after_us < ?)
  AND NOT EXISTS (SELECT 1 FROM fencelock_waiter AS w WHERE w.lock = fencelock_lock.name)
"""
_RELEASE = """
UPDATE fencelock_lock SET
    digest = NULL, deadline_ms = 0, ended = 'it was released',
    forgotten_us = max(forgotten_us, ended_us), ended_us = fencelock_now_ns() / 1000, ended_digest = digest,
    holder = fencelock_emit((
        SELECT w.digest FROM fencelock_waiter AS w
        WHERE w.lock = fencelock_lock.name AND w.deadline_ms > (SELECT fencelock_now_ns() / 1000000)
        ORDER BY w.ticket LIMIT 1))
WHERE name = ? AND digest = ?
"""
"""fencelock's own two statements for a lock that is free and has no waiters."""


@contextmanager
def site() -> Iterator[Site]:
    """Yield a file in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="fl-bench-", ignore_cleanup_errors=True) as folder:
        yield Site("sqlite", f"SQLite {sqlite3.sqlite_version}", f"sqlite:///{folder}/locks.db")


def folder_of(url: str) -> Path:
    """Return the folder of a source's file."""
    return Path(url.removeprefix("sqlite:///")).parent


@contextmanager
def by_hand(site: Site) -> Iterator[dict[str, Operation]]:
    """Yield two transactions by hand, and fencelock's own statements."""
    folder = folder_of(site.url)
    floor, same = SQLiteHandWrittenLock(folder / "by-hand.db"), SameStatements(folder / "same.db")
    with closing(floor.connection), closing(same.connection):
        yield {"two transactions by hand": floor.cycle, "fencelock's statements by hand": same.cycle}


def fill(url: str, count: int) -> str:
    """Write the rows that free locks leave, by hand, because acquiring each lock would take a minute."""
    path = folder_of(url) / f"{count}-locks.db"
    with fencelock.connect(f"sqlite:///{path}") as source, source.lock("lock-0"):
        pass
    rows = ((f"lock-{number}", number + 2) for number in range(1, count))
    with closing(sqlite3.connect(path, isolation_level=None)) as native:
        native.execute("PRAGMA synchronous = FULL")
        native.execute("BEGIN IMMEDIATE")
        native.execute("UPDATE fencelock_source SET reserved = :bound, bound = :bound", {"bound": count + 1_000_000})
        native.executemany(
            "INSERT INTO fencelock_lock (name, token, ttl_ms, deadline_ms, ended)"
            " VALUES (?, ?, 30000, 0, 'it was released')",
            rows,
        )
        native.execute("COMMIT")
    return f"sqlite:///{path}"


def connect(path: Path) -> sqlite3.Connection:
    """Open a file with fencelock's settings."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


class SQLiteHandWrittenLock:
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

        self._claim = ""

    def take(self) -> None:
        """Take the lock."""
        run = self.connection.execute
        claim = self._claim = draw_claim()
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

    def free(self) -> None:
        """Free it."""
        run = self.connection.execute
        run("BEGIN IMMEDIATE")
        run("UPDATE lock SET claim = NULL WHERE name = ? AND claim = ?", ("bench", self._claim))
        run("COMMIT")

    def cycle(self) -> None:
        """Take the lock and free it."""
        self.take()
        self.free()


class SameStatements:
    """fencelock's own two statements by hand: they hold the rules, without the code around them."""

    def __init__(self, path: Path) -> None:
        with fencelock.connect(f"sqlite:///{path}") as source, source.lock("bench") as lease:
            self._history_id, self._token = lease.sequencer.history_id, lease.token
        self._emitted: deque[Any] = deque(maxlen=1)
        self.connection = connection = sqlite3.connect(path, isolation_level=None)
        # C functions without a Python frame, as fencelock registers them.
        connection.create_function("fencelock_now_ns", 0, partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME))
        connection.create_function("fencelock_emit", 1, self._emitted.append)
        connection.execute("PRAGMA synchronous = NORMAL")
        for column in ("reserved", "bound"):
            connection.execute(f"UPDATE fencelock_source SET {column} = {_MANY_TOKENS}")
        self._kernel = connection.execute("SELECT boot_id, time_namespace FROM fencelock_source").fetchone()

    def cycle(self) -> None:
        """Acquire the lock and release it."""
        run = self.connection.execute
        digest = digest_of_claim(draw_claim())
        born_us = boottime_us()
        row = (digest, "somebody", TTL_MS, TTL_MS, "bench", born_us, digest)
        granted = run(_GRANT, (*row, self._history_id, self._token, *self._kernel, born_us)).rowcount
        self._token = self._emitted.pop()
        ended = run(_RELEASE, ("bench", digest)).rowcount
        assert granted == ended == 1
