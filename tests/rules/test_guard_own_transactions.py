"""`guard.check` and `guard.seal(…, connection=…)` inside the caller's own sqlite3 transaction."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencelock import (
    GuardError,
    LeaseReleasedError,
    SealLostError,
    SourceUnavailableError,
    StaleTokenError,
    UnfencedWriteError,
)
from tests.support.guards import (
    HandmadeLease,
    Opener,
    ask,
    fail,
    make_file,
    plain,
    value_in,
    write,
)


@pytest.fixture
def own(file: Path) -> Iterator[sqlite3.Connection]:
    """The caller's own connection, set up for guarded writes."""
    with plain(file) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        yield connection


@pytest.fixture(params=["check", "seal"])
def verb(request: pytest.FixtureRequest) -> Any:
    """Both ways to have a lease checked inside one's own transaction."""
    return lambda guard, lease, connection: getattr(guard, request.param)(lease, connection=connection)


def test_a_sealed_lease_passes_and_holds_the_mark_until_the_commit(
    open_guard: Opener, file: Path, own: sqlite3.Connection, verb: Any
) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    own.execute("BEGIN")
    verb(guard, lease, own)
    own.execute("UPDATE reports SET value = 'mine'")
    with plain(file, timeout=0) as other, pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    own.execute("COMMIT")
    assert value_in(file) == "mine"


def test_a_connection_that_makes_rows_of_its_own_kind_passes(
    open_guard: Opener, file: Path, own: sqlite3.Connection, verb: Any
) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    own.row_factory = lambda cursor, row: {"only": row[0]}
    own.text_factory = bytes
    own.execute("BEGIN")
    verb(guard, lease, own)
    assert own.execute("SELECT value FROM reports").fetchone() == {"only": 0}
    assert own.execute("SELECT 'text'").fetchone() == {"only": b"text"}
    own.execute("ROLLBACK")


def test_a_stale_lease_is_refused_and_the_transaction_stays_its_owners(
    open_guard: Opener, file: Path, own: sqlite3.Connection, verb: Any
) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(6))
    own.execute("BEGIN IMMEDIATE")
    with pytest.raises(StaleTokenError):
        verb(guard, HandmadeLease(5), own)
    assert own.in_transaction
    own.execute("ROLLBACK")


def test_a_connection_in_no_transaction_is_refused(
    open_guard: Opener, file: Path, own: sqlite3.Connection, verb: Any
) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    with pytest.raises(GuardError, match="not in a transaction"):
        verb(guard, lease, own)


def test_only_sqlite3_connections_are_accepted(open_guard: Opener, file: Path, verb: Any) -> None:
    with pytest.raises(GuardError, match=r"must be the sqlite3\.Connection of your own transaction, not str"):
        verb(open_guard(file), HandmadeLease(5), "connection")


def test_a_connection_to_another_file_is_refused(open_guard: Opener, file: Path, tmp_path: Path, verb: Any) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    for other in (make_file(tmp_path / "other.db"), Path(":memory:")):
        with plain(other) as connection:
            connection.execute("BEGIN IMMEDIATE")
            with pytest.raises(GuardError, match="this guard is for"):
                verb(guard, lease, connection)


def test_a_lease_that_has_not_sealed_must_seal_first(
    open_guard: Opener, file: Path, own: sqlite3.Connection, verb: Any
) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    own.execute("BEGIN IMMEDIATE")
    with pytest.raises(GuardError, match=r"call guard\.seal\(lease\) before you begin"):
        verb(guard, lease, own)
    own.execute("ROLLBACK")
    assert guard.mark().token == 0


def test_a_transaction_with_a_snapshot_older_than_the_seal_is_refused(
    open_guard: Opener, file: Path, own: sqlite3.Connection, verb: Any
) -> None:
    guard, old, lease = open_guard(file), HandmadeLease(4), HandmadeLease(5)
    guard.seal(old)
    own.execute("BEGIN")
    own.execute("SELECT * FROM reports").fetchall()
    guard.seal(lease)
    for one in (old, lease):
        with pytest.raises(GuardError, match="begin it again"):
            verb(guard, one, own)


def test_a_file_that_went_back_is_a_lost_seal(
    open_guard: Opener, file: Path, own: sqlite3.Connection, verb: Any
) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    guard.lower(3, reason="as a restore does")
    own.execute("BEGIN IMMEDIATE")
    with pytest.raises(SealLostError):
        verb(guard, lease, own)


def test_a_lease_that_is_over_is_refused(open_guard: Opener, file: Path, own: sqlite3.Connection, verb: Any) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    lease.problem = LeaseReleasedError("released")
    own.execute("BEGIN IMMEDIATE")
    with pytest.raises(LeaseReleasedError):
        verb(guard, lease, own)


def test_checking_counts_as_reading(
    open_guard: Opener, file: Path, own: sqlite3.Connection, tmp_path: Path, verb: Any
) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    own.execute("BEGIN IMMEDIATE")
    verb(guard, lease, own)
    late = open_guard(make_file(tmp_path / "late.db"), resource="late")
    with pytest.raises(GuardError, match="independent=True"):
        late.seal(lease)


def test_a_file_locked_by_another_is_unavailable(
    open_guard: Opener, file: Path, own: sqlite3.Connection, verb: Any
) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.seal(lease)
    with plain(file) as other:
        other.execute("BEGIN IMMEDIATE")
        own.execute("PRAGMA busy_timeout = 0")
        own.execute("BEGIN")
        with pytest.raises(SourceUnavailableError, match="locked"):
            verb(guard, lease, own)


