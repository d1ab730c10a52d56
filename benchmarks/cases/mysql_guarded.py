"""A guarded transaction on MariaDB against one by hand that looks at a mark and holds it, and against none.

The work by hand: BEGIN, a look at the mark by LOCK IN SHARE MODE, the statements, COMMIT: a trip more than the guard
takes. What it lacks: the table that refuses everybody else, the limit on idleness, the refusal of what follows a stray
COMMIT.
"""

from collections.abc import Callable
from pathlib import Path

import pymysql

import fenceline
from benchmarks.measure import Result
from benchmarks.mysql import private_server
from benchmarks.writers import measure
from fenceline.model import Sequencer
from fenceline.stores.mysql.conninfo import place_of

WRITERS = 8
_LEASE = Sequencer("bench", "history", "bench", 1, "claim")
_CHECK = "SELECT token FROM mark WHERE resource = 'reports' AND token = 1 LOCK IN SHARE MODE"
_TABLES = (
    "CREATE TABLE plain (id bigint AUTO_INCREMENT PRIMARY KEY, text varchar(64))",
    "CREATE TABLE report (id bigint AUTO_INCREMENT PRIMARY KEY, text varchar(64))",
    "CREATE TABLE mark (resource varchar(64) PRIMARY KEY, token bigint)",
    "INSERT INTO mark VALUES ('reports', 1)",
)


def run(_folder: Path, scale: float) -> list[Result]:
    """Measure one and 100 statements a transaction, by one writer and by eight."""
    with private_server() as url:
        with _connect(url) as native, native.cursor() as cursor:
            for statement in _TABLES:
                cursor.execute(statement)
        guard = _guard(url)
        guard.protect("report")
        guard.seal(_LEASE)
        rounds = int(20 * scale) + 3
        server = "MariaDB"
        return [
            *measure(server, _variants, url, writers=1, statements=1, batch=40, rounds=rounds, target=""),
            *measure(server, _variants, url, writers=WRITERS, statements=1, batch=20, rounds=rounds, target="1.3x"),
            *measure(server, _variants, url, writers=1, statements=100, batch=2, rounds=rounds, target="1.15x"),
        ]


def _guard(url: str) -> fenceline.Guard:
    return fenceline.guard(url, resource="reports", lock="bench")


def _connect(url: str) -> "pymysql.Connection[pymysql.cursors.Cursor]":
    place = place_of(url)
    (address,) = place.addresses
    login = {"host": address.host, "port": address.port, "user": place.user, "database": place.database}
    return pymysql.connect(autocommit=True, **login)


def _variants(url: str, statements: int) -> dict[str, Callable[[], None]]:
    native = _connect(url)
    guard = _guard(url)

    def write(connection: "pymysql.Connection[pymysql.cursors.Cursor]", table: str) -> None:
        with connection.cursor() as cursor:
            for _ in range(statements):
                cursor.execute(f"INSERT INTO {table} (text) VALUES ('x')")

    def unguarded() -> None:
        native.begin()
        write(native, "plain")
        native.commit()

    def by_hand() -> None:
        native.begin()
        with native.cursor() as cursor:
            cursor.execute(_CHECK)
            assert cursor.fetchone() == (1,)
        write(native, "plain")
        native.commit()

    def guarded() -> None:
        with guard.transaction(_LEASE) as lent:
            write(lent, "report")

    return {"no check at all": unguarded, "a look at the mark by hand": by_hand, "guard.transaction": guarded}
