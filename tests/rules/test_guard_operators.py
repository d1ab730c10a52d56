"""What operators do with tables at a guard on a SQLite file: protect, unprotect, inspect."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fencelock import ConfigError, Finding, GuardError, WrongLockError, inspect_resources
from fencelock._api.guard import guards_of
from fencelock.stores.registry import guard_store
from tests.support.guards import (
    LOCK,
    RESOURCE,
    HandmadeLease,
    HandmadeSource,
    Opener,
    ask,
    make_file,
    plain,
    url_of,
    write,
)


def protections(file: Path) -> list[tuple[str, str, str]]:
    return [(one.table, one.resource, one.mode) for one in inspect_resources(url_of(file)).protections]


def audited(file: Path) -> list[tuple[Any, ...]]:
    return ask(file, "SELECT action, resource, from_token, to_token, reason FROM fencelock_audit ORDER BY id")


def is_refused(file: Path, table: str) -> bool:
    with plain(file) as connection:
        try:
            connection.execute(f"DELETE FROM {table}")
        except sqlite3.IntegrityError as error:
            return "takes writes only with its newest" in str(error)
    return False


# --- protect ---
@pytest.mark.parametrize("name", ["reports", "main.reports", "REPORTS", "Main.Reports"])
def test_a_table_is_found_by_any_spelling_and_kept_in_the_schemas_own(
    open_guard: Opener, file: Path, name: str
) -> None:
    open_guard(file).protect(name)
    assert protections(file) == [("reports", RESOURCE, "enforce")]
    assert is_refused(file, "reports")


ODD_NAMES = ['we"ird [name]', "it's", "a.b", "main.x", "{braces}", "two words", "ünï", "select", "x;--", "-- name: y"]


@pytest.mark.parametrize("name", ODD_NAMES)
@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_table_of_any_name_can_be_protected(open_guard: Opener, tmp_path: Path, name: str, mode: str) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    file = make_file(tmp_path / "app.db", quoted)
    guard = open_guard(file, resource=name, lock=name)
    guard.protect(name, mode=mode)
    assert protections(file) == [(name, name, mode)]
    with plain(file) as connection:
        if mode == "enforce":
            with pytest.raises(sqlite3.IntegrityError, match="fencelock: table"):
                connection.execute(f"UPDATE {quoted} SET value = 1")
        else:
            connection.execute(f"UPDATE {quoted} SET value = 1")
            assert [one.table for one in inspect_resources(url_of(file)).observations] == [name]
    write(guard, HandmadeLease(5, lock=name), "held", table=quoted)
    guard.unprotect(name, reason="test")
    assert protections(file) == []


def test_protecting_again_changes_nothing(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    before = ask(file, "SELECT * FROM sqlite_schema"), ask(file, "SELECT * FROM fencelock_protected")
    guard.protect("reports", "main.reports")
    assert (ask(file, "SELECT * FROM sqlite_schema"), ask(file, "SELECT * FROM fencelock_protected")) == before
    assert audited(file) == []


@pytest.fixture
def odd_file(file: Path) -> Path:
    with plain(file) as connection:
        connection.execute("CREATE VIEW shown AS SELECT * FROM reports")
        connection.execute("CREATE VIRTUAL TABLE words USING fts5 (word)")
    return file


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuch", "there is no table 'nosuch'"),
        ("main.nosuch", "there is no table 'main.nosuch'"),
        ("temp.reports", "only tables of the file itself"),
        ("other.reports", "only tables of the file itself"),
        ("shown", "it is a view"),
        ("words", "virtual table, which can have no triggers"),
        ("words_content", "part of a virtual table"),
        ("fencelock_mark", "are reserved"),
        ("sqlite_schema", "are reserved"),
    ],
)
def test_what_cannot_be_protected_is_refused_with_the_reason(
    open_guard: Opener, odd_file: Path, name: str, message: str
) -> None:
    before = ask(odd_file, "SELECT * FROM sqlite_schema")
    with pytest.raises(GuardError, match=message):
        open_guard(odd_file).protect("reports", name)
    assert ask(odd_file, "SELECT * FROM sqlite_schema") == before


def test_a_table_belongs_to_one_resource(open_guard: Opener, file: Path) -> None:
    open_guard(file).protect("reports")
    with pytest.raises(GuardError, match="belongs to resource 'reports' already"):
        open_guard(file, resource="orders").protect("reports")
    with pytest.raises(GuardError, match="not protected by resource 'orders'"):
        open_guard(file, resource="orders").unprotect("reports", reason="x")
    assert protections(file) == [("reports", RESOURCE, "enforce")]


def test_protect_binds_the_resource_to_its_lock(open_guard: Opener, file: Path) -> None:
    open_guard(file).protect("reports")
    with pytest.raises(WrongLockError, match="bound to lock 'nightly-report'"):
        open_guard(file, lock="another").protect("reports")


@pytest.mark.parametrize("arguments", [{"mode": "off"}, {"mode": None}])
def test_an_unknown_mode_is_a_config_error(open_guard: Opener, file: Path, arguments: Any) -> None:
    with pytest.raises(ConfigError, match="mode is 'enforce' or 'observe'"):
        open_guard(file).protect("reports", **arguments)


@pytest.mark.parametrize("tables", [(), ("",), (7,), ("a\0b",), ("x" * 1025,)])
def test_what_can_be_no_table_name_is_a_config_error(open_guard: Opener, file: Path, tables: Any) -> None:
    with pytest.raises(ConfigError):
        open_guard(file).protect(*tables)


def test_a_renamed_table_stays_protected(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    with plain(file) as connection:
        connection.execute("ALTER TABLE reports RENAME TO archive")
        connection.execute("CREATE TABLE reports AS SELECT * FROM archive")
    assert protections(file) == [("archive", RESOURCE, "enforce")]
    guard.protect("reports")
    assert is_refused(file, "archive")
    assert is_refused(file, "reports")
    guard.unprotect("archive", reason="test")
    assert protections(file) == [("reports", RESOURCE, "enforce")]


def remake(file: Path) -> None:
    """Change a table as SQLite's manual says: a new one, the rows copied, the old one dropped, the new one renamed."""
    with plain(file) as connection:
        connection.executescript("""
            CREATE TABLE new_reports (id INTEGER PRIMARY KEY, value, remark);
            INSERT INTO new_reports SELECT id, value, '' FROM reports;
            DROP TABLE reports;
            ALTER TABLE new_reports RENAME TO reports;
        """)


