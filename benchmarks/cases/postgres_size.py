"""Acquire and release in databases that know 10 and 1 000 000 locks."""

import random
from collections.abc import Callable
from pathlib import Path

import psycopg

import fenceline
from benchmarks.measure import Result, take_turns
from benchmarks.postgres import private_server
from fenceline.stores.postgres.source import PostgresSource

COUNTS = (10, 1_000_000)
HOT = 10
"""Locks in use, spread over all that the database knows."""
_FILL = """
INSERT INTO fenceline.lock (name, token, ended)
SELECT convert_to('lock-' || number, 'UTF8'), number + 1, 'it was released' FROM generate_series(1, {count}) AS number;
SELECT setval('fenceline.token', {count} + 2);
"""


def run(_folder: Path, scale: float) -> list[Result]:
    """Measure a cycle against the number of locks in the database."""
    with private_server() as url:
        variants = {f"{count} locks": _cycle(url, count) for count in COUNTS}
        return take_turns(
            "PostgreSQL: acquire and release by locks in the database",
            variants,
            rounds=int(30 * scale) + 3,
            batch=100,
            target="1.2x",
        )


def _cycle(url: str, count: int) -> Callable[[], None]:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE with_{count}".encode())
    url = url.rpartition("/")[0] + f"/with_{count}"
    PostgresSource(url).install()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(_FILL.format(count=count).encode())
    source = fenceline.connect(url)
    chance = random.Random(count)
    locks = [source.lock(f"lock-{chance.randrange(1, count)}") for _ in range(HOT)]

    def cycle() -> None:
        with chance.choice(locks):
            pass

    return cycle
