"""G6 on PostgreSQL: the database itself refuses a write that presents no token in its transaction."""

from typing import Any

import psycopg
import pytest

import fencelock
from fencelock import GuardError, StaleTokenError, UnfencedWriteError
from tests.guards import LOCK, HandmadeLease, sequencer
from tests.sql.postgres.fix_postgres import Database
from tests.sql.postgres.guarded import REFUSED, Guarded

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


def test_g6_reading_and_locking_rows_needs_no_token(everything: Guarded) -> None:
    with everything.database.connect() as native:
        assert native.execute("SELECT value FROM reports FOR UPDATE").fetchone() == ("first",)


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
    said = caught.value.diag
    assert (said.sqlstate, said.schema_name, said.table_name) == ("FL001", "public", "reports")
    assert said.message_primary == f"table public.reports belongs to resource reports and {REFUSED}"
    assert "guard.transaction(lease)" in said.message_hint
    assert "fencelock.present" in said.message_hint


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


# --- presenting, in any language ------------------------------------------------------------------
def test_g6_any_client_presents_its_sequencer_by_one_call(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.database.connect() as native:
        with native.transaction():
            assert native.execute("SELECT fencelock.present(%s, 'reports')", (str(sequencer(5)),)).fetchone() == (5,)
            native.execute("UPDATE reports SET value = 'from elsewhere'")
        assert guarded.value() == "from elsewhere"
        with pytest.raises(psycopg.Error, match=REFUSED):
            native.execute("UPDATE reports SET value = 'the next transaction'")


def test_g6_a_client_seals_by_one_call_too(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        for _ in range(2):
            assert native.execute("SELECT fencelock.seal(%s, 'reports')", (str(sequencer(5)),)).fetchone() == (5,)
        with pytest.raises(psycopg.Error, match="token 4 at mark 5 of resource reports: a newer holder") as caught:
            native.execute("SELECT fencelock.seal(%s, 'reports')", (str(sequencer(4)),))
        assert caught.value.sqlstate == "FL002"
    assert guarded.guard().mark().token == 5
    with guarded.guard().transaction(HandmadeLease(5)) as own:
        own.execute("UPDATE reports SET value = 'the same lease'")


REFUSALS = {
    "FL002 lower": (sequencer(4), "token 4 at mark 5 of resource reports: a newer holder has sealed"),
    "FL003 collision": (sequencer(5, claim="another"), "another lease has sealed the resource with the same token"),
    "FL003 history": (sequencer(5, history_id="another"), "another lease has sealed the resource with the same token"),
    "FL004 lock": (sequencer(5, lock="another"), "bound to another lock"),
    "FL004 source": (sequencer(5, source_id="another"), "bound to another source"),
    "FL005 not sealed": (sequencer(6), "token 6 at mark 5 of resource reports: this token has not sealed"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_g1_what_is_not_the_mark_is_refused_with_its_reason(guarded: Guarded, kind: str) -> None:
    guarded.sealed(5)
    proof, reason = REFUSALS[kind]
    with guarded.database.connect() as native, native.transaction():
        with pytest.raises(psycopg.Error, match=reason) as caught, native.transaction():
            native.execute("SELECT fencelock.present(%s, 'reports')", (str(proof),))
        assert caught.value.sqlstate == kind[:5]
        with pytest.raises(psycopg.Error, match=REFUSED), native.transaction():
            native.execute("DELETE FROM reports")


def test_g10_a_closed_mark_is_refused_and_an_operators(guarded: Guarded) -> None:
    lease = guarded.sealed(5)
    guarded.guard().close(lease)
    with guarded.database.connect() as native:
        with pytest.raises(psycopg.Error, match="its own holder closed it"):
            guarded.present(native, 5)
        guarded.guard().raise_to(7, reason="a test")
        with pytest.raises(psycopg.Error, match="an operator has raised the mark"):
            guarded.present(native, 7)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "fl1",
        "fl2.source.history.x.5.claim-5.bmlnaHRseS1yZXBvcnQ",
        "fl1.source.history.s.5.claim-5.bmlnaHRseS1yZXBvcnQ",
        "fl1.source.history.x.0.claim-5.bmlnaHRseS1yZXBvcnQ",
        "fl1.source.history.x.9223372036854775808.claim-5.bmlnaHRseS1yZXBvcnQ",
        "fl1.source.history.x.5.cl aim.bmlnaHRseS1yZXBvcnQ",
        "fl1.source.history.x.5.claim-5.",
        "fl1.source.history.x.5.claim-5.bmlna",
        "fl1.source.history.x.5.claim-5.bmlnaHRseS1yZXBvcnQ.more",
    ],
)
@pytest.mark.parametrize("function", ["present", "seal"])
def test_what_is_no_sequencer_is_refused_without_showing_it(guarded: Guarded, function: str, text: str | None) -> None:
    with guarded.database.connect() as native, pytest.raises(psycopg.Error, match="not a sequencer") as caught:
        native.execute(f"SELECT fencelock.{function}(%s, 'reports')".encode(), (text,))
    assert caught.value.sqlstate == "22023"
    assert "claim-5" not in str(caught.value)


@pytest.mark.parametrize("lock", ["a", "ab", "abc", "nächtlich-ü", "'\"\\%_", "x" * 512, "\U0001f512"])
def test_every_lock_name_survives_the_sequencer(database: Database, lock: str) -> None:
    with database.connect() as native:
        native.execute("CREATE TABLE reports (id int)")
        guard = fencelock.guard(database.url(), resource="r", lock=lock)
        guard.protect("reports")
        guard.seal(HandmadeLease(5, lock=lock))
        with native.transaction():
            native.execute("SELECT fencelock.present(%s, 'r')", (str(sequencer(5, lock=lock)),))
            native.execute("INSERT INTO reports VALUES (1)")
    assert guard.mark().lock == lock


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


def test_g6_a_token_that_was_withdrawn_admits_nothing(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.client() as native:
        native.execute("BEGIN")
        guarded.present(native, 5)
        native.execute("UPDATE reports SET value = 'admitted'")
        native.execute("SELECT fencelock.withdraw('reports')")
        with pytest.raises(psycopg.Error, match=REFUSED):
            native.execute("DELETE FROM reports")


def test_g10_a_transaction_that_closes_its_own_mark_is_not_admitted_any_more(guarded: Guarded) -> None:
    guarded.sealed(5)
    proof = sequencer(5)
    with guarded.client() as native:
        native.execute("BEGIN")
        guarded.present(native, 5)
        closed = (proof.lock.encode(), 5, proof.source_id, proof.history_id, proof.claim)
        native.execute("SELECT fencelock.write_mark('reports', %s, %s, %s, %s, %s, true)", closed)
        with pytest.raises(psycopg.Error, match=REFUSED):
            native.execute("DELETE FROM reports")


def test_g6_each_resource_needs_its_own_token(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE orders (id int)")
    fencelock.guard(guarded.database.url(), resource="orders", lock=LOCK).protect("orders")
    block = guarded.guard().transaction(HandmadeLease(5))
    with pytest.raises(UnfencedWriteError, match="orders belongs to resource orders"), block as own:
        own.execute("INSERT INTO orders VALUES (1)")
    both = guarded.guard("reports", "orders")
    with both.transaction(HandmadeLease(6)) as own:
        own.execute("INSERT INTO orders VALUES (1)")
        own.execute("UPDATE reports SET value = 'both'")
    with guarded.database.connect() as native, native.transaction():
        guarded.present(native, 6, "orders", "reports", "orders")
        native.execute("UPDATE reports SET value = 'both, by hand'")
        native.execute("DELETE FROM orders")
    assert guarded.value() == "both, by hand"


# --- what keeps itself (G8) -----------------------------------------------------------------------
FORBIDDEN = {
    "lowering": "UPDATE fencelock.mark SET token = 4",
    "forgetting": "UPDATE fencelock.mark SET token = NULL",
    "deleting": "DELETE FROM fencelock.mark",
    "emptying": "TRUNCATE fencelock.mark",
    "taking over": "UPDATE fencelock.mark SET claim = 'another'",
    "another history": "UPDATE fencelock.mark SET history_id = 'another'",
    "another source": "UPDATE fencelock.mark SET source_id = 'another', token = 9",
    "another lock": "UPDATE fencelock.mark SET lock = 'another', token = 9",
    "another name": "UPDATE fencelock.mark SET resource = 'another'",
    "reopening": "UPDATE fencelock.mark SET is_closed = false",
    "token 0": "UPDATE fencelock.mark SET token = 0",
    "an audit entry that is not there": "UPDATE fencelock.mark SET token = 4, audit_id = 77",
    "an audit entry of another change": "UPDATE fencelock.mark SET token = 3, audit_id = 1",
    "an audit entry that was used": "UPDATE fencelock.mark SET token = 4, audit_id = NULL",
    "changing the audit": "UPDATE fencelock.guard_audit SET reason = 'another'",
    "deleting the audit": "DELETE FROM fencelock.guard_audit",
    "emptying the audit": "TRUNCATE fencelock.guard_audit CASCADE",
    "an audit entry without a reason": "SELECT fencelock.write_audit('w', 'lower', 'reports', 9, 1, ' ')",
}


def test_g8_marks_and_audit_keep_themselves_even_from_their_owner(guarded: Guarded) -> None:
    guard = guarded.guard()
    guard.raise_to(9, reason="first")
    guard.lower(5, reason="second")
    guard.close(HandmadeLease(7))
    look = "SELECT * FROM fencelock.mark, fencelock.guard_audit ORDER BY id"
    before = guarded.database.rows(look)
    assert len(before) == 2
    with guarded.database.connect() as native:
        for what, statement in FORBIDDEN.items():
            with pytest.raises(psycopg.Error) as caught:
                native.execute(statement)
            assert caught.value.sqlstate in ("FL009", "23514", "23503"), what
    assert guarded.database.rows(look) == before


def test_g8_what_operators_do_is_audited_with_their_role(guarded: Guarded) -> None:
    guard = guarded.guard()
    guard.raise_to(9, reason="restored")
    guard.lower(5, reason="poisoned")
    guard.unprotect(reason="moved")
    rows = guarded.database.rows(
        "SELECT action, from_token, to_token, reason, role, who <> '' FROM fencelock.guard_audit ORDER BY id"
    )
    assert rows == [
        ("raise-to", 0, 9, "restored", "postgres", True),
        ("lower", 9, 5, "poisoned", "postgres", True),
        ("unprotect", 5, 5, "moved (public.reports)", "postgres", True),
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
            own.execute("SELECT fencelock.present(%s, 'other')", (str(proof),))
