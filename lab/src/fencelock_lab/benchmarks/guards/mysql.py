"""A guarded transaction on MariaDB against a hand-written one that reads and locks a mark, and one without a check.

The hand-written one: BEGIN, a read of the mark with LOCK IN SHARE MODE, the statements, COMMIT: one trip more than the
guard. It lacks: triggers that refuse other writers, the limit on idle time, the refusal of statements after a stray
COMMIT.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import fencelock
from fencelock_lab.benchmarks.guards import BY_HAND, GUARDED, LEASE, LOCK, NO_CHECK, RESOURCE, Kind
from fencelock_lab.benchmarks.stores.mysql import connect

if TYPE_CHECKING:
    import pymysql

KINDS = (
    Kind("1 writer, 1 statement"),
    Kind("8 writers, 1 statement", writers=8, batch=10, aim=1.3),
    Kind("1 writer, 100 statements", statements=100, batch=2, aim=1.15),
)
_CHECK = "SELECT token FROM mark WHERE resource = 'reports' AND token = 1 LOCK IN SHARE MODE"
_TABLES = (
    "CREATE TABLE plain (id bigint AUTO_INCREMENT PRIMARY KEY, text varchar(64))",
    "CREATE TABLE report (id bigint AUTO_INCREMENT PRIMARY KEY, text varchar(64))",
    "CREATE TABLE mark (resource varchar(64) PRIMARY KEY, token bigint)",
    "INSERT INTO mark VALUES ('reports', 1)",
)


def prepare(url: str) -> None:
    """Make the tables, and protect one."""
    with connect(url) as native, native.cursor() as cursor:
        for statement in _TABLES:
            cursor.execute(statement)
    guard = _guard(url)
    guard.protect("report")
    guard.seal(LEASE)


def variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    """Return a transaction that reads the mark, one without a check, and a guarded one."""
    native = connect(url)
    guard = _guard(url)

    def by_hand() -> None:
        native.begin()
        with native.cursor() as cursor:
            cursor.execute(_CHECK)
            assert cursor.fetchone() == (1,)
        _write(native, "plain", kind)
        native.commit()

    def unguarded() -> None:
        native.begin()
        _write(native, "plain", kind)
        native.commit()

    def guarded() -> None:
        with guard.transaction(LEASE) as lent:
            _write(lent, "report", kind)

    return {BY_HAND: by_hand, NO_CHECK: unguarded, GUARDED: guarded}


def _write(connection: "pymysql.Connection[pymysql.cursors.Cursor]", table: str, kind: Kind) -> None:
    with connection.cursor() as cursor:
        for _ in range(kind.statements):
            cursor.execute(f"INSERT INTO {table} (text) VALUES ('x')")


def _guard(url: str) -> fencelock.Guard:
    return fencelock.guard(url, resource=RESOURCE, lock=LOCK)
