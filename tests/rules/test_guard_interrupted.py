"""A guarded block on a SQLite file that is interrupted anywhere: by a signal handler, or by the limit of recursion.

What the authorizer could not answer, no later block on the connection finds refused.
"""

import gc
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import GuardError
from fencelock.testing.conformance.interrupts import INTERRUPTS, interrupted_at
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, url_of, value_in

pytestmark = pytest.mark.reduced

# Before Python 3.12, what a profiler raises as a generator goes on ends the generator, as the limit of recursion does.
# What a handler raises there comes inside the generator's `try`.
EXPECTED = INTERRUPTS if sys.version_info >= (3, 12) else (*INTERRUPTS, GuardError)
TEXTS = count()


def step_in(connection: sqlite3.Connection, value: int) -> None:
    # A new text each time: SQLite asks the authorizer only about those.
    connection.execute(f"UPDATE reports SET value = ? -- {next(TEXTS)}", (value,))


def walk(file: Path, act: Callable[[int], Any]) -> None:
    """Interrupt `act`, which writes, at each of its places; after each, it writes without an interruption."""
    act(-2)  # Seals.
    gc.disable()  # Nothing that an interrupted block leaves behind may need the collector.
    try:
        for place in count():
            before = value_in(file)
            with suppress(*EXPECTED), interrupted_at(place, "/fencelock/") as interruption:
                act(place)
            assert value_in(file) in ({before, place} if interruption.has_come else {place})
            act(-1)
            assert value_in(file) == -1
            if not interruption.has_come:
                assert place > 20
                return
    finally:
        gc.enable()


def test_g11_a_block_interrupted_anywhere_leaves_the_next_one_in_order(file: Path) -> None:
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)

    def act(value: int) -> None:
        with guard.transaction(HandmadeLease(5)) as connection:
            step_in(connection, value)

    walk(file, act)


def test_g11_an_interrupted_query_of_the_guard_keeps_no_lock_while_its_exception_lives(file: Path) -> None:
    guard = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = DELETE")  # A reader bars a writer there.
    kept: list[BaseException] = []
    for place in count():
        interruption = None
        try:
            with (
                interrupted_at(place, "/fencelock/stores/sqlite/guard/marks.py") as interruption,
                guard.transaction(HandmadeLease(place + 5)) as connection,
            ):
                step_in(connection, -1)
        except EXPECTED as error:
            kept.append(error)
        with guard.transaction(HandmadeLease(place + 6)) as connection:
            step_in(connection, place)
        if interruption is not None and not interruption.has_come:
            break
    assert len(kept) == place > 3


def test_g11_a_statement_at_the_limit_of_recursion_leaves_the_next_block_in_order(file: Path) -> None:
    """Python ends the generator that it cannot resume there, and sqlite3 reports that as a refusal."""
    guard, refused = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK), 0

    def deep(connection: sqlite3.Connection, left: int) -> None:
        if left:
            deep(connection, left - 1)
        else:
            step_in(connection, 1)

    def act(left: int) -> None:
        with guard.transaction(HandmadeLease(5)) as connection, suppress(RecursionError, sqlite3.DatabaseError):
            deep(connection, left)

    limit = sys.getrecursionlimit()
    for left in range(limit - 130, limit):
        with suppress(RecursionError):
            try:
                act(left)
            except GuardError as error:
                refused += "limit of recursion" in str(error)
        with guard.transaction(HandmadeLease(5)) as connection:
            step_in(connection, left)
        assert value_in(file) == left
    assert refused
