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

import fencelock.aio
from fencelock import GuardError
from fencelock.testing.conformance.interrupts import INTERRUPTS, interrupted_at
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, url_of, value_in
from tests.support.interrupts import InterruptedAt

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


@pytest.mark.asyncio
async def test_g11_a_tasks_block_interrupted_as_it_goes_on_after_any_await_leaves_the_next_one_in_order(
    file: Path,
) -> None:
    """The thread that opens or ends the transaction does so meanwhile, and no task has what it opened."""
    guard = fencelock.aio.guard(url_of(file), resource=RESOURCE, lock=LOCK)

    async def act(value: int) -> None:
        async with guard.transaction(HandmadeLease(5)) as connection:
            step_in(connection, value)

    await act(-1)
    kept: list[BaseException] = []
    for wait in count():
        work = InterruptedAt(act(wait), wait)
        try:
            await work
        except INTERRUPTS as error:
            kept.append(error)  # And with it the block.
        await act(-1)  # Waits for a commit that has begun, and for what the threads undo.
        assert value_in(file) == -1
        if not work.has_come:
            assert len(kept) == wait > 1
            return


@pytest.mark.asyncio
async def test_a_tasks_block_that_is_dropped_before_its_end_bars_no_later_one(file: Path) -> None:
    """A signal handler may raise before the first line of `__aexit__`."""
    guard, lease = fencelock.aio.guard(url_of(file), resource=RESOURCE, lock=LOCK), HandmadeLease(5)
    await guard.transaction(lease).__aenter__()
    assert lease.open_transactions == 0
    async with guard.transaction(lease) as connection:
        step_in(connection, 1)
    assert value_in(file) == 1
