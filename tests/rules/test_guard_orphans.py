"""Tables of a SQLite file whose triggers outlive fencelock's own tables, which a migration has dropped."""

import sqlite3
from pathlib import Path

import pytest

from fencelock import GuardError, SchemaError, StaleTokenError
from fencelock.stores.registry import guard_store
from tests.support.guards import HandmadeLease, HandmadeSource, Opener, make_file, plain, url_of, value_in, write


def drop_tables(file: Path, *only: str) -> None:
    """Drop fencelock's tables as `alembic revision --autogenerate` does."""
    with plain(file) as connection:
        found = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'fencelock%'"
        for (table,) in connection.execute(found).fetchall():
            if not only or table.removeprefix("fencelock_") in only:
                connection.execute(f"DROP TABLE {table}")


def found(file: Path) -> list[tuple[str, str | None]]:
    """Return what doctor finds."""
    return [(one.code, one.resource) for one in guard_store(url_of(file)).examine()]


def test_protect_repairs_dropped_tables_and_raises_the_mark(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    write(guard, HandmadeLease(5), "mine")
    drop_tables(file)
    assert found(file) == [("lost-tables", None), ("orphaned-trigger", "reports")]
    for _ in range(2):
        with pytest.raises(GuardError, match=r"without a record.*source=…"):
            guard.protect("reports")
    guard.protect("reports", source=HandmadeSource(7))
    assert guard.mark().token == 7
    assert found(file) == []
    with plain(file) as connection, pytest.raises(sqlite3.IntegrityError, match="takes writes only"):
        connection.execute("UPDATE reports SET value = 'unfenced'")
    write(guard, HandmadeLease(8), "again")
    assert value_in(file) == "again"


@pytest.mark.parametrize("tables", [("reports",), ()])
def test_unprotect_removes_what_has_no_record(open_guard: Opener, file: Path, tables: tuple[str, ...]) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    drop_tables(file)
    guard.unprotect(*tables, reason="fencelock goes")
    with plain(file) as connection:
        connection.execute("UPDATE reports SET value = 'free'")
    assert found(file) == []


@pytest.mark.parametrize("resource", ["reports", "it's", "ünï"])
def test_a_lost_record_is_an_orphan_and_the_mark_is_kept(open_guard: Opener, file: Path, resource: str) -> None:
    guard = open_guard(file, resource=resource)
    guard.protect("reports")
    guard.seal(HandmadeLease(5))
    with plain(file) as connection:
        connection.execute("DELETE FROM fencelock_protected")
    assert ("orphaned-trigger", resource) in found(file)
    guard.protect("reports", source=HandmadeSource(5))
    assert guard.mark().token == 5
    assert found(file) == []


@pytest.mark.parametrize("lost", ["mark", "protected", "guard", "audit", "effect"])
def test_each_lost_table_is_named_and_repaired(open_guard: Opener, file: Path, lost: str) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    drop_tables(file, lost)
    assert ("lost-tables", None) in found(file)
    guard.protect("reports", source=HandmadeSource(7))
    assert found(file) == []
    write(guard, HandmadeLease(8), "mine")
    assert value_in(file) == "mine"
    if lost == "mark":
        assert guard.mark().token >= 7


def test_another_table_may_be_protected_before_the_orphan(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "reports", "orders")
    guard, other = open_guard(file), open_guard(file, resource="orders")
    guard.protect("reports")
    drop_tables(file)
    other.protect("orders")
    assert found(file) == [("orphaned-trigger", "reports")]
    with pytest.raises(GuardError, match="belongs to resource 'reports' already"):
        other.protect("reports")
    guard.protect("reports", source=HandmadeSource(7))
    assert found(file) == []
    write(other, HandmadeLease(5), "mine", table="orders")


def test_unprotect_forgets_a_table_that_was_dropped(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    with plain(file) as connection:
        connection.execute("DROP TABLE reports")
    assert found(file) == [("lost-protection", "reports")]
    guard.unprotect("reports", reason="it is gone")
    assert ("lost-protection", "reports") not in found(file)


@pytest.mark.parametrize("dropped", [(), ("guard", "mark")], ids=["all", "guard and mark"])
def test_a_lost_mark_is_not_made_anew_by_the_first_lease_that_comes(
    open_guard: Opener, file: Path, dropped: tuple[str, ...]
) -> None:
    """That may be a stale one: in the new tables nothing tells."""
    guard = open_guard(file)
    guard.protect("reports")
    write(guard, HandmadeLease(5), "mine")
    drop_tables(file, *dropped)
    message = "lost the mark of resource 'reports': table 'reports' .*fencelock protect"
    for token in (4, 6):
        with pytest.raises(SchemaError, match=message):
            write(open_guard(file), HandmadeLease(token), "stale")
    assert value_in(file) == "mine"
    guard.protect("reports", source=HandmadeSource(5))
    with pytest.raises(StaleTokenError):
        open_guard(file).seal(HandmadeLease(4))
    write(guard, HandmadeLease(6), "next")
    assert value_in(file) == "next"


def test_another_resources_lost_tables_keep_nobody_from_the_first_seal(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "reports", "orders")
    open_guard(file).protect("reports")
    drop_tables(file)
    write(open_guard(file, resource="orders"), HandmadeLease(1), "mine", table="orders")
    with pytest.raises(SchemaError, match="lost the mark of resource 'reports'"):
        open_guard(file).seal(HandmadeLease(9))
