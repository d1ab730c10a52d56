"""G6 on MySQL: the database itself refuses a write that presents no token in its transaction, from any client."""

import base64
import subprocess
from pathlib import Path
from typing import Any

import pymysql
import pytest

import fencelock
from fencelock import GuardError, StaleTokenError, UnfencedWriteError, inspect_resources
from tests.guards import LOCK, RESOURCE, HandmadeLease, sequencer
from tests.sql.mysql.fix_mysql import Database
from tests.sql.mysql.guarded import UNFENCED, Guarded, code_of, run

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


def test_g6_reading_and_locking_rows_needs_no_token(guarded: Guarded) -> None:
    assert guarded.database.rows("SELECT value FROM reports FOR UPDATE") == [("first",)]


def test_g6_ours_come_before_triggers_of_the_users(mysql_database: Database) -> None:
    mysql_database.rows("CREATE TABLE reports (id int PRIMARY KEY, value varchar(64))")
    mysql_database.rows("CREATE TABLE seen (id int) ENGINE = MyISAM")
    mysql_database.rows(
        "CREATE TRIGGER first_one BEFORE INSERT ON reports FOR EACH ROW INSERT INTO seen VALUES (NEW.id)"
    )
    fencelock.guard(mysql_database.url(), resource=RESOURCE, lock=LOCK).protect("reports")
    with pytest.raises(pymysql.Error, match=UNFENCED):
        mysql_database.rows("INSERT INTO reports VALUES (1, 'x')")
    assert mysql_database.rows("SELECT * FROM seen") == []


