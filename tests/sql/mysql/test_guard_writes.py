"""G6 on MySQL: all forms of a write are refused without a token, and what only this server's sessions can do."""

import base64
import subprocess
from pathlib import Path
from typing import Any

import pymysql
import pytest

import fencelock
from fencelock import inspect_resources
from tests.sql.dialect import run
from tests.sql.guarded import Guarded
from tests.sql.mysql.dialect import UNFENCED, code_of
from tests.sql.mysql.fix_mysql import Database
from tests.support.guards import LOCK, RESOURCE, sequencer

pytestmark = pytest.mark.server_wide

LOCK_ENCODED = base64.urlsafe_b64encode(LOCK.encode()).rstrip(b"=").decode()
SET_UP = (
    "CREATE TABLE other (id int PRIMARY KEY, value varchar(64))",
    "INSERT INTO other VALUES (1, 'a')",
    "CREATE VIEW shown AS SELECT id, value FROM reports",
    "CREATE TRIGGER copy AFTER UPDATE ON other FOR EACH ROW UPDATE reports SET value = NEW.value",
    "CREATE PROCEDURE work() DELETE FROM reports",
)
WRITES = {
    "insert": "INSERT INTO reports VALUES (2, 'x')",
    "insert from select": "INSERT INTO reports SELECT id + 1, value FROM reports",
    "insert ignore": "INSERT IGNORE INTO reports VALUES (2, 'x')",
    "on duplicate key": "INSERT INTO reports VALUES (1, 'x') ON DUPLICATE KEY UPDATE value = 'x'",
    "replace": "REPLACE INTO reports VALUES (1, 'x')",
    "update": "UPDATE reports SET value = 'x'",
    "update ignore": "UPDATE IGNORE reports SET value = 'x'",
    "multi-table update": "UPDATE other JOIN reports USING (id) SET reports.value = other.value",
    "delete": "DELETE FROM reports",
    "multi-table delete": "DELETE reports FROM reports JOIN other USING (id)",
    "through a view": "UPDATE shown SET value = 'x'",
    "a trigger of the user's": "UPDATE other SET value = 'y'",
    "a procedure": "CALL work()",
    "load data": "LOAD DATA LOCAL INFILE '{file}' INTO TABLE reports",
    "load data ignore": "LOAD DATA LOCAL INFILE '{file}' IGNORE INTO TABLE reports",
}


@pytest.fixture
def everything(guarded: Guarded, tmp_path: Path) -> Guarded:
    """A database with a view, a trigger and a procedure around the protected table."""
    for statement in SET_UP:
        guarded.database.rows(statement)
    guarded.database.rows("SET GLOBAL local_infile = 1")
    (tmp_path / "rows").write_text("7\tloaded\n")
    return guarded


def contents(guarded: Guarded) -> list[Any]:
    return [guarded.database.rows(f"SELECT * FROM {table} ORDER BY id") for table in ("reports", "other")]


def test_g6_a_write_without_a_token_is_refused_whatever_its_form(everything: Guarded, tmp_path: Path) -> None:
    before = contents(everything)
    with everything.database.connect(local_infile=True) as native:
        for form, statement in WRITES.items():
            with pytest.raises(pymysql.Error, match=UNFENCED) as caught:
                run(native, statement.format(file=tmp_path / "rows"))
            assert code_of(caught.value) == "FL001", form
    assert contents(everything) == before


def test_g6_the_same_writes_with_the_token_are_made(everything: Guarded, tmp_path: Path) -> None:
    everything.sealed(5)
    with everything.database.connect(local_infile=True) as native:
        for statement in WRITES.values():
            run(native, "START TRANSACTION")
            everything.present(native, 5)
            run(native, statement.format(file=tmp_path / "rows"))
            run(native, "CALL fencelock_rollback()")
        run(native, "START TRANSACTION")
        everything.present(native, 5)
        run(native, WRITES["load data"].format(file=tmp_path / "rows"))
        run(native, "CALL fencelock_commit()")
    assert everything.value(7) == "loaded"