# --- writing to protected tables ----------------------------------------------------------------------------------
@pytest.fixture
def guard(open_guard: Opener, file: Path) -> Any:
    guard = open_guard(file)
    guard.protect("reports")
    return guard


def test_inside_the_block_protected_tables_take_writes(guard: Any, file: Path, own: sqlite3.Connection) -> None:
    lease = HandmadeLease(5)
    guard.seal(lease)
    own.execute("BEGIN IMMEDIATE")
    with guard.check(lease, connection=own):
        own.execute("UPDATE reports SET value = 'mine'")
        assert lease.open_transactions == 1
    own.execute("COMMIT")
    assert lease.open_transactions == 0
    assert value_in(file) == "mine"
    assert ask(file, "SELECT * FROM fencelock_seal") == []


def test_outside_of_the_block_they_do_not(guard: Any, own: sqlite3.Connection) -> None:
    lease = HandmadeLease(5)
    guard.seal(lease)
    own.execute("BEGIN IMMEDIATE")
    with guard.check(lease, connection=own):
        pass
    with pytest.raises(sqlite3.IntegrityError, match="takes writes only with its newest"):
        own.execute("UPDATE reports SET value = 'mine'")


def write_and(guard: Any, lease: Any, own: sqlite3.Connection, then: Any) -> None:
    own.execute("BEGIN IMMEDIATE")
    with guard.check(lease, connection=own):
        own.execute("UPDATE reports SET value = 'mine'")
        then(own)


def test_a_commit_inside_the_block_publishes_nothing(guard: Any, file: Path, own: sqlite3.Connection) -> None:
    lease = HandmadeLease(5)
    guard.seal(lease)
    with pytest.raises(sqlite3.IntegrityError, match="FOREIGN KEY") as caught:
        write_and(guard, lease, own, lambda own: own.execute("COMMIT"))
    assert any("leave the block of guard.check() first" in note for note in caught.value.__notes__)
    own.execute("ROLLBACK")
    assert value_in(file) == 0


def test_a_rollback_inside_the_block_is_reported(guard: Any, file: Path, own: sqlite3.Connection) -> None:
    lease = HandmadeLease(5)
    guard.seal(lease)
    with pytest.raises(GuardError, match="ended inside the block") as caught:
        write_and(guard, lease, own, lambda own: own.execute("ROLLBACK"))
    assert not caught.value.definite, "SQLite commits what is written after that to other tables"
    assert value_in(file) == 0


def test_an_exception_out_of_the_block_passes_and_its_owner_may_still_commit(
    guard: Any, file: Path, own: sqlite3.Connection
) -> None:
    lease = HandmadeLease(5)
    guard.seal(lease)
    with pytest.raises(ZeroDivisionError):
        write_and(guard, lease, own, fail)
    own.execute("COMMIT")
    assert value_in(file) == "mine"


def test_a_write_to_another_resources_table_is_an_unfenced_write(
    open_guard: Opener, guard: Any, file: Path, own: sqlite3.Connection
) -> None:
    own.execute("CREATE TABLE orders (id)")
    open_guard(file, resource="orders").protect("orders")
    lease = HandmadeLease(5)
    guard.seal(lease)
    with pytest.raises(UnfencedWriteError, match="table orders"):
        write_and(guard, lease, own, lambda own: own.execute("INSERT INTO orders VALUES (1)"))


def test_without_foreign_keys_the_block_is_refused(guard: Any, own: sqlite3.Connection) -> None:
    lease = HandmadeLease(5)
    guard.seal(lease)
    own.execute("PRAGMA foreign_keys = OFF")
    with pytest.raises(GuardError, match="foreign keys are off"):
        write_and(guard, lease, own, lambda own: None)
    assert lease.open_transactions == 0


def test_a_connection_with_factories_of_its_own_works(guard: Any, file: Path, own: sqlite3.Connection) -> None:
    own.row_factory = sqlite3.Row
    own.text_factory = bytes
    lease = HandmadeLease(5)
    guard.seal(lease)
    write_and(guard, lease, own, lambda own: None)
    own.execute("COMMIT")
    assert own.text_factory is bytes
    assert value_in(file) == "mine"


def test_observe_mode_lets_a_stale_lease_write_in_its_own_transaction(
    open_guard: Opener, file: Path, own: sqlite3.Connection
) -> None:
    guard, stale = open_guard(file), HandmadeLease(5)
    guard.protect("reports", mode="observe")
    write(guard, HandmadeLease(6), "newer")
    write_and(guard, stale, own, lambda own: None)
    own.execute("COMMIT")
    assert value_in(file) == "mine"
    rows = ask(file, "SELECT table_name, kind FROM fencelock_observed ORDER BY 1, 2")
    assert rows == [("", "stale"), ("reports", "update")]


def raise_an_error_of_its_own(own: sqlite3.Connection) -> None:
    raise KeyError("no error of SQLite's")


def break_another_constraint(own: sqlite3.Connection) -> None:
    own.execute("CREATE TABLE other (id INTEGER PRIMARY KEY, value UNIQUE)")
    own.execute("INSERT INTO other VALUES (1, 'a'), (2, 'a')")


@pytest.mark.parametrize("then", [raise_an_error_of_its_own, break_another_constraint])
def test_an_error_that_no_commit_has_caused_gets_no_advice(guard: Any, own: sqlite3.Connection, then: Any) -> None:
    lease = HandmadeLease(5)
    guard.seal(lease)
    with pytest.raises((KeyError, sqlite3.IntegrityError)) as caught:
        write_and(guard, lease, own, then)
    assert not getattr(caught.value, "__notes__", [])
