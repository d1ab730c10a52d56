"""The rule G11 on the SQL servers: what is kept of a block's connection, by a name, a cursor or a late thread or task,
never reaches into a later block.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pymysql
import pytest

from fencelock import GuardError
from fencelock.stores.sql.guard_store import MAX_IDLE_CONNECTIONS
from tests.sql.dialect import run, run_async
from tests.sql.guarded import Guarded, Step
from tests.support.guards import Blocking, HandmadeLease

STALE = "UPDATE reports SET value = 'stale' WHERE id = 1"


class Kept:
    """A guard of one kind, sync or async, whose blocks and connections look sync."""

    def __init__(self, guarded: Guarded, runner: asyncio.Runner | None) -> None:
        self.guarded = guarded
        self._runner = runner
        self.guard: Any = guarded.guard() if runner is None else Blocking(guarded.async_guard(), runner.run)

    def end(self, result: Any) -> Any:
        """Return the result of a call, after the loop has run it if it is awaitable."""
        return self._runner.run(_awaited(result)) if hasattr(result, "__await__") else result

    def run(self, native: Any, statement: str, *params: object) -> Any:
        return self.end((run if self._runner is None else run_async)(native, statement, *params))

    def write(self, token: int, value: str, then: Callable[[Any], Any] = lambda native: None) -> int:
        """Write in a block, do something else in it, and return the number of its connection."""
        with self.guard.transaction(HandmadeLease(token)) as native:
            self.run(native, "UPDATE reports SET value = %s WHERE id = 1", value)
            then(native)
            return self.guarded.sql.number_of(native)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


@pytest.fixture(params=["sync", "async"])
def kept(request: pytest.FixtureRequest, guarded: Guarded) -> Iterator[Kept]:
    """Yield a guard of the protected table."""
    if request.param == "sync":
        yield Kept(guarded, None)
        return
    with asyncio.Runner() as runner:
        yield Kept(guarded, runner)


def keep_connection(kept: Kept, native: Any) -> Callable[[], Any]:
    return partial(kept.run, native, STALE)


def keep_cursor(kept: Kept, native: Any) -> Callable[[], Any]:
    cursor = native.cursor() if isinstance(native, pymysql.Connection) else kept.end(native.cursor())
    kept.end(cursor.execute("SELECT 1"))
    return lambda: kept.end(cursor.execute(STALE))


def keep_method(kept: Kept, native: Any) -> Callable[[], Any]:
    method = native.cursor

    def write() -> None:
        cursor = method()
        kept.end((cursor if hasattr(cursor, "execute") else kept.end(cursor)).execute(STALE))

    return write


def keep_inner_connection(kept: Kept, native: Any) -> Callable[[], Any]:
    """Psycopg's own, which sends whatever it is told to."""
    inner = native.pgconn

    def write() -> None:
        result = inner.exec_(STALE.encode())
        if result.status == psycopg.pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result)

    return write


def keep_prepared(kept: Kept, native: Any) -> Callable[[], Any]:
    cursor = native.cursor()
    kept.end(cursor.execute(STALE, prepare=True))
    return lambda: kept.end(cursor.execute(STALE, prepare=True))


def keep_server_cursor(kept: Kept, native: Any) -> Callable[[], Any]:
    cursor = native.cursor("large")
    kept.end(cursor.execute("SELECT 1"))

    def write() -> None:
        try:
            kept.end(cursor.execute(STALE))
        finally:
            cursor._closed = True  # Or psycopg warns that nobody has closed it.

    return write


def keep_copy(kept: Kept, native: Any) -> Callable[[], Any]:
    cursor = native.cursor()
    return lambda: kept.end(cursor.copy("COPY reports FROM STDIN").__enter__())


def keep_pipeline(kept: Kept, native: Any) -> Callable[[], Any]:
    begin = native.pipeline

    def write() -> None:
        with begin():
            kept.run(native, STALE)

    return write


def keep_row_by_row(kept: Kept, native: Any) -> Callable[[], Any]:
    cursor = native.cursor(pymysql.cursors.SSCursor)
    cursor.execute("SELECT 1 UNION SELECT 2")
    cursor.fetchall()
    return lambda: cursor.execute(STALE)


KEEPERS = {
    "postgres": (keep_inner_connection, keep_prepared, keep_server_cursor, keep_copy, keep_pipeline),
    "mysql": (keep_row_by_row,),
}
"""What only one client library has."""
SYNC_ONLY = (keep_copy, keep_pipeline, keep_row_by_row)
OF_ALL = (keep_connection, keep_cursor, keep_method)


