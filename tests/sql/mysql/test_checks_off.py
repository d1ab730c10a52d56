"""Sessions that have switched MariaDB's CHECKs off, which needs no right, and rows that no CHECK has seen."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest

import fencelock
from fencelock._api.guard import inspect_resources
from fencelock.stores.mysql.guard.store import MySQLGuard
from tests.sql.dialect import install, run
from tests.sql.guarded import Guarded
from tests.sql.mysql.dialect import code_of
from tests.support.guards import HandmadeLease, sequencer

WRITE = "CALL fencelock_write_and_commit(%s, %s, NULL, NULL)"


@contextmanager
def unchecked(database: Any, **login: Any) -> Iterator[Any]:
    """Open a session with the checks off, and the settings that the source asks for."""
    with database.connect(**login) as native:
        for setting in ("check_constraint_checks = 0", "time_zone = '+00:00'"):
            run(native, f"SET SESSION {setting}")
        run(native, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        yield native


@pytest.mark.parametrize(
    ("statement", "parameters"),
    [
        (WRITE, ("FF", str(sequencer(7)))),
        ("CALL fencelock_seal(%s, %s)", (str(sequencer(7)), b"\xff")),
        ("CALL fencelock_read_marks(%s, %s, %s)", ("FF", "digest", "alone")),
        (WRITE, ("7265706F727473", str(sequencer(9)))),
    ],
    ids=["bytes that are no name", "seal", "an empty mark", "a mark that is there"],
)
def test_a_session_without_checks_writes_no_mark(guarded: Guarded, statement: str, parameters: tuple[Any, ...]) -> None:
    guarded.sealed(5)
    with unchecked(guarded.database) as native:
        if "seal" not in statement:
            run(native, "START TRANSACTION")
            run(native, "SAVEPOINT fencelock_presented")
        with pytest.raises(pymysql.Error, match="check_constraint_checks") as caught:
            run(native, statement, *parameters)
        assert code_of(caught.value) == "FL009"
    assert [(mark.resource, mark.token) for mark in inspect_resources(guarded.database.url()).marks] == [("reports", 5)]


def test_a_session_without_checks_gets_no_lease(database: Any) -> None:
    """A ttl of 317 years, or a negative one, is the CHECK's to refuse."""
    source = fencelock.connect(install(database.url()))
    seen = source.describe()
    acquire = "CALL fencelock_acquire('lock', 'claim', 'holder', %s, 1, 'try', 9, %s, %s)"
    with source, unchecked(database) as native:
        source.lock("lock", ttl=5).acquire().release()
        for ttl_ms in (9_999_999_999_999, -5_000, 5_000):
            with pytest.raises(pymysql.Error, match=r"a session needs .* check_constraint_checks = 1"):
                run(native, acquire, ttl_ms, seen.epoch, seen.history_id)
        assert not source.info("lock").is_held


def test_doctor_and_the_list_of_marks_survive_names_of_any_bytes(guarded: Guarded) -> None:
    """Who may drop the constraints can have written anything."""
    database = guarded.database
    url = database.url()
    for (name,) in database.rows(
        "SELECT constraint_name FROM information_schema.check_constraints "
        "WHERE constraint_schema = DATABASE() AND table_name = 'fencelock_mark' AND constraint_name LIKE 'fencelock%'"
    ):
        database.rows(f"ALTER TABLE fencelock_mark DROP CONSTRAINT `{name}`")
    database.rows(
        "INSERT INTO fencelock_mark (resource, lock_name, token, source_id, history_id, digest) "
        "VALUES (x'FF', x'FE00', 7, x'80', x'', x'ED')"
    )
    database.rows("INSERT INTO fencelock_protection (table_name, resource, mode) VALUES ('gone', x'C3', 'enforce')")
    findings = MySQLGuard(url).examine()
    assert {"\\xff", "\\xc3"} <= {finding.resource for finding in findings}
    assert "\\xff" in [mark.resource for mark in inspect_resources(url).marks]


def test_observe_mode_counts_every_write_of_a_session_whose_time_stands_still(guarded: Guarded) -> None:
    guarded.guard().unprotect(reason="a test")
    guarded.guard().protect("reports", mode="observe")
    guarded.database.rows("INSERT INTO reports VALUES (2, 'second'), (3, 'third')")

    def observed() -> int:
        return sum(one.times for one in inspect_resources(guarded.database.url()).observations if one.kind == "update")

    with guarded.database.connect() as native:
        for _ in range(3):
            run(native, "UPDATE reports SET value = CONCAT(value, '.')")
        assert observed() == 3, "one for each statement"
        run(native, "SET timestamp = 1700000000")
        for _ in range(3):
            run(native, "UPDATE reports SET value = CONCAT(value, '.') WHERE id = 1")
        assert observed() == 6


def test_g6_a_block_that_switches_checks_off_leaves_the_next_tenure_its_seal(guarded: Guarded) -> None:
    guard = guarded.guard()
    for token in (5, 6):
        with guard.transaction(HandmadeLease(token)) as native:
            run(native, "SET check_constraint_checks = 0")
            run(native, "UPDATE reports SET value = %s", str(token))
        del native
    assert guarded.database.value("SELECT value FROM reports") == "6"
