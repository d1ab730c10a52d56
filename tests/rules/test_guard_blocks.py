"""What a user's block may do with the connection of a guarded transaction, and what happens if it does more."""

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import GuardError, UnfencedWriteError
from tests.support.guards import (
    LOCK,
    RESOURCE,
    HandmadeLease,
    Opener,
    ask,
    fail,
    make_file,
    plain,
    url_of,
    value_in,
    write,
)

pytestmark = pytest.mark.reduced

Act = Callable[[sqlite3.Connection], Any]


@pytest.fixture
def guard(open_guard: Opener, file: Path) -> Any:
    """A guard of the file's table, enforced."""
    guard = open_guard(file)
    guard.protect("reports")
    return guard


def with_connection(connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("UPDATE reports SET value = 'again'")


def with_connection_failing(connection: sqlite3.Connection) -> None:
    with connection:
        fail(connection)


COMMITS: dict[str, Act] = {
    "commit()": lambda connection: connection.commit(),
    "COMMIT": lambda connection: connection.execute("COMMIT"),
    "end transaction": lambda connection: connection.execute("end transaction;"),
    "executescript()": lambda connection: connection.executescript("UPDATE reports SET value = 'script'"),
    "cursor.executescript()": lambda connection: connection.cursor().executescript("SELECT 1"),
    "with connection": with_connection,
    "isolation_level = None": lambda connection: setattr(connection, "isolation_level", None),
}
ROLLBACKS: dict[str, Act] = {
    "rollback()": lambda connection: connection.rollback(),
    "ROLLBACK": lambda connection: connection.execute("ROLLBACK"),
    "with connection, failing": with_connection_failing,
}
STRAY = COMMITS | ROLLBACKS
if sys.version_info >= (3, 12):
    STRAY["autocommit = True"] = lambda connection: setattr(connection, "autocommit", True)


@pytest.mark.parametrize("act", STRAY)
def test_a_block_that_ends_its_own_transaction_is_rolled_back_with_the_reason(guard: Any, file: Path, act: str) -> None:
    with pytest.raises(GuardError, match="the block tried to end its own guarded transaction"):
        write(guard, HandmadeLease(5), "stray", then=STRAY[act])
    assert value_in(file) == 0
    assert ask(file, "SELECT * FROM fencelock_seal") == []


@pytest.mark.parametrize("act", STRAY)
def test_a_block_that_hides_its_stray_end_is_undone_all_the_same(guard: Any, file: Path, act: str) -> None:
    def hidden(connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            STRAY[act](connection)
        connection.execute("UPDATE reports SET value = 'after'")

    with pytest.raises(GuardError, match="the block tried to end its own guarded transaction"):
        write(guard, HandmadeLease(5), "stray", then=hidden)
    assert value_in(file) == 0


@pytest.mark.parametrize("act", STRAY)
def test_the_next_block_works_after_a_stray_end(guard: Any, file: Path, act: str) -> None:
    lease = HandmadeLease(5)
    with pytest.raises(GuardError):
        write(guard, lease, "stray", then=STRAY[act])
    write(guard, lease, "next")
    assert value_in(file) == "next"


def test_a_stray_end_comes_with_sqlites_own_error_as_its_cause(guard: Any) -> None:
    with pytest.raises(GuardError) as caught:
        write(guard, HandmadeLease(5), then=STRAY["commit()"])
    assert isinstance(caught.value.__cause__, sqlite3.DatabaseError)


def test_the_bodys_own_exception_passes_also_after_a_stray_end(guard: Any, file: Path) -> None:
    def stray_and_fail(connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.Error):
            connection.commit()
        fail(connection)

    with pytest.raises(ZeroDivisionError):
        write(guard, HandmadeLease(5), then=stray_and_fail)
    assert value_in(file) == 0


def test_without_the_watch_the_file_itself_keeps_the_seal_from_being_committed(guard: Any, file: Path) -> None:
    """If the user replaces the authorizer, the unsatisfiable foreign key must still prevent the commit."""

    def unwatched(connection: sqlite3.Connection) -> None:
        connection.set_authorizer(None)
        with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY"):
            connection.commit()
        connection.rollback()
        with pytest.raises(sqlite3.IntegrityError, match="takes writes only with its newest"):
            connection.execute("UPDATE reports SET value = 'after'")

    with pytest.raises(GuardError, match="ended inside its block"):
        write(guard, HandmadeLease(5), then=unwatched)
    assert value_in(file) == 0
    assert ask(file, "SELECT * FROM fencelock_seal") == []


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_connection_whose_block_bypassed_the_authorizer_is_not_used_again(
    guard: Any, file: Path, is_failing: bool
) -> None:
    used = []

    def sabotage(connection: sqlite3.Connection) -> None:
        used.append(connection)
        connection.set_authorizer(None)
        connection.rollback()
        connection.execute("PRAGMA foreign_keys = OFF")
        if is_failing:
            fail(connection)

    with pytest.raises(ZeroDivisionError if is_failing else GuardError):
        write(guard, HandmadeLease(5), then=sabotage)
    with guard.transaction(HandmadeLease(5)) as connection:
        assert connection is not used[0]
        assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)


def test_a_block_that_closes_the_connection_is_refused_with_the_reason(guard: Any, file: Path) -> None:
    lease = HandmadeLease(5)
    with pytest.raises(GuardError, match="closed the connection"):
        write(guard, lease, then=lambda connection: connection.close())
    write(guard, lease, "next")
    assert value_in(file) == "next"


ROLLED_BACK: dict[str, Act] = {
    "OR ROLLBACK": lambda connection: connection.execute("INSERT OR ROLLBACK INTO reports VALUES (1, 2)"),
    "RAISE(ROLLBACK)": lambda connection: connection.execute("UPDATE doomed SET value = 1"),
}


@pytest.mark.parametrize("act", ROLLED_BACK)
def test_a_transaction_that_a_conflict_rolled_back_is_not_taken_for_a_commit(guard: Any, file: Path, act: str) -> None:
    with plain(file) as connection:
        connection.execute("CREATE TABLE doomed AS SELECT 0 AS value")
        connection.execute("CREATE TRIGGER doom UPDATE ON doomed BEGIN SELECT RAISE(ROLLBACK, 'doomed'); END")

    def hidden(connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.IntegrityError):
            ROLLED_BACK[act](connection)

    with pytest.raises(GuardError, match="ended inside its block"):
        write(guard, HandmadeLease(5), then=hidden)
    with pytest.raises(sqlite3.IntegrityError):
        write(guard, HandmadeLease(5), then=ROLLED_BACK[act])
    assert value_in(file) == 0


def test_after_a_rollback_inside_the_block_an_unprotected_table_takes_no_new_statement(
    open_guard: Opener, file: Path
) -> None:
    guard = open_guard(file)

    def go_on(connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.IntegrityError):
            connection.execute("INSERT OR ROLLBACK INTO reports VALUES (1, 2)")
        connection.execute("UPDATE reports SET value = 'alone'")

    with pytest.raises(GuardError, match="ended inside its block"):
        write(guard, HandmadeLease(5), then=go_on)
    assert value_in(file) == 0


def test_a_rollback_inside_the_block_is_no_definite_error(open_guard: Opener, file: Path) -> None:
    """A statement that was prepared before runs again, and SQLite commits it by itself in an unprotected table."""

    def go_on(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE reports SET value = 'repeated'")
        with suppress(sqlite3.IntegrityError):
            connection.execute("INSERT OR ROLLBACK INTO reports VALUES (1, 2)")
        with suppress(sqlite3.DatabaseError):
            connection.execute("UPDATE reports SET value = 'repeated'")

    with pytest.raises(GuardError, match="may have been committed") as caught:
        write(open_guard(file), HandmadeLease(5), then=go_on)
    assert not caught.value.definite


def test_a_new_transaction_begun_inside_the_block_can_write_nothing_protected(guard: Any, file: Path) -> None:
    def restart(connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.IntegrityError):
            connection.execute("INSERT OR ROLLBACK INTO reports VALUES (1, 2)")
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.IntegrityError, match="takes writes only with its newest"):
            connection.execute("UPDATE reports SET value = 'restarted'")

    with pytest.raises(GuardError, match="ended inside its block"):
        write(guard, HandmadeLease(5), then=restart)
    assert value_in(file) == 0


def test_savepoints_of_the_user_work(guard: Any, file: Path) -> None:
    def with_savepoints(connection: sqlite3.Connection) -> None:
        connection.execute("SAVEPOINT outer_one")
        connection.execute("UPDATE reports SET value = 'kept'")
        connection.execute("SAVEPOINT inner_one")
        connection.execute("UPDATE reports SET value = 'undone'")
        connection.execute("ROLLBACK TO inner_one")
        connection.execute("RELEASE outer_one")

    write(guard, HandmadeLease(5), then=with_savepoints)
    assert value_in(file) == "kept"


@pytest.fixture
def families(file: Path) -> None:
    """A parent and a child table, with an immediate and a deferred reference."""
    with plain(file) as connection:
        connection.execute("CREATE TABLE parent (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE now_child (parent REFERENCES parent)")
        connection.execute("CREATE TABLE later_child (parent REFERENCES parent DEFERRABLE INITIALLY DEFERRED)")


@pytest.mark.parametrize("table", ["now_child", "later_child"])
def test_the_users_own_foreign_key_violation_is_sqlites_own_error(
    guard: Any, file: Path, families: None, table: str
) -> None:
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY constraint failed"):
        write(guard, HandmadeLease(5), then=lambda connection: connection.execute(f"INSERT INTO {table} VALUES (7)"))
    assert value_in(file) == 0
    write(guard, HandmadeLease(5), "next")


def test_a_write_to_another_resources_table_is_an_unfenced_write(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "reports", "orders")
    open_guard(file, resource="orders", lock="orders-lock").protect("orders")
    guard = open_guard(file)
    with pytest.raises(UnfencedWriteError, match="table orders belongs to resource orders") as caught:
        write(
            guard, HandmadeLease(5), then=lambda connection: connection.execute("UPDATE orders SET value = 'unfenced'")
        )
    assert isinstance(caught.value.__cause__, sqlite3.IntegrityError)
    assert (value_in(file), value_in(file, "orders")) == (0, 0)


def test_a_block_is_entered_once(guard: Any) -> None:
    block = guard.transaction(HandmadeLease(5))
    with block:
        pass
    with pytest.raises(GuardError, match="entered once"), block:
        pass


def test_what_the_user_sets_on_the_connection_does_not_reach_the_next_block(guard: Any) -> None:
    lease = HandmadeLease(5)

    def change(connection: sqlite3.Connection) -> None:
        connection.row_factory = lambda _cursor, _row: "changed"
        connection.text_factory = bytes

    write(guard, lease, then=change)
    with guard.transaction(lease) as connection:
        assert connection.execute("SELECT 'text'").fetchone() == ("text",)


@pytest.mark.parametrize("statement", ["CREATE TEMP TABLE once (a)", "ATTACH ':memory:' AS once"])
def test_what_outlasts_a_transaction_does_not_reach_the_next_block(guard: Any, statement: str) -> None:
    for _ in range(2):
        write(guard, HandmadeLease(5), then=lambda connection: connection.execute(statement))


def test_a_pragma_does_not_reach_the_next_block(guard: Any) -> None:
    write(guard, HandmadeLease(5), then=lambda connection: connection.execute("PRAGMA recursive_triggers = ON"))
    with guard.transaction(HandmadeLease(5)) as connection:
        assert connection.execute("PRAGMA recursive_triggers").fetchone() == (0,)


def test_a_block_that_changes_nothing_hands_its_connection_on(open_guard: Opener, file: Path) -> None:
    guard, lease, used = open_guard(file), HandmadeLease(5), set()
    for _ in range(10):
        write(guard, lease, then=lambda connection: used.add(id(connection)))
    # An executor's thread that ended a task's block may still refer to its connection when the next block begins.
    assert len(used) == 1 if open_guard.kind == "sync" else len(used) < 5


def test_a_temporary_table_with_the_name_of_ours_is_not_used(guard: Any, file: Path) -> None:
    lease = HandmadeLease(5)
    for table in ("fencelock_seal", "fencelock_mark"):
        write(guard, lease, then=lambda connection, table=table: connection.execute(f"CREATE TEMP TABLE {table} (a)"))
    write(guard, lease, "next")
    assert value_in(file) == "next"


# --- a transaction that would wait for itself ----------------------------------------------------------------------
def test_a_second_block_on_the_same_file_in_one_thread_is_an_error_at_once(file: Path, tmp_path: Path) -> None:
    first = fencelock.guard(url_of(file), resource=RESOURCE, lock=LOCK)
    second = fencelock.guard(url_of(file), resource="orders", lock=LOCK)
    elsewhere = fencelock.guard(url_of(make_file(tmp_path / "other.db")), resource="other", lock=LOCK)
    lease = HandmadeLease(5)
    for guard in (first, second, elsewhere):
        guard.seal(lease)
    with first.transaction(lease):
        for attempt in (
            lambda: write(first, lease),
            lambda: write(second, lease),
            lambda: second.seal(lease),
            lambda: second.close(lease),
            lambda: second.protect("reports"),
            lambda: second.rebind("x", source=None, reason="x"),
        ):
            with pytest.raises(GuardError, match="would wait for itself"):
                attempt()
        assert second.mark().token == 5
        write(elsewhere, lease, "fine")
    write(second, lease, "after")
    assert (value_in(file), value_in(tmp_path / "other.db")) == ("after", "fine")


def test_a_caller_that_uses_the_sqlite3_shell_is_refused_with_the_remedy(guard: Any, file: Path) -> None:
    shell = _shell()
    done = subprocess.run(
        [shell, file, "UPDATE reports SET value = 'shell'"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "fencelock: table reports belongs to resource reports" in done.stderr
    assert "guard.transaction(lease)" in done.stderr
    assert value_in(file) == 0


def _shell() -> str:
    import shutil

    shell = shutil.which("sqlite3")
    if shell is None:
        pytest.skip("the sqlite3 shell is not installed: apt-get install sqlite3")
    return shell
