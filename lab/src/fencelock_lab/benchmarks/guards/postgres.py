"""A guarded transaction in PostgreSQL against a hand-written one that checks a mark, and one without a check.

The hand-written one: BEGIN and a read of the mark in one simple query, the statements, COMMIT. It lacks: the lock that
a seal waits for, triggers that refuse other writers, the limit on idle time.
"""

from collections.abc import Callable

import psycopg

import fencelock
from fencelock_lab.benchmarks.guards import BY_HAND, GUARDED, LEASE, LOCK, NO_CHECK, RESOURCE, Kind

KINDS = (
    Kind("1 writer, 1 statement"),
    Kind("8 writers, 1 statement", writers=8, batch=10, aim=1.3),
    Kind("1 writer, 100 statements", statements=100, batch=2, aim=1.1),
)
_CHECK = "BEGIN; SELECT token FROM mark WHERE resource = 'reports' AND token = 1"
_TABLES = """
    CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text);
    CREATE TABLE report (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text);
    CREATE TABLE mark (resource text PRIMARY KEY, token bigint);
    INSERT INTO mark VALUES ('reports', 1);
"""


def prepare(url: str) -> None:
    """Make the tables, and protect one."""
    with psycopg.connect(url, autocommit=True) as native:
        native.execute(_TABLES)
    guard = _guard(url)
    guard.protect("report")
    guard.seal(LEASE)


def variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    """Return a transaction with a hand-written check, one without a check, and a guarded one."""
    native = psycopg.connect(url, autocommit=True)
    guard = _guard(url)

    def by_hand() -> None:
        cursor = native.execute(_CHECK, prepare=False)
        cursor.nextset()
        assert cursor.fetchone() == (1,)
        _write(native, "plain", kind)
        native.execute("COMMIT", prepare=False)

    def unguarded() -> None:
        with native.transaction():
            _write(native, "plain", kind)

    def guarded() -> None:
        with guard.transaction(LEASE) as lent:
            _write(lent, "report", kind)

    return {BY_HAND: by_hand, NO_CHECK: unguarded, GUARDED: guarded}


def _write(connection: "psycopg.Connection[tuple[object, ...]]", table: str, kind: Kind) -> None:
    statement = f"INSERT INTO {table} (text) VALUES ('x')".encode()
    for _ in range(kind.statements):
        connection.execute(statement, prepare=True)


def _guard(url: str) -> fencelock.Guard:
    return fencelock.guard(url, resource=RESOURCE, lock=LOCK)
