"""Protecting tables of a SQLite file inside the caller's own transaction, as a migration does."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fencelock import GuardError
from fencelock._api.guard import inspect_resources
from tests.support.guards import HandmadeLease, HandmadeSource, Opener, ask, fail, plain, url_of, value_in, write

NEW = "CREATE TABLE orders (id INTEGER PRIMARY KEY, value)"
REBUILD = (
    "CREATE TABLE rebuilt (id INTEGER PRIMARY KEY, value)",
    "INSERT INTO rebuilt SELECT id, value FROM reports",
    "DROP TABLE reports",
    "ALTER TABLE rebuilt RENAME TO reports",
)


@pytest.fixture(params=["explicit", "implicit"])
def own(request: pytest.FixtureRequest, file: Path) -> Iterator[sqlite3.Connection]:
    """Yield the migration's own connection: in a transaction that it began, or of a driver that begins by itself."""
    if request.param == "explicit":
        with plain(file) as connection:
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("BEGIN IMMEDIATE")
            yield connection
        return
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA foreign_keys = ON")
    yield connection
    connection.close()


def modes(file: Path) -> dict[str, str]:
    """Return the protected tables and their modes."""
    return {one.table: one.mode for one in inspect_resources(url_of(file)).protections}


def send(own: sqlite3.Connection, *statements: str) -> None:
    """Run statements."""
    for statement in statements:
        own.execute(statement)


def test_a_table_is_protected_in_the_transaction_that_creates_it(
    open_guard: Opener, file: Path, own: sqlite3.Connection
) -> None:
    send(own, NEW)
    open_guard(file).protect("orders", connection=own)
    assert modes(file) == {}, "not committed yet"
    own.commit()
    assert modes(file) == {"orders": "enforce"}


def test_what_a_migration_protects_is_undone_with_it(open_guard: Opener, file: Path, own: sqlite3.Connection) -> None:
    open_guard(file).protect("reports", connection=own)
    own.rollback()
    assert modes(file) == {}
    assert ask(file, "SELECT name FROM sqlite_schema WHERE name LIKE 'fencelock%'") == []


def test_unprotecting_waits_for_the_migrations_commit(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    with plain(file) as own:
        own.execute("BEGIN")
        guard.unprotect("reports", reason="it goes", connection=own)
        assert modes(file) == {"reports": "enforce"}
        own.execute("COMMIT")
    assert modes(file) == {}


def test_enforcing_inside_a_migration_raises_the_mark_with_it(
    open_guard: Opener, file: Path, own: sqlite3.Connection
) -> None:
    guard = open_guard(file)
    guard.protect("reports", mode="observe", connection=own)
    with pytest.raises(GuardError, match="was only observed"):
        guard.protect("reports", connection=own)
    own.commit()
    assert modes(file) == {"reports": "observe"}, "all or nothing"
    own.execute("BEGIN")
    guard.protect("reports", source=HandmadeSource(7), connection=own)
    own.commit()
    assert guard.mark().token == 7


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_rebuilt_table_is_protected_again_in_its_mode(
    open_guard: Opener, file: Path, own: sqlite3.Connection, mode: str
) -> None:
    guard = open_guard(file)
    guard.protect("reports", mode=mode, connection=own)
    own.commit()
    with plain(file) as migration:
        migration.execute("BEGIN")
        with guard.rebuilding("reports", connection=migration):
            with plain(file, timeout=0) as other, pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            send(migration, *REBUILD)
        migration.execute("COMMIT")
    assert modes(file) == {"reports": mode}
    write(guard, HandmadeLease(5))
    assert value_in(file) == 1


def test_a_rebuild_by_a_driver_that_begins_by_itself_is_one_transaction(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    own = sqlite3.connect(file)
    with guard.rebuilding("reports", connection=own):
        send(own, *REBUILD)
    own.rollback()
    own.close()
    assert modes(file) == {"reports": "enforce"}
    assert value_in(file) == 0


def test_a_rebuild_that_fails_leaves_the_transaction_to_its_owner(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    with plain(file) as own:
        own.execute("BEGIN")
        with pytest.raises(ZeroDivisionError), guard.rebuilding("reports", connection=own):
            fail(send(own, *REBUILD))
        assert own.in_transaction
        own.execute("ROLLBACK")
    assert modes(file) == {"reports": "enforce"}


def test_a_rebuilt_table_that_is_not_protected_or_gone_is_an_error(
    open_guard: Opener, file: Path, own: sqlite3.Connection
) -> None:
    guard = open_guard(file)
    guard.protect("reports", connection=own)
    send(own, NEW)
    with (
        pytest.raises(GuardError, match="'orders' is not protected by resource 'reports'"),
        guard.rebuilding("orders", connection=own),
    ):
        pass
    with (
        pytest.raises(GuardError, match="there is no table 'reports'"),
        guard.rebuilding("reports", connection=own),
    ):
        send(own, "DROP TABLE reports")


def test_a_migration_rebuilds_and_writes_in_one_transaction(open_guard: Opener, file: Path) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.protect("reports")
    guard.seal(lease)
    with plain(file) as own:
        own.execute("PRAGMA foreign_keys = ON")
        own.execute("BEGIN IMMEDIATE")
        with guard.rebuilding("reports", connection=own):
            send(own, *REBUILD)
        with guard.check(lease, connection=own):
            own.execute("UPDATE reports SET value = 'migrated'")
        own.execute("COMMIT")
    assert value_in(file) == "migrated"
    assert modes(file) == {"reports": "enforce"}


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "protect": lambda guard, own: guard.protect("reports", connection=own),
    "unprotect": lambda guard, own: guard.unprotect("reports", reason="a test", connection=own),
    "rebuilding": lambda guard, own: guard.rebuilding("reports", connection=own).__enter__(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_connection_in_no_transaction_is_refused(open_guard: Opener, file: Path, call: str) -> None:
    with plain(file) as own, pytest.raises(GuardError, match="not in a transaction"):
        CALLS[call](open_guard(file), own)


@pytest.mark.parametrize("call", CALLS)
def test_a_connection_to_another_file_is_refused(open_guard: Opener, file: Path, tmp_path: Path, call: str) -> None:
    with plain(tmp_path / "other.db") as own:
        own.execute("BEGIN")
        with pytest.raises(GuardError, match="this guard is for"):
            CALLS[call](open_guard(file), own)
