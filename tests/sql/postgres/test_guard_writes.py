"""G6 on PostgreSQL: all forms of a write are refused without a token, and what only its sessions can do."""

from typing import Any

import psycopg
import pytest

from tests.sql.guarded import Guarded
from tests.sql.postgres.dialect import REFUSED
from tests.support.guards import HandmadeLease, claim_of, sequencer

SET_UP = """
    CREATE TABLE parent (id int PRIMARY KEY);
    CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);
    CREATE TABLE other (id int PRIMARY KEY, value text);
    CREATE VIEW shown AS SELECT id, value FROM reports;
    CREATE FUNCTION copy() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN UPDATE reports SET value = NEW.value; RETURN NEW; END $$;
    CREATE TRIGGER copy AFTER UPDATE ON other FOR EACH ROW EXECUTE FUNCTION copy();
    CREATE PROCEDURE work() LANGUAGE sql AS $$ DELETE FROM reports $$;
    CREATE RULE through AS ON DELETE TO other DO ALSO UPDATE reports SET value = 'by a rule';
    INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1, 1); INSERT INTO other VALUES (1, 'a');
"""
WRITES = {
    "insert": "INSERT INTO reports VALUES (2, 'x')",
    "insert from select": "INSERT INTO reports SELECT id + 1, value FROM reports",
    "insert nothing": "INSERT INTO reports SELECT id, value FROM reports WHERE false",
    "on conflict do update": "INSERT INTO reports VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET value = 'x'",
    "on conflict do nothing": "INSERT INTO reports VALUES (1, 'x') ON CONFLICT DO NOTHING",
    "update": "UPDATE reports SET value = 'x'",
    "update only": "UPDATE ONLY reports SET value = 'x'",
    "update from": "UPDATE reports SET value = other.value FROM other",
    "delete": "DELETE FROM reports",
    "truncate": "TRUNCATE reports",
    "truncate several": "TRUNCATE other, reports",
    "merge": "MERGE INTO reports USING other ON reports.id = other.id WHEN MATCHED THEN UPDATE SET value = 'x'",
    "common table expression": "WITH gone AS (DELETE FROM reports RETURNING *) SELECT count(*) FROM gone",
    "common table expression that nobody reads": "WITH gone AS (DELETE FROM reports) SELECT 1",
    "returning": "UPDATE reports SET value = 'x' RETURNING id",
    "through a view": "UPDATE shown SET value = 'x'",
    "a trigger of the user's": "UPDATE other SET value = 'x'",
    "a rule of the user's": "DELETE FROM other",
    "a procedure": "CALL work()",
    "a block": "DO $$ BEGIN UPDATE reports SET value = 'x'; END $$",
    "explain analyse": "EXPLAIN ANALYSE UPDATE reports SET value = 'x'",
    "cascade of a delete": "DELETE FROM parent",
    "cascade of an update": "UPDATE parent SET id = 2",
    "truncate cascade": "TRUNCATE parent CASCADE",
}


@pytest.fixture
def everything(guarded: Guarded) -> Guarded:
    """A database with tables, views, triggers and rules around the protected table."""
    with guarded.database.connect() as native:
        native.execute(SET_UP)
    guarded.guard().protect("child")
    return guarded


def contents(native: psycopg.Connection) -> list[Any]:
    return [native.execute(f"SELECT * FROM {table}").fetchall() for table in ("reports", "parent", "child", "other")]


def test_g6_a_write_without_a_token_is_refused_whatever_its_form(everything: Guarded) -> None:
    with everything.database.connect() as native:
        before = contents(native)
        for form, statement in WRITES.items():
            with pytest.raises(psycopg.Error, match=REFUSED) as caught:
                native.execute(statement)
            assert caught.value.sqlstate == "FL001", form
        assert contents(native) == before