def keepers(kept: Kept) -> Iterator[Callable[[Kept, Any], Callable[[], Any]]]:
    yield from OF_ALL
    is_sync = kept.guard.__class__ is not Blocking
    yield from (one for one in KEEPERS[kept.guarded.sql.name] if is_sync or one not in SYNC_ONLY)


def write_late(kept: Kept, keep: Callable[[Kept, Any], Callable[[], Any]], token: int) -> None:
    """Keep something of a block, and write by it inside and after later blocks: nothing of that may be seen."""
    late: list[Callable[[], Any]] = []
    refusals = (GuardError, kept.guarded.sql.client_error)
    first = kept.write(token, "old", lambda native: late.append(keep(kept, native)))

    def write_in_new_block(native: Any) -> None:
        assert kept.guarded.sql.number_of(native) != first, keep.__name__
        with pytest.raises(refusals):
            late[0]()

    for value in ("new", "newer"):
        kept.write(token, value, write_in_new_block)
        with pytest.raises(refusals):
            late[0]()
        assert kept.guarded.value() == value, keep.__name__


def test_g11_what_is_kept_of_a_connection_writes_in_no_later_block(kept: Kept) -> None:
    """A late thread or task of an older tenure may have it: its write would be committed with the new holder's."""
    for token, keep in enumerate(keepers(kept), start=5):
        write_late(kept, keep, token)


def test_g11_a_connection_refuses_its_user_after_its_block(kept: Kept) -> None:
    """Also what no trigger would refuse: a write to a table that is not protected."""
    kept.guarded.database.rows("CREATE TABLE unprotected (id int)")
    late: list[Any] = []
    kept.write(5, "old", late.append)
    calls = [partial(kept.run, late[0], "INSERT INTO unprotected VALUES (1)"), late[0].commit, late[0].rollback]
    for call in calls:
        with pytest.raises(GuardError, match=r"the guarded block of this connection has ended.*End each thread"):
            kept.end(call())
    assert kept.guarded.database.value("SELECT COUNT(*) FROM unprotected") == 0


def test_g11_a_connection_to_which_nobody_refers_serves_the_next_block(kept: Kept) -> None:
    assert len({kept.write(5, "mine") for _ in range(4)}) == 1


def test_g11_a_loop_whose_variable_keeps_the_connection_gets_another_and_no_new_one(kept: Kept) -> None:
    """While a name still refers to the last block's connection, the next block gets an older one."""
    used = []
    for _ in range(12):
        with kept.guard.transaction(HandmadeLease(5)) as native:
            used.append(kept.guarded.sql.number_of(native))
    assert all(this != last for last, this in itertools.pairwise(used))
    assert 2 <= len(set(used)) < len(used) / 2


def test_g11_connections_that_are_kept_for_ever_do_not_fill_the_pool(kept: Kept) -> None:
    held: list[Any] = []
    for _ in range(MAX_IDLE_CONNECTIONS + 2):
        kept.write(5, "mine", held.append)
    assert [native.closed for native in held] == [True] * 2 + [False] * MAX_IDLE_CONNECTIONS
    assert len({kept.write(5, "mine") for _ in range(3)}) == 1


HOLD = "SELECT value FROM reports WHERE id = 1 FOR UPDATE"


def test_g11_a_block_cannot_end_while_another_thread_is_in_a_statement(guarded: Guarded) -> None:
    """The thread waits for a row. It is not waited for, and its connection serves no other block."""
    guard = guarded.guard()
    late: list[Step] = []

    def wait_for_row(native: Any) -> int:
        late.append(Step(run, native, HOLD))
        guarded.wait_for_lock(native)
        return guarded.sql.number_of(native)

    with guarded.client() as other:
        run(other, "BEGIN")
        run(other, HOLD)
        with (
            pytest.raises(GuardError, match="ended in the middle of a statement"),
            guard.transaction(HandmadeLease(5)) as native,
        ):
            number = wait_for_row(native)
        with pytest.raises(Exception, match=r"connection|closed|file|NoneType"):
            late[0].end()
        run(other, "ROLLBACK")
    with guard.transaction(HandmadeLease(6)) as again:
        assert guarded.sql.number_of(again) != number


@pytest.mark.parametrize("sql_server", ["postgres18"])
def test_g11_a_block_cannot_end_while_another_thread_is_about_to_send_a_statement(kept: Kept) -> None:
    """A lock of psycopg's is held from before the statement is sent until its answer is there."""
    late: list[Any] = []
    with pytest.raises(GuardError, match="ended in the middle of a statement"):
        kept.write(5, "mine", lambda native: (late.append(native), kept.end(native.lock.acquire())))
    assert late[0].closed
    assert kept.guarded.value() == "first"
    kept.write(5, "later")
