"""What operators do at a guard on a SQLite file: protect and unprotect tables, lower, raise and rebind marks."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

import fenceline
from fenceline import ConfigError, Finding, GuardError, StaleTokenError, WrongLockError
from fenceline._api.guard import guards_of, look_at
from fenceline.stores.registry import guard_store
from tests.guards import (
    LOCK,
    RESOURCE,
    HandmadeLease,
    HandmadeSource,
    Opener,
    ask,
    make_file,
    plain,
    url_of,
    value_in,
    write,
)


def protections(file: Path) -> list[tuple[str, str, str]]:
    return [(one.table, one.resource, one.mode) for one in look_at(url_of(file)).protections]


def audited(file: Path) -> list[tuple[Any, ...]]:
    return ask(file, "SELECT action, resource, from_token, to_token, reason FROM fenceline_audit ORDER BY id")


def is_refused(file: Path, table: str) -> bool:
    with plain(file) as connection:
        try:
            connection.execute(f"DELETE FROM {table}")
        except sqlite3.IntegrityError as error:
            return "takes writes only from the holder" in str(error)
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
            with pytest.raises(sqlite3.IntegrityError, match="fenceline: table"):
                connection.execute(f"UPDATE {quoted} SET value = 1")
        else:
            connection.execute(f"UPDATE {quoted} SET value = 1")
            assert [one.table for one in look_at(url_of(file)).observations] == [name]
    write(guard, HandmadeLease(5, lock=name), "held", table=quoted)
    guard.unprotect(name, reason="test")
    assert protections(file) == []


def test_protecting_again_changes_nothing(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    before = ask(file, "SELECT * FROM sqlite_schema"), ask(file, "SELECT * FROM fenceline_protected")
    guard.protect("reports", "main.reports")
    assert (ask(file, "SELECT * FROM sqlite_schema"), ask(file, "SELECT * FROM fenceline_protected")) == before
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
        ("fenceline_mark", "not yours to write"),
        ("sqlite_schema", "not yours to write"),
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
def test_a_mode_that_is_none_is_a_config_error(open_guard: Opener, file: Path, arguments: Any) -> None:
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


def test_a_table_that_lost_one_trigger_is_found_by_doctor_and_made_whole(open_guard: Opener, file: Path) -> None:
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
def test_unprotect_lets_anybody_write_and_keeps_the_mark(open_guard: Opener, tmp_path: Path) -> None:
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


# --- marks ---
@pytest.mark.parametrize("reason", ["", "  ", None, "x" * 2049, "a\0b"])
def test_an_operator_says_why(open_guard: Opener, file: Path, reason: Any) -> None:
    guard = open_guard(file)
    guard.protect("reports")
    guard.seal(HandmadeLease(5))
    for attempt in (
        lambda: guard.lower(3, reason=reason),
        lambda: guard.raise_to(7, reason=reason),
        lambda: guard.unprotect("reports", reason=reason),
        lambda: guard.rebind("other", source=HandmadeSource(9), reason=reason),
        lambda: guard.outrank(HandmadeLease(9), reason=reason),
    ):
        with pytest.raises(ConfigError):
            attempt()
    assert (guard.mark().token, audited(file)) == (5, [])


def test_a_deed_is_audited_with_who_and_when(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(9))
    guard.lower(3, reason="poisoned by a test")
    ((who,),) = ask(file, "SELECT who FROM fenceline_audit WHERE at GLOB '20*T*:*:*.*Z'")
    assert who == fenceline.model.default_holder()
    assert audited(file) == [("lower", RESOURCE, 9, 3, "poisoned by a test")]


def test_lower_opens_the_resource_to_tokens_above_the_new_mark(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(2**60))
    with pytest.raises(StaleTokenError):
        write(guard, HandmadeLease(5))
    guard.lower(4, reason="poisoned")
    with pytest.raises(StaleTokenError):
        write(guard, HandmadeLease(4))
    write(guard, HandmadeLease(5), "open again")


@pytest.mark.parametrize("token", [5, 6])
def test_lower_refuses_what_is_not_lower(open_guard: Opener, file: Path, token: int) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(5))
    with pytest.raises(GuardError, match="nothing to lower"):
        guard.lower(token, reason="x")


@pytest.mark.parametrize("token", [0, -1, 2**63, 2.5, "7", None, True])
def test_what_is_no_token_does_not_get_into_the_file(open_guard: Opener, file: Path, token: Any) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(5))
    for attempt in (guard.lower, guard.raise_to):
        with pytest.raises(ConfigError):
            attempt(token, reason="x")
    assert guard.mark().token == 5


def test_raise_to_takes_a_token_or_a_source(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.raise_to(7, reason="by number")
    guard.raise_to(HandmadeSource(8), reason="by source")
    guard.raise_to(HandmadeSource(9).info, reason="by what a source said")
    assert (guard.mark().token, guard.mark().source_id) == (9, "source")
    assert [row[:4] for row in audited(file)] == [
        ("raise-to", RESOURCE, 0, 7),
        ("raise-to", RESOURCE, 7, 8),
        ("raise-to", RESOURCE, 8, 9),
    ]


def test_raise_to_goes_up_and_stays_with_its_source(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(5))
    for to, error, message in (
        (4, GuardError, "use lower"),
        (HandmadeSource(4), GuardError, "epoch --raise"),
        (HandmadeSource(9, source_id="another"), WrongLockError, "rebind"),
    ):
        with pytest.raises(error, match=message):
            guard.raise_to(to, reason="x")
    assert (guard.mark().token, audited(file)) == (5, [])


def test_raise_to_a_source_that_has_issued_nothing_changes_no_mark(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.raise_to(HandmadeSource(0), reason="new source")
    assert guard.mark().token == 0
    write(guard, HandmadeLease(1))


def test_rebind_moves_a_resource_to_another_lock_and_source(open_guard: Opener, file: Path) -> None:
    guard, old = open_guard(file), HandmadeLease(5)
    write(guard, old, "old")
    guard.rebind("other-lock", source=HandmadeSource(7, "another"), reason="moved")
    assert guard.lock == "other-lock"
    with pytest.raises(WrongLockError):
        write(guard, old, "from the old lock")
    with pytest.raises(WrongLockError):
        write(open_guard(file), HandmadeLease(6), "from the old lock, anew")
    with pytest.raises(StaleTokenError):
        write(guard, HandmadeLease(5, lock="other-lock", source_id="another"), "not above the mark")
    write(guard, HandmadeLease(8, lock="other-lock", source_id="another"), "new")
    assert value_in(file) == "new"
    assert audited(file) == [
        ("rebind", RESOURCE, 5, 5, "moved (from lock 'nightly-report' to 'other-lock')"),
    ]


def test_rebind_needs_a_source_whose_counter_is_not_below_the_mark(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    guard.seal(HandmadeLease(5))
    with pytest.raises(GuardError, match="mark 5, and 4 is below it: run `fenceline epoch --raise`"):
        guard.rebind("other-lock", source=HandmadeSource(4, "another"), reason="moved")
    assert (guard.mark().lock, guard.lock) == (LOCK, LOCK)


def test_what_is_no_source_is_a_config_error(open_guard: Opener, file: Path) -> None:
    guard = open_guard(file)
    for attempt in (
        lambda: guard.raise_to("sqlite:///locks.db", reason="x"),
        lambda: guard.rebind("l", source=7, reason="x"),
        lambda: guard.protect("reports", source=object()),
    ):
        with pytest.raises(ConfigError, match="source must be a source"):
            attempt()


def test_outrank_leaves_a_newer_holder_alone(open_guard: Opener, file: Path) -> None:
    guard, newer = open_guard(file), HandmadeLease(7)
    guard.seal(newer)
    guard.outrank(HandmadeLease(6), reason="late")
    write(guard, newer)
    with pytest.raises(WrongLockError):
        guard.outrank(HandmadeLease(9, lock="another"), reason="x")
    with pytest.raises(WrongLockError):
        guard.outrank(HandmadeLease(9, source_id="another"), reason="x")


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


def test_the_guards_of_a_lock_are_found_at_a_url(open_guard: Opener, file: Path) -> None:
    open_guard(file, resource="a").seal(HandmadeLease(5))
    open_guard(file, resource="b").seal(HandmadeLease(5))
    open_guard(file, resource="c", lock="another").seal(HandmadeLease(5, lock="another"))
    assert [guard.resources for guard in guards_of(url_of(file), LOCK)] == [("a",), ("b",)]


def test_looking_at_a_file_without_marks_finds_nothing_and_changes_nothing(file: Path) -> None:
    before = file.read_bytes()
    seen = look_at(url_of(file))
    assert (seen.marks, seen.protections, seen.observations) == ((), (), ())
    assert file.read_bytes() == before