def test_g6_the_same_writes_with_the_token_are_made(everything: Guarded) -> None:
    guard, lease = everything.guard(), HandmadeLease(5)
    for statement in WRITES.values():
        with guard.transaction(lease) as native, native.transaction(force_rollback=True):
            native.execute(statement)
    assert guard.mark().token == 5


def test_g6_copy_and_large_reads(everything: Guarded) -> None:
    def copy(native: psycopg.Connection) -> None:
        with native.cursor().copy("COPY reports FROM STDIN") as rows:
            rows.write_row((7, "copied"))

    with everything.database.connect() as native:
        with pytest.raises(psycopg.Error, match=REFUSED):
            copy(native)
        with native.cursor().copy("COPY reports TO STDOUT") as rows:
            assert list(rows.rows()) == [("1", "first")]
    with everything.guard().transaction(HandmadeLease(5)) as own:
        copy(own)
    assert everything.value(7) == "copied"


def test_g6_a_failed_parents_cascade_leaves_the_parent(everything: Guarded) -> None:
    with (
        everything.database.connect() as native,
        pytest.raises(psycopg.Error, match="child belongs to resource reports"),
    ):
        native.execute("DELETE FROM parent")
    assert everything.database.value("SELECT count(*) FROM parent") == 1


def test_g6_the_refusal_names_table_resource_and_remedy(guarded: Guarded) -> None:
    with guarded.database.connect() as native, pytest.raises(psycopg.Error) as caught:
        native.execute("DELETE FROM reports")
    refusal = caught.value.diag
    assert (refusal.sqlstate, refusal.schema_name, refusal.table_name) == ("FL001", "public", "reports")
    assert refusal.message_primary == f"table public.reports belongs to resource reports and {REFUSED}"
    assert "guard.transaction(lease)" in refusal.message_hint
    assert "fencelock.present" in refusal.message_hint


@pytest.mark.parametrize("setting", ["session_replication_role = replica", "session_replication_role = local"])
def test_g6_a_session_in_the_role_of_a_replica_is_refused_too(guarded: Guarded, setting: str) -> None:
    with guarded.database.connect() as native:
        native.execute(f"SET {setting}")
        with pytest.raises(psycopg.Error, match=REFUSED):
            native.execute("DELETE FROM reports")


@pytest.mark.parametrize("path", ["", "pg_temp, hostile, pg_catalog"])
def test_g6_functions_and_operators_of_the_sessions_path_are_not_used(guarded: Guarded, path: str) -> None:
    with guarded.database.connect() as native:
        native.execute("""
            CREATE SCHEMA hostile;
            CREATE FUNCTION hostile.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$;
            CREATE FUNCTION hostile.sha256(bytea) RETURNS bytea LANGUAGE sql AS $$ SELECT 'x'::bytea $$;
            CREATE FUNCTION hostile.yes(text, text) RETURNS boolean LANGUAGE sql AS $$ SELECT true $$;
            CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.yes);
        """)
        native.execute("SELECT set_config('search_path', %s, false)", (path,))
        for statement in ("DELETE FROM public.reports", "UPDATE public.reports SET value = 'x'"):
            with pytest.raises(psycopg.Error, match=REFUSED):
                native.execute(statement)


# --- nothing else counts as presenting ------------------------------------------------------------
def test_g6_a_rolled_back_savepoint_takes_the_token_back(guarded: Guarded) -> None:
    guarded.sealed(5)

    def undo(native: psycopg.Connection) -> None:
        with native.transaction():
            guarded.present(native, 5)
            native.execute("UPDATE reports SET value = 'undone'")
            raise ZeroDivisionError

    with guarded.database.connect() as native, native.transaction():
        with pytest.raises(ZeroDivisionError):
            undo(native)
        with pytest.raises(psycopg.Error, match=REFUSED), native.transaction():
            native.execute("DELETE FROM reports")
        with native.transaction():
            guarded.present(native, 5)
        native.execute("UPDATE reports SET value = 'after a released savepoint'")
    assert guarded.value() == "after a released savepoint"


