"""A guarded block on an SQL server that is interrupted: by a signal handler anywhere, by a cancellation in any wait.

No later statement reads the reply to an earlier one, and nothing that was acknowledged is lost.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pymysql
import pytest

from fencelock import GuardError
from fencelock.testing.conformance.interrupts import INTERRUPTS, CancelledAt, interrupted_at
from tests.sql.dialect import run, run_async
from tests.sql.guarded import Guarded
from tests.support.guards import HandmadeLease

# A result of PyMySQL whose constructor was interrupted, or whose rows were, cannot be collected in order.
pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <function (MySQLResult.__del__|SSCursor.close)")

CLIENT = ("/pymysql/connections.py", "/psycopg/", "/fencelock/stores/mysql/connection/", "/fencelock/stores/sql/")
"""The files between a statement's request and its reply."""
LIBRARY = ("/pymysql/", "/psycopg/", "/fencelock/")


def plain(native: Any) -> None:
    run(native, "SELECT 'an earlier reply'")


def row_by_row(native: Any) -> None:
    with native.cursor(pymysql.cursors.SSCursor) as cursor:
        cursor.execute("SELECT 'row 1' UNION SELECT 'row 2'")
        cursor.fetchone()


def two_results(native: Any) -> None:
    with native.cursor() as cursor:
        cursor.execute("CALL two_results()")
        cursor.fetchall()
        cursor.nextset()


MYSQL_ONLY = {"row by row": row_by_row, "two results": two_results}


def check_answers(guarded: Guarded, native: Any) -> None:
    """Run a few statements, each of which is refused or gets its own answer."""
    for number in range(3):
        with suppress(GuardError, guarded.sql.client_error):
            assert run(native, "SELECT %s", f"answer {number}") == [(f"answer {number}",)]


def interrupt_everywhere(guarded: Guarded, statement: Callable[[Any], None]) -> None:
    guard, lease = guarded.guard(), HandmadeLease(5)
    for place in count():
        with suppress(GuardError), guard.transaction(lease) as native:
            assert run(native, "SELECT value FROM reports") == [("first",)]
            # To close a cursor whose rows were interrupted may be an error of its own.
            expected = (*INTERRUPTS, guarded.sql.client_error)
            with suppress(*expected), interrupted_at(place, *CLIENT) as interruption:
                statement(native)
            check_answers(guarded, native)
        if not interruption.has_come:
            assert place > 20, "the statement ran in these files"
            return


def test_g11_a_statement_interrupted_anywhere_gives_its_reply_to_no_other(guarded: Guarded) -> None:
    """Whichever way the block goes on, and in the next block."""
    interrupt_everywhere(guarded, plain)


@pytest.mark.campaign
@pytest.mark.parametrize("how", MYSQL_ONLY)
@pytest.mark.parametrize("sql_server", ["mysql"], indirect=True)
def test_g11_results_of_other_kinds_interrupted_anywhere_answer_no_other_statement(guarded: Guarded, how: str) -> None:
    guarded.database.rows("CREATE PROCEDURE two_results() BEGIN SELECT 'result 1'; SELECT 'result 2'; END")
    interrupt_everywhere(guarded, MYSQL_ONLY[how])


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.campaign), 41])
def test_g11_a_block_interrupted_anywhere_leaves_the_next_one_in_order(guarded: Guarded, stride: int) -> None:
    """From its beginning to its end. What it wrote is there, or it is not; if no exception came, it is."""
    guard, lease = guarded.guard(), HandmadeLease(5)
    before = "first"
    for place in count(0, stride):
        value = f"place {place}"
        with suppress(*INTERRUPTS), interrupted_at(place, *LIBRARY) as interruption:
            with guard.transaction(lease) as native:
                run(native, "UPDATE reports SET value = %s", value)
            del native
        expected = {before, value} if interruption.has_come else {value}
        with guard.transaction(lease) as native:
            assert run(native, "SELECT %s", value) == [(value,)]
            # A COMMIT that was interrupted may still be on its way: its transaction has the row until it has ended.
            [(before,)] = run(native, "SELECT value FROM reports FOR UPDATE")
        assert before in expected
        if not interruption.has_come:
            return


def test_g11_a_task_cancelled_at_any_await_of_a_statement_gives_its_reply_to_no_other(guarded: Guarded) -> None:
    async def work() -> None:
        guard, lease = guarded.async_guard(), HandmadeLease(5)
        for wait in count():
            with suppress(GuardError):
                async with guard.transaction(lease) as native:
                    assert await run_async(native, "SELECT value FROM reports") == [("first",)]
                    statement = CancelledAt(run_async(native, "SELECT 'an earlier reply'"), wait)
                    with suppress(asyncio.CancelledError):
                        await statement
                    for number in range(3):
                        with suppress(GuardError, guarded.sql.client_error):
                            assert await run_async(native, "SELECT %s", f"{number}") == [(f"{number}",)]
            if not statement.has_come:
                assert wait > 0
                return

    asyncio.run(work())


def test_g11_a_task_cancelled_at_any_await_of_a_block_leaves_the_next_one_in_order(guarded: Guarded) -> None:
    async def block(guard: Any, value: str) -> None:
        async with guard.transaction(HandmadeLease(5)) as native:
            await run_async(native, "UPDATE reports SET value = %s", value)

    async def work() -> None:
        guard, before = guarded.async_guard(), "first"
        for wait in count():
            value = f"by wait {wait}"
            work = CancelledAt(block(guard, value), wait)
            with suppress(asyncio.CancelledError):
                await work
            async with guard.transaction(HandmadeLease(5)) as native:
                assert await run_async(native, "SELECT %s", value) == [(value,)]
                [(found,)] = await run_async(native, "SELECT value FROM reports")
            assert found in ({before, value} if work.has_come else {value})
            before = found
            if not work.has_come:
                assert wait > 3
                return

    asyncio.run(work())