# --- presenting, in any language ------------------------------------------------------------------
def test_g6_any_client_presents_its_sequencer_by_one_call(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.database.connect() as native:
        run(native, "START TRANSACTION")
        guarded.present(native, 5)
        run(native, "UPDATE reports SET value = 'from elsewhere'")
        run(native, "CALL fencelock_commit()")
        assert guarded.value() == "from elsewhere"
        with pytest.raises(pymysql.Error, match=UNFENCED):
            run(native, "UPDATE reports SET value = 'the next transaction'")


def test_g6_the_servers_own_program_presents_seals_and_is_refused(guarded: Guarded) -> None:
    proof = str(sequencer(5))

    def console(text: str) -> subprocess.CompletedProcess[str]:
        server = guarded.database.server
        command = ["mariadb", "--no-defaults", "--host=127.0.0.1", f"--port={server.port}", "--user=root"]
        return subprocess.run(
            [*command, guarded.database.name], input=text, capture_output=True, text=True, check=False
        )

    refused = console("UPDATE reports SET value = 'x';")
    assert "ERROR 1644 (FL001) at line 1: FL001 no token presented" in refused.stderr
    done = console(
        f"CALL fencelock_seal('{proof}', 'reports'); BEGIN; CALL fencelock_present('{proof}', 'reports');"
        f"UPDATE reports SET value = 'from a console'; CALL fencelock_commit();"
    )
    assert (done.returncode, done.stderr, guarded.value()) == (0, "", "from a console")


def test_g6_a_client_seals_by_one_call_too(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        for _ in range(2):
            run(native, "CALL fencelock_seal(%s, 'reports')", str(sequencer(5)))
        with pytest.raises(pymysql.Error, match="token 4 at mark 5 of resource reports: a newer holder") as caught:
            run(native, "CALL fencelock_seal(%s, 'reports')", str(sequencer(4)))
        assert code_of(caught.value) == "FL002"
    assert guarded.guard().mark().token == 5
    with guarded.guard().transaction(HandmadeLease(5)) as own:
        run(own, "UPDATE reports SET value = 'the same lease'")


REFUSALS = {
    "FL002 lower": (sequencer(4), "token 4 at mark 5 of resource reports: a newer holder has sealed"),
    "FL003 collision": (sequencer(5, claim="another"), "another lease has sealed with this token"),
    "FL003 history": (sequencer(5, history_id="another"), "another lease has sealed with this token"),
    "FL004 lock": (sequencer(5, lock="another"), "bound to another lock"),
    "FL004 source": (sequencer(5, source_id="another"), "bound to another source"),
    "FL005 not sealed": (sequencer(6), "token 6 at mark 5 of resource reports: this token has not sealed"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_g1_what_is_not_the_mark_is_refused_with_its_reason(guarded: Guarded, kind: str) -> None:
    guarded.sealed(5)
    proof, reason = REFUSALS[kind]
    with guarded.database.connect() as native:
        run(native, "START TRANSACTION")
        with pytest.raises(pymysql.Error, match=reason) as caught:
            run(native, "CALL fencelock_present(%s, 'reports')", str(proof))
        assert code_of(caught.value) == kind[:5]
        with pytest.raises(pymysql.Error, match=UNFENCED):
            run(native, "DELETE FROM reports")


def test_g6_presenting_outside_of_a_transaction_is_refused(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.database.connect() as native:
        with pytest.raises(pymysql.Error, match="FL006 in no transaction"):
            guarded.present(native, 5)
        with pytest.raises(pymysql.Error, match=UNFENCED):
            run(native, "DELETE FROM reports")


def test_g10_a_closed_mark_is_refused_and_an_operators(guarded: Guarded) -> None:
    lease = guarded.sealed(5)
    guarded.guard().close(lease)
    with guarded.database.connect(autocommit=False) as native:
        with pytest.raises(pymysql.Error, match="its own holder closed it"):
            guarded.present(native, 5)
        native.rollback()
        guarded.guard().raise_to(7, reason="a test")
        with pytest.raises(pymysql.Error, match="an operator has raised it"):
            guarded.present(native, 7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fl1",
        "fl2.source.history.x.5.claim-5.bmlnaHRseS1yZXBvcnQ",
        "FL1.source.history.x.5.claim-5.bmlnaHRseS1yZXBvcnQ",
        "fl1.source.history.s.5.claim-5.bmlnaHRseS1yZXBvcnQ",
        "fl1.source.history.x.0.claim-5.bmlnaHRseS1yZXBvcnQ",
        "fl1.source.history.x.9223372036854775808.claim-5.bmlnaHRseS1yZXBvcnQ",
        "fl1.source.history.x.5.cl aim.bmlnaHRseS1yZXBvcnQ",
        "fl1.source.history.x.5.claim-5.",
        "fl1.source.history.x.5.claim-5.bmlna",
        "fl1.source.history.x.5.claim-5.bmlnaHRseS1yZXBvcnQ.more",
        "x" * 5000,
    ],
)
def test_what_is_no_sequencer_is_refused_without_showing_it(guarded: Guarded, text: str) -> None:
    with guarded.database.connect() as native, pytest.raises(pymysql.Error, match="not a sequencer") as caught:
        run(native, "CALL fencelock_seal(%s, 'reports')", text)
    assert code_of(caught.value) == "FL011"
    assert "claim-5" not in str(caught.value)


@pytest.mark.parametrize("lock", ["a", "ab", "abc", "nächtlich-ü", "'\"\\%_", "x" * 512, "\U0001f512"])
def test_every_lock_name_survives_the_sequencer(guarded: Guarded, lock: str) -> None:
    guard = fencelock.guard(guarded.database.url(), resource="r", lock=lock)
    guard.seal(HandmadeLease(5, lock=lock))
    with guarded.database.connect(autocommit=False, init_command="SET div_precision_increment = 0") as native:
        run(native, "CALL fencelock_present(%s, 'r')", str(sequencer(5, lock=lock)))
    assert guard.mark().lock == lock


NOT_NAMES = (b"\xff", b"a\xed\xa0\x80", b"\xc3", b"\xf4\x90\x80\x80", b"a\0b", b"", b"x" * 513)


@pytest.mark.parametrize("name", NOT_NAMES)
def test_a_name_that_no_client_could_read_is_kept_in_no_mark(guarded: Guarded, name: bytes) -> None:
    """Or whoever may seal could break every operator's command for good, since a mark is never deleted."""
    lock = base64.urlsafe_b64encode(name).rstrip(b"=").decode()
    good, bad = f"fl1.source.history.x.5.claim-5.{LOCK_ENCODED}", f"fl1.source.history.x.5.claim-5.{lock}"
    before = guarded.database.rows("SELECT * FROM fencelock_mark")
    calls = (
        ("CALL fencelock_seal(%s, 'r')", (bad,)),
        ("CALL fencelock_seal(%s, %s)", (good, name)),
        ("CALL fencelock_begin(HEX(%s), 'claim', 'alone', 5)", (name or b"\0",)),
        ("CALL fencelock_write_and_commit(HEX('r'), %s, 5, 'claim', 'source', 'history', FALSE)", (name,)),
        ("CALL fencelock_write_and_commit(HEX('r'), 'lock', 5, 'claim', %s, 'history', FALSE)", (name or b".",)),
    )
    with guarded.database.connect() as native:
        for call, values in calls:
            with pytest.raises(pymysql.Error, match=r"utf8|letters|not a sequencer|[Tt]oo long|character string"):
                run(native, call, *values)
            run(native, "CALL fencelock_rollback()")
    assert guarded.database.rows("SELECT * FROM fencelock_mark") == before


def test_what_was_observed_is_shown_whatever_its_program_calls_itself(guarded: Guarded) -> None:
    guarded.database.rows("CALL fencelock_record_refusal(x'ff', 'stale')")
    guarded.database.rows("CALL fencelock_observe('reports', CONVERT(x'EDA080' USING utf8mb4), 'insert')")
    seen = inspect_resources(guarded.database.url()).observations
    assert [(one.resource, one.table) for one in seen] == [("reports", "\\xed\\xa0\\x80"), ("\\xff", "")]


@pytest.mark.parametrize("resource", ["a,b", "r.1", "'\"\\%_`", "nächtlich-ü", "x" * 512, "\U0001f512"])
def test_every_resource_name_is_protected_and_refuses_in_128_characters(
    mysql_database: Database, resource: str
) -> None:
    mysql_database.rows("CREATE TABLE reports (id int PRIMARY KEY)")
    guard = fencelock.guard(mysql_database.url(), resource=resource, lock=LOCK)
    guard.protect("reports")
    with pytest.raises(pymysql.Error) as caught:
        mysql_database.rows("INSERT INTO reports VALUES (1)")
    assert code_of(caught.value) == "FL001"
    with guard.transaction(HandmadeLease(5)) as own:
        run(own, "INSERT INTO reports VALUES (1)")
    with mysql_database.connect(autocommit=False) as native:
        run(native, "CALL fencelock_present(%s, %s)", str(sequencer(5)), resource)
        run(native, "INSERT INTO reports VALUES (2)")
        run(native, "CALL fencelock_commit()")
        with pytest.raises(pymysql.Error) as caught:
            run(native, "CALL fencelock_present(%s, %s)", str(sequencer(4)), resource)
    assert code_of(caught.value) == "FL002"


# --- nothing else counts as presenting ------------------------------------------------------------
def test_g6_a_variable_set_by_hand_counts_for_nothing(guarded: Guarded) -> None:
    """Who knows the claim may present; nobody else."""
    guarded.sealed(5)
    name = RESOURCE.encode().hex().upper()
    with guarded.database.connect() as native:
        for value in (b",", f",{name}.5.,", f",{name}.5.claim-4,", f",{name}.4.claim-5,", f",{name}.", "5"):
            run(native, "SET @fencelock_presented = %s", value)
            with pytest.raises(pymysql.Error, match=r"FL00[12]"):
                run(native, "DELETE FROM reports")


def test_g6_a_token_that_was_withdrawn_admits_nothing(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.client() as native:
        run(native, "START TRANSACTION")
        guarded.present(native, 5)
        run(native, "UPDATE reports SET value = 'admitted'")
        run(native, "CALL fencelock_withdraw()")
        with pytest.raises(pymysql.Error, match=UNFENCED):
            run(native, "DELETE FROM reports")
        run(native, "COMMIT")
    assert guarded.value() == "admitted"


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


def test_g6_a_rollback_to_before_the_presenting_is_told_at_the_end(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.client() as native:
        run(native, "START TRANSACTION")
        run(native, "SAVEPOINT mine")
        guarded.present(native, 5)
        run(native, "ROLLBACK TO SAVEPOINT mine")
        with pytest.raises(pymysql.Error, match="FL007"):
            run(native, "CALL fencelock_commit()")


def test_g6_each_resource_needs_its_own_token(guarded: Guarded) -> None:
    guarded.database.rows("CREATE TABLE orders (id int)")
    fencelock.guard(guarded.database.url(), resource="orders", lock=LOCK).protect("orders")
    block = guarded.guard().transaction(HandmadeLease(5))
    with pytest.raises(UnfencedWriteError, match="Resource: orders"), block as own:
        run(own, "INSERT INTO orders VALUES (1)")
    both = guarded.guard("reports", "orders")
    with both.transaction(HandmadeLease(6)) as own:
        run(own, "INSERT INTO orders VALUES (1)")
        run(own, "UPDATE reports SET value = 'both'")
    with guarded.database.connect(autocommit=False) as native:
        for resource in ("orders", "reports", "orders"):
            guarded.present(native, 6, resource)
        run(native, "UPDATE reports SET value = 'both, by hand'")
        run(native, "DELETE FROM orders")
        run(native, "CALL fencelock_commit()")
    assert guarded.value() == "both, by hand"


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


# --- what keeps itself (G8) -----------------------------------------------------------------------
FORBIDDEN = {
    "lowering": "UPDATE fencelock_mark SET token = 4",
    "forgetting": "UPDATE fencelock_mark SET token = NULL",
    "deleting": "DELETE FROM fencelock_mark",
    "replacing": "REPLACE INTO fencelock_mark (resource, lock_name, token) VALUES ('reports', 'nightly-report', 1)",
    "taking over": "UPDATE fencelock_mark SET claim = 'another'",
    "another history": "UPDATE fencelock_mark SET history_id = 'another'",
    "another source": "UPDATE fencelock_mark SET source_id = 'another', token = 9",
    "another lock": "UPDATE fencelock_mark SET lock_name = 'another', token = 9",
    "another name": "UPDATE fencelock_mark SET resource = 'another'",
    "reopening": "UPDATE fencelock_mark SET is_closed = FALSE",
    "token 0": "UPDATE fencelock_mark SET token = 0",
    "an audit entry that is not there": "UPDATE fencelock_mark SET token = 4, audit_id = 77",
    "an audit entry of another change": "UPDATE fencelock_mark SET token = 3, audit_id = 1",
    "an audit entry that was used": "UPDATE fencelock_mark SET token = 4, audit_id = NULL",
    "changing the audit": "UPDATE fencelock_guard_audit SET reason = 'another'",
    "deleting the audit": "DELETE FROM fencelock_guard_audit",
}


def test_g8_marks_and_audit_keep_themselves_even_from_their_owner(guarded: Guarded) -> None:
    guard = guarded.guard()
    guard.raise_to(9, reason="first")
    guard.lower(5, reason="second")
    guard.close(HandmadeLease(7))
    look = "SELECT * FROM fencelock_mark, fencelock_guard_audit ORDER BY id"
    before = guarded.database.rows(look)
    assert len(before) == 2
    with guarded.database.connect() as native:
        for what, statement in FORBIDDEN.items():
            with pytest.raises(pymysql.Error) as caught:
                run(native, statement)
            assert code_of(caught.value) == "FL009", what
    assert guarded.database.rows(look) == before


def test_g8_what_operators_do_is_audited_with_their_account(guarded: Guarded) -> None:
    guard = guarded.guard()
    guard.raise_to(9, reason="restored")
    guard.lower(5, reason="poisoned: 'quoted' \\ 100 %")
    guard.unprotect(reason="moved")
    rows = guarded.database.rows(
        "SELECT action, from_token, to_token, reason, account LIKE 'root@%', who <> '' FROM fencelock_guard_audit "
        "ORDER BY id"
    )
    assert rows == [
        ("raise-to", 0, 9, "restored", 1, 1),
        ("lower", 9, 5, "poisoned: 'quoted' \\ 100 %", 1, 1),
        ("unprotect", 5, 5, f"moved ({guarded.database.name}.reports)", 1, 1),
    ]


def test_stale_leases_get_the_trees_errors_with_the_numbers(guarded: Guarded) -> None:
    old = guarded.sealed(5)
    guarded.sealed(8)
    with pytest.raises(StaleTokenError) as caught, guarded.guard().transaction(old):
        raise AssertionError("not reached")
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (5, 8, "reports")


def test_present_in_a_guarded_block_speaks_the_trees_errors(guarded: Guarded) -> None:
    guarded.guard("other").seal(HandmadeLease(9))
    for proof, kind in ((sequencer(8), StaleTokenError), (sequencer(10), GuardError)):
        with pytest.raises(kind), guarded.guard().transaction(HandmadeLease(5)) as own:
            run(own, "CALL fencelock_present(%s, 'other')", str(proof))
