"""A guarded transaction in PostgreSQL against one by hand that begins and checks a mark in one trip, and against none.

The work by hand: BEGIN and a look at the mark in one simple query, the statements, COMMIT. What it lacks: the lock
that a seal waits for, the table that refuses everybody else, the limit on idleness.
"""

from collections.abc import Callable
from pathlib import Path

import psycopg

import fenceline
from benchmarks.measure import Result
from benchmarks.postgres import private_server
from benchmarks.writers import measure
from fenceline.model import Sequencer

WRITERS = 8
_LEASE = Sequencer("bench", "history", "bench", 1, "claim")
_CHECK = "BEGIN; SELECT token FROM mark WHERE resource = 'reports' AND token = 1"
_BY_HAND = "begin and check by hand"
_TABLES = """
    CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text);
    CREATE TABLE report (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text);
    CREATE TABLE mark (resource text PRIMARY KEY, token bigint);
    INSERT INTO mark VALUES ('reports', 1);
"""


def run(folder: Path, scale: float) -> list[Result]:
    """Measure one and 100 statements a transaction, by one writer and by eight."""
    with private_server() as url:
        with psycopg.connect(url, autocommit=True) as native:
            native.execute(_TABLES)
        guard = _guard(url)
        guard.protect("report")
        guard.seal(_LEASE)
        return [
            *measure(
                "PostgreSQL", _variants, url, writers=1, statements=1, batch=40, rounds=int(20 * scale) + 3, target=""
            ),
            *measure(
                "PostgreSQL",
                _variants,
                url,
                writers=WRITERS,
                statements=1,
                batch=20,
                rounds=int(20 * scale) + 3,
                target="1.3x",
            ),
            *measure(
                "PostgreSQL",
                _variants,
                url,
                writers=1,
                statements=100,
                batch=2,
                rounds=int(20 * scale) + 3,
                target="1.1x",
            ),
        ]


def _guard(url: str) -> fenceline.Guard:
    return fenceline.guard(url, resource="reports", lock="bench")


def _variants(url: str, statements: int) -> dict[str, Callable[[], None]]:
    native = psycopg.connect(url, autocommit=True)
    guard = _guard(url)

    def by_hand() -> None:
        cursor = native.execute(_CHECK, prepare=False)
        cursor.nextset()
        assert cursor.fetchone() == (1,)
        for _ in range(statements):
            native.execute("INSERT INTO plain (text) VALUES ('x')", prepare=True)
        native.execute("COMMIT", prepare=False)

    def unguarded() -> None:
        with native.transaction():
            for _ in range(statements):
                native.execute("INSERT INTO plain (text) VALUES ('x')", prepare=True)

    def guarded() -> None:
        with guard.transaction(_LEASE) as lent:
            for _ in range(statements):
                lent.execute("INSERT INTO report (text) VALUES ('x')", prepare=True)

    return {_BY_HAND: by_hand, "no check at all": unguarded, "guard.transaction": guarded}
