"""G16 on a SQLite file: a protected table that was rebuilt without its triggers stops guarded blocks."""

import sqlite3
from pathlib import Path

import pytest

from fencelock import GuardError, StaleTokenError, UnprotectedTableError
from fencelock._api.guard import inspect_resources
from fencelock.stores.registry import guard_store
from tests.support.guards import HandmadeLease, Opener, ask, make_file, plain, url_of, value_in, write

pytestmark = pytest.mark.reduced

CREATE = "CREATE TABLE rebuilt (id INTEGER PRIMARY KEY, value)"
COPY = "INSERT INTO rebuilt SELECT id, value FROM reports"
REBUILDS = {
    "dropped": (CREATE, COPY, "DROP TABLE reports", "ALTER TABLE rebuilt RENAME TO reports"),
    "kept": (CREATE, COPY, "ALTER TABLE reports RENAME TO old", "ALTER TABLE rebuilt RENAME TO reports"),
    "written otherwise": (CREATE, COPY, "DROP TABLE reports", "ALTER TABLE rebuilt RENAME TO Reports"),
    "without one trigger": ("DROP TRIGGER fencelock_enforce_update_1",),
}


def rebuild(file: Path, how: str = "dropped") -> None:
    """Rebuild the table as a tool does that knows nothing of triggers."""
    with plain(file) as connection:
        for statement in REBUILDS[how]:
            connection.execute(statement)


@pytest.mark.parametrize("how", REBUILDS)
def test_g16_a_rebuilt_table_stops_guarded_blocks_until_it_is_protected(
    open_guard: Opener, file: Path, how: str
) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.protect("reports")
    write(guard, lease, "mine")
    rebuild(file, how)
    for one, holder in ((guard, lease), (guard, HandmadeLease(6)), (open_guard(file), HandmadeLease(6))):
        with pytest.raises(UnprotectedTableError, match=r"'[rR]eports' .* exists.*fencelock protect"):
            write(one, holder, "unfenced")
    assert value_in(file) == "mine"
    guard.protect("reports")
    write(guard, HandmadeLease(6), "again")
    assert value_in(file) == "again"