def test_g6_a_refused_statement_changes_no_row(guarded: Guarded) -> None:
    """Also where rows before the refused one were free."""
    guarded.database.rows("CREATE TABLE free (id int PRIMARY KEY)")
    with guarded.database.connect() as native:
        run(
            native,
            "CREATE TRIGGER late AFTER INSERT ON free FOR EACH ROW UPDATE reports SET value = 'x' WHERE NEW.id = 3",
        )
        with pytest.raises(pymysql.Error, match=UNFENCED):
            run(native, "INSERT INTO free VALUES (1), (2), (3)")
    assert guarded.database.rows("SELECT * FROM free") == []


def test_g6_fencelocks_triggers_come_before_those_of_the_user(database: Database) -> None:
    database.rows("CREATE TABLE reports (id int PRIMARY KEY, value varchar(64))")
    database.rows("CREATE TABLE seen (id int) ENGINE = MyISAM")
    database.rows("CREATE TRIGGER first_one BEFORE INSERT ON reports FOR EACH ROW INSERT INTO seen VALUES (NEW.id)")
    fencelock.guard(database.url(), resource=RESOURCE, lock=LOCK).protect("reports")
    with pytest.raises(pymysql.Error, match=UNFENCED):
        database.rows("INSERT INTO reports VALUES (1, 'x')")
    assert database.rows("SELECT * FROM seen") == []


# --- presenting, in any language ------------------------------------------------------------------


def test_g6_the_servers_own_program_presents_seals_and_is_refused(guarded: Guarded) -> None:
    credential = str(sequencer(5))

    def console(text: str) -> subprocess.CompletedProcess[str]:
        server = guarded.database.server
        command = ["mariadb", "--no-defaults", "--host=127.0.0.1", f"--port={server.port}", "--user=root"]
        return subprocess.run(
            [*command, guarded.database.name], input=text, capture_output=True, text=True, check=False
        )

    refused = console("UPDATE reports SET value = 'x';")
    assert "ERROR 1644 (FL001) at line 1: FL001 no token presented" in refused.stderr
    done = console(
        f"CALL fencelock_seal('{credential}', 'reports'); BEGIN; CALL fencelock_present('{credential}', 'reports');"
        f"UPDATE reports SET value = 'from a console'; CALL fencelock_commit();"
    )
    assert (done.returncode, done.stderr, guarded.value()) == (0, "", "from a console")