DEFERRED = """
    CREATE TABLE queue (id int);
    CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN UPDATE reports SET value = 'deferred'; RETURN NULL; END $$;
    CREATE CONSTRAINT TRIGGER note AFTER INSERT ON queue DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION note();
"""


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_g6_a_cursor_that_fails_after_it_has_presented_keeps_the_lock(guarded: Guarded, level: str) -> None:
    """A later row of the cursor fails at a savepoint from after presenting, which stays: so a seal still waits."""
    guarded.sealed(5)
    with guarded.client(level) as holder, guarded.client() as successor:
        read_and_fail(holder, f"fencelock.present('{sequencer(5)}', 'reports')")
        successor.execute("SET lock_timeout = '1ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            successor.execute("SELECT fencelock.seal(%s, 'reports')", (str(sequencer(6)),))
        holder.execute("UPDATE reports SET value = 'before the seal'")
        holder.execute("COMMIT")
    assert guarded.value() == "before the seal"


def test_g2_a_cursor_that_fails_after_it_has_sealed_keeps_the_lock(guarded: Guarded) -> None:
    """Nobody presents the lease from before a seal that is not committed yet."""
    guarded.sealed(5)
    with guarded.client() as successor, guarded.client() as holder:
        read_and_fail(successor, f"fencelock.seal('{sequencer(6)}', 'reports')")
        holder.execute("SET lock_timeout = '1ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            guarded.present(holder, 5)
        successor.execute("COMMIT")
    assert guarded.guard().mark().token == 6


def read_and_fail(native: psycopg.Connection, call: str) -> None:
    """Have a cursor call this for its first row, and fail at its second one, after a savepoint."""
    native.execute("BEGIN")
    rows = f"SELECT CASE x WHEN 1 THEN {call} ELSE 1 / (x - 2) END FROM generate_series(1, 2) AS x"
    native.execute(f"DECLARE two CURSOR FOR {rows}".encode())
    native.execute("FETCH two")
    native.execute("SAVEPOINT here")
    with pytest.raises(psycopg.errors.DivisionByZero):
        native.execute("FETCH two")
    native.execute("ROLLBACK TO here")


def test_g6_a_deferred_trigger_has_to_run_before_the_end_of_a_block_that_does_not_commit(guarded: Guarded) -> None:
    lease, guard = guarded.sealed(5), guarded.guard()
    with guarded.database.connect() as native:
        native.execute(DEFERRED)
        with (
            pytest.raises(psycopg.Error, match=REFUSED),
            native.transaction(),
            guard.check(lease, connection=native),
        ):
            native.execute("INSERT INTO queue VALUES (1)")
        with native.transaction(), guard.check(lease, connection=native):
            native.execute("INSERT INTO queue VALUES (2)")
            native.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert guarded.database.rows("SELECT id FROM queue") == [(2,)]
    assert guarded.value() == "deferred"


def test_g10_a_transaction_that_closes_its_own_mark_is_not_admitted_any_more(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.client() as native:
        native.execute("BEGIN")
        guarded.present(native, 5)
        native.execute("SELECT fencelock.close_marks(%s, 'reports')", (claim_of(5),))
        with pytest.raises(psycopg.Error, match=REFUSED):
            native.execute("DELETE FROM reports")


@pytest.mark.parametrize("routine", ["present", "seal"])
def test_no_sequencer_at_all_is_refused(guarded: Guarded, routine: str) -> None:
    with guarded.database.connect() as native, pytest.raises(psycopg.Error, match="not a sequencer") as caught:
        native.execute(f"SELECT fencelock.{routine}(NULL, 'reports')".encode())
    assert caught.value.sqlstate == "22023"


def test_sealing_and_presenting_return_the_token(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        for routine in ("seal", "present"):
            statement = f"SELECT fencelock.{routine}(%s, 'reports')".encode()
            assert native.execute(statement, (str(sequencer(5)),)).fetchone() == (5,)