def test_a_remade_table_is_found_by_doctor_and_protected_again(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    remake(file)
    assert codes(file) == ["lost-protection"]
    assert protections(file) == []
    guard.protect("reports")
    assert codes(file) == []
    assert is_refused(file, "reports")


def test_a_table_that_lost_one_trigger_is_found_by_doctor_and_repaired(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    (trigger,) = ask(file, "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE '%enforce_delete%'")
    with plain(file) as connection:
        connection.execute(f"DROP TRIGGER {trigger[0]}")
    assert codes(file) == ["lost-protection"]
    guard.protect("reports")
    assert codes(file) == []
    assert is_refused(file, "reports")


# --- unprotect ---
def test_unprotect_allows_every_writer_and_keeps_the_mark(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "reports", "lines")
    guard = open_guard(file)
    guard.protect("reports", "lines")
    guard.seal(HandmadeLease(5))
    guard.unprotect("lines", reason="a migration")
    assert protections(file) == [("reports", RESOURCE, "enforce")]
    guard.unprotect(reason="all of it")
    assert not is_refused(file, "reports")
    assert guard.mark().token == 5
    assert audited(file) == [
        ("unprotect", RESOURCE, 5, 5, "a migration (lines)"),
        ("unprotect", RESOURCE, 5, 5, "all of it (reports)"),
    ]
    assert ask(file, "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name IN ('reports', 'lines')") == []


def test_there_must_be_something_to_unprotect(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    for tables in ((), ("reports",)):
        with pytest.raises(GuardError, match="protects no table here"):
            guard.unprotect(*tables, reason="x")
    guard.protect("reports")
    with pytest.raises(GuardError, match="there is no table 'nosuch'"):
        guard.unprotect("nosuch", reason="x")


def test_a_failed_first_protect_leaves_nothing(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "reports")
    with pytest.raises(GuardError, match="there is no table 'nosuch'"):
        open_guard(file).protect("reports", "nosuch")
    assert ask(file, "SELECT name FROM sqlite_master WHERE name LIKE 'fencelock%'") == []


# --- inspection ---
def codes(file: Path) -> list[str]:
    findings: list[Finding] = guard_store(url_of(file)).examine()
    assert all(finding.message and finding.remedy for finding in findings)
    return [finding.code for finding in findings]


def test_doctor_names_what_would_break_the_promise(open_guard: Opener, tmp_path: Path) -> None:
    file = make_file(tmp_path / "app.db", "reports", "lines")
    assert codes(file) == ["no-marks"]
    guard = open_guard(file)
    guard.seal(HandmadeLease(5))
    assert codes(file) == ["unprotected"]
    guard.protect("reports", mode="observe")
    assert codes(file) == ["only-observed"]
    guard.protect("reports", source=HandmadeSource(5))
    assert codes(file) == []
    assert codes(tmp_path / "nosuch.db") == ["guard-refused"]
    assert not (tmp_path / "nosuch.db").exists()


def test_a_resource_that_keeps_keys_needs_no_table(open_guard: Opener, file: Path) -> None:
    with open_guard(file).transaction(HandmadeLease(5), once="2026-11-22"):
        pass
    assert codes(file) == []


def test_the_guards_of_a_lock_are_found_at_a_url(open_guard: Opener, file: Path) -> None:
    open_guard(file, resource="a").seal(HandmadeLease(5))
    open_guard(file, resource="b").seal(HandmadeLease(5))
    open_guard(file, resource="c", lock="another").seal(HandmadeLease(5, lock="another"))
    assert [guard.resources for guard in guards_of(url_of(file), LOCK)] == [("a",), ("b",)]


def test_looking_at_a_file_without_marks_finds_nothing_and_changes_nothing(file: Path) -> None:
    before = file.read_bytes()
    seen = inspect_resources(url_of(file))
    assert (seen.marks, seen.protections, seen.observations) == ((), (), ())
    assert file.read_bytes() == before