def test_g16_a_table_dropped_on_purpose_stops_nothing(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    with plain(file) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    guard.protect("reports", "orders")
    with plain(file) as connection:
        connection.execute("DROP TABLE orders")
    write(guard, HandmadeLease(5), "mine")
    assert value_in(file) == "mine"


def test_g16_a_renamed_table_stops_nothing(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    with plain(file) as connection:
        connection.execute("ALTER TABLE reports RENAME TO moved")
    write(guard, HandmadeLease(5), "mine", table="moved")
    with plain(file) as connection:
        connection.execute("CREATE TABLE reports (id INTEGER PRIMARY KEY)")
    guard.protect("moved")
    write(guard, HandmadeLease(5), "still mine", table="moved")
    assert value_in(file, "moved") == "still mine"


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("how", ["dropped", "kept"])
def test_a_renamed_table_can_be_rebuilt_and_is_known_by_its_new_name(
    open_guard: Opener, file: Path, how: str, mode: str
) -> None:
    guard = open_guard(file)
    guard.protect("reports", mode=mode)
    with plain(file) as own:
        own.execute("ALTER TABLE reports RENAME TO moved")
        own.execute("BEGIN IMMEDIATE")
        with guard.rebuilding("moved", connection=own):
            for statement in REBUILDS[how]:
                own.execute(statement.replace("reports", "moved"))
        own.execute("COMMIT")
    (found,) = (one for one in inspect_resources(url_of(file)).protections if one.table == "moved")
    assert found.mode == mode
    assert ("moved", mode) in ask(file, "SELECT name, mode FROM fencelock_protected")
    assert ("reports", mode) not in ask(file, "SELECT name, mode FROM fencelock_protected")
    write(guard, HandmadeLease(5), "mine", table="moved")
    assert value_in(file, "moved") == "mine"


def test_a_rebuilt_table_is_enforced_although_a_dropped_one_of_its_name_was_observed(
    open_guard: Opener, file: Path
) -> None:
    guard = open_guard(file)
    with plain(file) as own:
        own.execute("CREATE TABLE moved (id INTEGER PRIMARY KEY)")
        guard.protect("moved", mode="observe")
        guard.protect("reports")
        own.execute("DROP TABLE moved")
        own.execute("ALTER TABLE reports RENAME TO moved")
        own.execute("BEGIN IMMEDIATE")
        with guard.rebuilding("moved", connection=own):
            for statement in REBUILDS["dropped"]:
                own.execute(statement.replace("reports", "moved"))
        own.execute("COMMIT")
    assert ask(file, "SELECT name, mode FROM fencelock_protected") == [("moved", "enforce")]


@pytest.mark.parametrize("protected", ["reports", "moved"])
def test_g16_a_new_table_under_the_old_name_stops_blocks_until_it_is_decided_on(
    open_guard: Opener, file: Path, protected: str
) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    with plain(file) as own:
        own.execute("ALTER TABLE reports RENAME TO moved")
        own.execute("CREATE TABLE reports (id INTEGER PRIMARY KEY)")
        own.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        own.execute("BEGIN IMMEDIATE")
        guard.protect("orders", connection=own)
        own.execute("COMMIT")
    what = r"'reports' of .* is 'moved' now.*--table reports`, or if 'reports' needs no .*--table moved"
    with pytest.raises(UnprotectedTableError, match=what):
        write(guard, HandmadeLease(5), table="moved")
    findings = guard_store(url_of(file)).examine()
    assert [one.code for one in findings if "'reports' of" in one.message] == ["lost-protection"]
    guard.protect(protected)
    write(guard, HandmadeLease(5), "mine", table="moved")
    assert value_in(file, "moved") == "mine"


def test_a_table_that_was_never_protected_cannot_be_rebuilt_as_one(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    with plain(file) as own:
        own.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        own.execute("BEGIN IMMEDIATE")
        with pytest.raises(GuardError, match="is not protected"), guard.rebuilding("orders", connection=own):
            pass


def test_g16_a_rebuilt_table_that_was_only_observed_stops_nothing(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports", mode="observe")
    rebuild(file)
    write(guard, HandmadeLease(5), "mine")
    assert value_in(file) == "mine"


def test_g16_another_resources_rebuilt_table_stops_nothing(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "reports", "orders")
    open_guard(file).protect("reports")
    orders = open_guard(file, resource="orders")
    orders.protect("orders")
    rebuild(file)
    write(orders, HandmadeLease(5), "mine", table="orders")
    with pytest.raises(UnprotectedTableError):
        write(open_guard(file, resources=["orders", "reports"]), HandmadeLease(6))


def test_g16_an_unprotected_table_stops_nothing(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    rebuild(file)
    guard.unprotect("reports", reason="no longer ours")
    write(guard, HandmadeLease(5), "mine")
    assert value_in(file) == "mine"


def test_g16_a_block_may_rebuild_the_table_itself_and_the_next_one_is_stopped(open_guard: Opener, file: Path) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.protect("reports")
    with guard.transaction(lease) as connection:
        for statement in REBUILDS["dropped"]:
            connection.execute(statement)
    with pytest.raises(UnprotectedTableError):
        write(guard, lease)


def test_g16_a_callers_transaction_is_stopped_and_presents_nothing(open_guard: Opener, file: Path) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.protect("reports")
    guard.seal(lease)
    rebuild(file)
    with plain(file) as own:
        own.execute("PRAGMA foreign_keys = ON")
        own.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnprotectedTableError), guard.check(lease, connection=own):
            pass
        own.execute("COMMIT")


def test_g16_a_client_in_any_language_is_stopped_too(open_guard: Opener, file: Path) -> None:
    guard, lease = open_guard(file), HandmadeLease(5)
    guard.protect("reports")
    guard.seal(lease)
    present = "INSERT INTO fencelock_seal (resource, token, digest) VALUES ('reports', 5, ?)"
    with plain(file) as own:
        own.execute("PRAGMA foreign_keys = ON")
        own.execute("BEGIN IMMEDIATE")
        own.execute(present, (lease.sequencer.digest,))
        own.execute("ROLLBACK")
    rebuild(file)
    with plain(file) as own:
        own.execute("PRAGMA foreign_keys = ON")
        own.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.IntegrityError, match="was rebuilt, and its rows meet no trigger"):
            own.execute(present, (lease.sequencer.digest,))


def test_g16_a_stale_lease_is_stale_first(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    guard.seal(HandmadeLease(6))
    rebuild(file)
    with pytest.raises(StaleTokenError):
        write(guard, HandmadeLease(5))
