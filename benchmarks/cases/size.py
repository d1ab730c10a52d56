"""Acquire and release in files that know 10 to 1 000 000 locks."""

import random
from collections.abc import Callable
from pathlib import Path

import fenceline
from benchmarks.measure import Result, take_turns
from fenceline.stores.sqlite.database import Database

COUNTS = (10, 1_000, 100_000, 1_000_000)
HOT = 10
"""Locks in use, spread over all that the file knows."""


def run(folder: Path, scale: float) -> list[Result]:
    """Measure a cycle against the number of locks in the file."""
    variants = {f"{count} locks": _cycle(folder / f"{count}.db", count) for count in COUNTS}
    return take_turns(
        "acquire and release by locks in the file", variants, rounds=int(120 * scale) + 3, batch=50, target="1.2x"
    )


def _cycle(path: Path, count: int) -> Callable[[], None]:
    source = fenceline.connect(f"sqlite:///{path}")
    with source.lock("lock-0"):
        pass
    _fill(path, count)
    chance = random.Random(count)
    locks = [source.lock(f"lock-{chance.randrange(count)}") for _ in range(HOT)]

    def cycle() -> None:
        with chance.choice(locks):
            pass

    return cycle


def _fill(path: Path, count: int) -> None:
    """Write rows as free locks leave them; by hand, since acquiring each would take a minute."""
    database = Database(path)
    rows = ((f"lock-{number}", number + 2) for number in range(1, count))
    database.transact_flushed(
        lambda: (
            database.execute(
                "UPDATE fenceline_source SET reserved = :bound, bound = :bound", {"bound": count + 1_000_000}
            ),
            database.native.executemany(
                "INSERT INTO fenceline_lock (name, token, ttl_ms, deadline_ms, ended)"
                " VALUES (?, ?, 30000, 0, 'it was released')",
                rows,
            ),
        )
    )
    database.close()
