"""A private MariaDB server for the benchmarks, and the work by hand on it.

By hand: the two statements that an expert in MySQL would write for one lock with a token, and nothing around
them: one row, whose token comes back by LAST_INSERT_ID, taken by an UPDATE and freed by another, each flushed. What it
lacks: a counter that outlives the row, so that the tokens of a lock that is deleted never come again; waiting, renewal,
the refusal of late duplicates, errors, and rights: a role that may update the row can give itself any token.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pymysql

import fencelock
from fencelock.protocol import boottime_us, digest_of_claim, draw_claim
from fencelock_lab.benchmarks.stores import CONNECTIONS, PREFIX, Operation, Site, install
from fencelock_lab.servers.fleet import fleet_of
from fencelock_lab.servers.mariadb import MariaDBFleet

if TYPE_CHECKING:
    from pymysql.cursors import Cursor

TTL_US = 30_000_000
MAX_WAITERS = 10_000
"""What fencelock's clients pass to `fencelock_acquire`."""
GRANT_COLUMNS = 2
"""Its answer if it grants in the common case: the token, and the server's time."""
_BY_HAND = (
    """
    CREATE TABLE IF NOT EXISTS by_hand (name VARBINARY(512) PRIMARY KEY, token BIGINT NOT NULL, claim VARCHAR(64),
                                        holder VARCHAR(512), deadline_us BIGINT NOT NULL)
    """,
    "INSERT IGNORE INTO by_hand VALUES ('bench', 0, NULL, NULL, 0)",
    "CREATE TABLE IF NOT EXISTS by_hand_counter (id INT PRIMARY KEY, token BIGINT NOT NULL)",
    "INSERT IGNORE INTO by_hand_counter VALUES (1, 0)",
)
_TAKE = """
    UPDATE by_hand SET token = LAST_INSERT_ID(token + 1), claim = %s, holder = %s,
                       deadline_us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) + %s
    WHERE name = %s AND (claim IS NULL OR deadline_us < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)))
"""
_FREE = "UPDATE by_hand SET claim = NULL, holder = NULL WHERE name = %s AND claim = %s"


@contextmanager
def site() -> Iterator[Site]:
    """Yield a database with fencelock's schema, on a temporary server with its files on a disk."""
    with fleet_of(MariaDBFleet, PREFIX, on_disk=True) as fleet:
        server = fleet.new_server()
        server.settings["max_connections"] = CONNECTIONS
        server.start()
        server.rows("CREATE DATABASE bench")
        url = server.url(database="bench")
        install(url)
        ((version,),) = server.rows("SELECT VERSION()")

        def asked() -> int:
            ((_, count),) = server.rows("SHOW GLOBAL STATUS LIKE 'Questions'")
            return int(count)

        yield Site("mysql", f"MariaDB {version.split('-')[0]}", url, server, asked)


@contextmanager
def by_hand(site: Site) -> Iterator[dict[str, Operation]]:
    """Yield empty round trips, hand-written locks, and fencelock's own calls."""
    with closing(MySQLHandWrittenLock(site.url)) as floor, closing(MySQLSameCalls(site.url)) as same:
        yield {
            "two statements by hand": floor.cycle,
            "five by hand, with a counter for all locks": floor.cycle_with_counter,
            "fencelock's two calls by hand": same.cycle,
            "two empty trips": floor.empty_trips,
            "GET_LOCK: no token, no lease": floor.user_lock,
        }


def connect(url: str) -> "pymysql.Connection[Cursor]":
    """Return a new connection in autocommit mode to the database of a URL."""
    parts = urlsplit(url)
    address = {"host": parts.hostname, "port": parts.port, "user": parts.username, "database": parts.path[1:]}
    return pymysql.connect(autocommit=True, charset="utf8mb4", **address)


class MySQLHandWrittenLock:
    """Take and free a lock by two statements."""

    def __init__(self, url: str) -> None:
        self.connection = connect(url)
        self._claim = ""
        for statement in _BY_HAND:
            self._run(statement)

    def _run(self, statement: str, *parameters: Any) -> Any:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return cursor.lastrowid

    def take(self) -> None:
        """Take the lock."""
        self._claim = draw_claim()
        token = self._run(_TAKE, self._claim, "somebody", TTL_US, b"bench")
        assert token > 0

    def free(self) -> None:
        """Free it."""
        self._run(_FREE, b"bench", self._claim)

    def cycle(self) -> None:
        """Take the lock and free it."""
        self.take()
        self.free()

    def cycle_with_counter(self) -> None:
        """Do the same with a counter that all locks share, as T6 requires; that takes five trips."""
        self._run("BEGIN")
        self._run("UPDATE by_hand_counter SET token = LAST_INSERT_ID(token + 1)")
        self.take()
        self._run("COMMIT")
        self.free()

    def empty_trips(self) -> None:
        """Make two empty round trips."""
        self._run("SELECT 1")
        self._run("SELECT 1")

    def user_lock(self) -> None:
        """Take and free a lock of the server's own: no token, no lease, gone with the connection."""
        self._run("SELECT GET_LOCK('bench', 0)")
        self._run("SELECT RELEASE_LOCK('bench')")

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class MySQLSameCalls:
    """The two calls of fencelock's clients by hand; the difference to fencelock is the cost of its Python code."""

    def __init__(self, url: str) -> None:
        with fencelock.connect(url) as source:
            with source.lock("bench-same"):
                pass  # The first grant makes the row.
            info = source.describe()
        self._history = (info.epoch, info.history_id)
        self.connection = connect(url)
        with self.connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', tx_isolation = 'READ-COMMITTED'")
        ((now_us,),) = self._call("SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))", ())
        # Later than any claim that has ended, whenever the server read its clock.
        self._ahead_us = now_us - boottime_us() + TTL_US
        """How far this client's time is ahead of this machine's time since the boot."""

    def cycle(self) -> None:
        """Take the lock and free it."""
        claim = draw_claim()
        born_us = boottime_us() + self._ahead_us
        ttl_ms = TTL_US // 1000
        digest = digest_of_claim(claim)
        parameters = (b"bench-same", digest, "somebody", ttl_ms, born_us, "wait", MAX_WAITERS, *self._history)
        (row,) = self._call("CALL fencelock_acquire(%s, %s, %s, %s, %s, %s, %s, %s, %s)", parameters)
        assert len(row) == GRANT_COLUMNS, row
        self._call("CALL fencelock_release(%s, %s, %s)", (b"bench-same", claim, 0))

    def _call(self, statement: str, parameters: tuple[object, ...]) -> tuple[tuple[Any, ...], ...]:
        with self.connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: tuple[tuple[Any, ...], ...] = cursor.fetchall()
            return rows

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()