def test_g6_presenting_outside_of_a_transaction_is_refused(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.database.connect() as native:
        with pytest.raises(pymysql.Error, match="FL006 not in a transaction"):
            guarded.present(native, 5)
        with pytest.raises(pymysql.Error, match=UNFENCED):
            run(native, "DELETE FROM reports")


NOT_NAMES = (b"\xff", b"a\xed\xa0\x80", b"\xc3", b"\xf4\x90\x80\x80", b"a\0b", b"", b"x" * 513)


@pytest.mark.parametrize("name", NOT_NAMES)
def test_a_name_that_no_client_could_read_is_kept_in_no_mark(guarded: Guarded, name: bytes) -> None:
    """Otherwise an account that may seal could break every operator's command for good: a mark is never deleted."""
    lock = base64.urlsafe_b64encode(name).rstrip(b"=").decode()
    good = str(sequencer(5))
    bad = good.replace(LOCK_ENCODED, lock)
    before = guarded.database.rows("SELECT * FROM fencelock_mark")
    calls = (
        ("CALL fencelock_seal(%s, 'r')", (bad,)),
        ("CALL fencelock_seal(%s, %s)", (good, name)),
        ("CALL fencelock_begin(HEX(%s), 'digest', 'alone', 5, NULL)", (name or b"\0",)),
        ("CALL fencelock_write_and_commit(HEX('r'), %s, NULL, NULL)", (bad,)),
        ("CALL fencelock_write_and_commit(HEX(%s), %s, NULL, NULL)", (name or b"\0", good)),
    )
    with guarded.database.connect() as native:
        for call, values in calls:
            if "write_and_commit" in call:
                run(native, "START TRANSACTION")
                run(native, "SAVEPOINT fencelock_presented")
            with pytest.raises(pymysql.Error, match=r"utf8|letters|not a sequencer|[Tt]oo long|character string"):
                run(native, call, *values)
            run(native, "CALL fencelock_rollback()")
    assert guarded.database.rows("SELECT * FROM fencelock_mark") == before


def test_what_was_observed_is_shown_whatever_its_program_calls_itself(guarded: Guarded) -> None:
    guarded.database.rows("CALL fencelock_record_refusal(x'ff', 'stale')")
    guarded.database.rows("CALL fencelock_observe('reports', CONVERT(x'EDA080' USING utf8mb4), 'insert')")
    seen = inspect_resources(guarded.database.url()).observations
    assert [(one.resource, one.table) for one in seen] == [("reports", "\\xed\\xa0\\x80"), ("\\xff", "")]


# --- nothing else counts as presenting ------------------------------------------------------------
def test_g6_a_variable_set_by_hand_counts_for_nothing(guarded: Guarded) -> None:
    """What presents is a hash of a secret of the mark and of the session: no proof, and nothing of another session."""
    digest = guarded.sealed(5).sequencer.digest
    name, proof = RESOURCE.encode().hex().upper(), sequencer(5).proof
    with guarded.client() as holder, guarded.database.connect() as native:
        run(holder, "START TRANSACTION")
        guarded.present(holder, 5)
        [(presented,)] = run(holder, "SELECT @fencelock_presented")
        wrong = ("", digest, proof, presented)
        for value in (b",", "5", f",{name}.", presented, *(f",{name}.5.{secret}," for secret in wrong)):
            run(native, "SET @fencelock_presented = %s", value)
            with pytest.raises(pymysql.Error, match=r"FL00[12]"):
                run(native, "DELETE FROM reports")
        run(holder, "UPDATE reports SET value = 'presented'")
        run(holder, "CALL fencelock_commit()")
    assert guarded.value() == "presented"


def test_g6_a_savepoint_keeps_what_was_presented_before_it(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.client() as native:
        run(native, "START TRANSACTION")
        guarded.present(native, 5)
        run(native, "SAVEPOINT mine")
        run(native, "UPDATE reports SET value = 'undone'")
        run(native, "ROLLBACK TO SAVEPOINT mine")
        run(native, "UPDATE reports SET value = 'kept'")
        run(native, "CALL fencelock_commit()")
    assert guarded.value() == "kept"


def test_g6_a_rollback_to_before_the_presenting_is_reported_at_the_end(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.client() as native:
        run(native, "START TRANSACTION")
        run(native, "SAVEPOINT mine")
        guarded.present(native, 5)
        run(native, "ROLLBACK TO SAVEPOINT mine")
        with pytest.raises(pymysql.Error, match="FL007"):
            run(native, "CALL fencelock_commit()")


def test_g6_the_session_is_given_back_as_it_was(guarded: Guarded) -> None:
    guarded.sealed(5)
    look = "SELECT @@tx_read_only, @@wait_timeout, @@idle_transaction_timeout, @fencelock_presented"
    with guarded.client() as native:
        run(native, "SET SESSION idle_transaction_timeout = 77")
        for mode, end in (("READ WRITE", "commit"), ("READ ONLY", "rollback"), ("READ WRITE", "withdraw")):
            run(native, f"SET SESSION TRANSACTION {mode}")
            before = run(native, look)
            run(native, "START TRANSACTION READ WRITE")
            guarded.present(native, 5)
            assert run(native, look) != before
            run(native, f"CALL fencelock_{end}()")
            assert run(native, look) == before
            run(native, "ROLLBACK")
