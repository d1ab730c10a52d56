"""G6 on an SQL server: the database itself refuses a write that presents no token in its transaction, from any client.

The forms of a write, which differ from server to server, are in each server's own folder.
"""

from typing import Any

import pytest

import fencelock
from fencelock import GuardError, StaleTokenError, UnfencedWriteError
from tests.sql.dialect import SqlDialect, run
from tests.sql.guarded import Guarded
from tests.support.guards import LOCK, HandmadeLease, sequencer


def test_g6_reading_and_locking_rows_needs_no_token(guarded: Guarded) -> None:
    assert guarded.database.rows("SELECT value FROM reports FOR UPDATE") == [("first",)]


# --- presenting, in any language ------------------------------------------------------------------
def test_g6_any_client_presents_its_sequencer_by_one_call(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.database.connect() as native:
        run(native, "START TRANSACTION")
        guarded.present(native, 5)
        run(native, "UPDATE reports SET value = 'from elsewhere'")
        run(native, guarded.sql.commit_presented)
        assert guarded.value() == "from elsewhere"
        with pytest.raises(guarded.sql.client_error, match=guarded.sql.unfenced):
            run(native, "UPDATE reports SET value = 'the next transaction'")


def test_g6_a_client_seals_by_one_call_too(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        for _ in range(2):
            run(native, f"{guarded.sql.call}seal(%s, 'reports')", str(sequencer(5)))
        with pytest.raises(
            guarded.sql.client_error, match="token 4 at mark 5 of resource reports: a newer holder"
        ) as caught:
            run(native, f"{guarded.sql.call}seal(%s, 'reports')", str(sequencer(4)))
        assert guarded.sql.code_of(caught.value) == "FL002"
    assert guarded.guard().mark().token == 5
    with guarded.guard().transaction(HandmadeLease(5)) as own:
        run(own, "UPDATE reports SET value = 'the same lease'")


PROOF = sequencer(5).proof
SAME_TOKEN = r"another lease has sealed (it|the resource) with th(e same|is) token"
REFUSALS = {
    "FL002 lower": (sequencer(4), "token 4 at mark 5 of resource reports: a newer holder has sealed"),
    "FL003 collision": (sequencer(5, claim="another"), SAME_TOKEN),
    "FL003 history": (sequencer(5, history_id="another"), SAME_TOKEN),
    "FL004 lock": (sequencer(5, lock="another"), "bound to another lock"),
    "FL004 source": (sequencer(5, source_id="another"), "bound to another source"),
    "FL005 not sealed": (sequencer(6), "token 6 at mark 5 of resource reports: this token has not sealed"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_g1_what_is_not_the_mark_is_refused_with_its_reason(guarded: Guarded, kind: str) -> None:
    guarded.sealed(5)
    credential, reason = REFUSALS[kind]
    with guarded.database.connect() as native:
        run(native, "START TRANSACTION")
        with pytest.raises(guarded.sql.client_error, match=reason) as caught:
            run(native, f"{guarded.sql.call}present(%s, 'reports')", str(credential))
        assert guarded.sql.code_of(caught.value) == kind[:5]
        guarded.sql.after_error(native)
        with pytest.raises(guarded.sql.client_error, match=guarded.sql.unfenced):
            run(native, "DELETE FROM reports")


def test_g10_a_closed_mark_is_refused_and_an_operators(guarded: Guarded) -> None:
    lease = guarded.sealed(5)
    guarded.guard().close(lease)
    with guarded.database.connect() as native:
        run(native, "START TRANSACTION")
        with pytest.raises(guarded.sql.client_error, match="its own holder closed it"):
            guarded.present(native, 5)
        run(native, "ROLLBACK")
        guarded.guard().raise_to(7, reason="a test")
        run(native, "START TRANSACTION")
        with pytest.raises(guarded.sql.client_error, match=r"an operator has raised (the mark|it)"):
            guarded.present(native, 7)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fl2",
        f"fl1.source.history.x.5.{PROOF}.bmlnaHRseS1yZXBvcnQ",
        f"fl1.0.source.history.x.5.{PROOF}.bmlnaHRseS1yZXBvcnQ.",
        f"FL2.0.source.history.x.5.{PROOF}.bmlnaHRseS1yZXBvcnQ.",
        f"fl2.0.source.history.s.5.{PROOF}.bmlnaHRseS1yZXBvcnQ.",
        f"fl2.0.source.history.x.0.{PROOF}.bmlnaHRseS1yZXBvcnQ.",
        f"fl2.0.source.history.x.9223372036854775808.{PROOF}.bmlnaHRseS1yZXBvcnQ.",
        f"fl2.0.source.history.x.5.{PROOF.upper()}.bmlnaHRseS1yZXBvcnQ.",
        f"fl2.0.source.history.x.5.{PROOF[:31]}.bmlnaHRseS1yZXBvcnQ.",
        f"fl2.0.source.history.x.5.{PROOF[:31]} .bmlnaHRseS1yZXBvcnQ.",
        f"fl2.0.source.history.x.5.{PROOF}..",
        f"fl2.0.source.history.x.5.{PROOF}.bmlna.",
        f"fl2.0.source.history.x.5.{PROOF}.bmlnaHRseS1yZXBvcnQ",
        f"fl2.0.source.history.x.5.{PROOF}.bmlnaHRseS1yZXBvcnQ.signature",
        f"fl2.key.source.history.x.5.{PROOF}.bmlnaHRseS1yZXBvcnQ.",
        f"fl2.0.source.history.x.5.{PROOF}.bmlnaHRseS1yZXBvcnQ..more",
        "x" * 5000,
    ],
)
@pytest.mark.parametrize("routine", ["present", "seal"])
def test_a_text_that_is_no_sequencer_is_refused_without_showing_it(guarded: Guarded, routine: str, text: str) -> None:
    with guarded.database.connect() as native:
        if routine == "present":
            run(native, "START TRANSACTION")
        with pytest.raises(guarded.sql.client_error, match="not a sequencer") as caught:
            run(native, f"{guarded.sql.call}{routine}(%s, 'reports')", text)
    assert guarded.sql.code_of(caught.value) == guarded.sql.no_sequencer
    assert PROOF not in str(caught.value)


@pytest.mark.parametrize("lock", ["a", "ab", "abc", "nächtlich-ü", "'\"\\%_", "x" * 512, "\U0001f512"])
def test_every_lock_name_survives_the_sequencer(sql: SqlDialect, database: Any, lock: str) -> None:
    database.rows("CREATE TABLE reports (id int)")
    guard = fencelock.guard(database.url(), resource="r", lock=lock)
    guard.protect("reports")
    guard.seal(HandmadeLease(5, lock=lock))
    with database.connect() as native:
        run(native, sql.odd_setting)
        run(native, "START TRANSACTION")
        run(native, f"{sql.call}present(%s, 'r')", str(sequencer(5, lock=lock)))
        run(native, "INSERT INTO reports VALUES (1)")
        run(native, sql.commit_presented)
    assert guard.mark().lock == lock


# --- nothing else counts as presenting ------------------------------------------------------------
def test_g6_a_token_that_was_withdrawn_admits_nothing(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.client() as native:
        run(native, "START TRANSACTION")
        guarded.present(native, 5)
        run(native, "UPDATE reports SET value = 'admitted'")
        run(native, guarded.sql.withdraw)
        with pytest.raises(guarded.sql.client_error, match=guarded.sql.unfenced):
            run(native, "DELETE FROM reports")
        if guarded.sql.name == "mysql":  # An error ends no transaction here.
            run(native, "COMMIT")
            assert guarded.value() == "admitted"


def test_g6_each_resource_needs_its_own_token(guarded: Guarded) -> None:
    guarded.database.rows("CREATE TABLE orders (id int)")
    fencelock.guard(guarded.database.url(), resource="orders", lock=LOCK).protect("orders")
    block = guarded.guard().transaction(HandmadeLease(5))
    reason = "orders belongs to resource orders|Resource: orders"
    with pytest.raises(UnfencedWriteError, match=reason), block as own:
        run(own, "INSERT INTO orders VALUES (1)")
    both = guarded.guard("reports", "orders")
    with both.transaction(HandmadeLease(6)) as own:
        run(own, "INSERT INTO orders VALUES (1)")
        run(own, "UPDATE reports SET value = 'both'")
    with guarded.database.connect() as native:
        run(native, "START TRANSACTION")
        guarded.present(native, 6, "orders", "reports", "orders")
        run(native, "UPDATE reports SET value = 'both, by hand'")
        run(native, "DELETE FROM orders")
        run(native, guarded.sql.commit_presented)
    assert guarded.value() == "both, by hand"


# --- what keeps itself (G8) -----------------------------------------------------------------------
FORBIDDEN = {
    "lowering": "UPDATE {prefix}mark SET token = 4",
    "forgetting": "UPDATE {prefix}mark SET token = NULL",
    "deleting": "DELETE FROM {prefix}mark",
    "taking over": "UPDATE {prefix}mark SET digest = 'another'",
    "another history": "UPDATE {prefix}mark SET history_id = 'another'",
    "another source": "UPDATE {prefix}mark SET source_id = 'another', token = 9",
    "another lock": "UPDATE {prefix}mark SET {lock} = 'another', token = 9",
    "another name": "UPDATE {prefix}mark SET resource = 'another'",
    "reopening": "UPDATE {prefix}mark SET is_closed = false",
    "token 0": "UPDATE {prefix}mark SET token = 0",
    "an audit entry that is not there": "UPDATE {prefix}mark SET token = 4, audit_id = 77",
    "an audit entry of another change": "UPDATE {prefix}mark SET token = 3, audit_id = 1",
    "an audit entry that was used": "UPDATE {prefix}mark SET token = 4, audit_id = NULL",
    "changing the audit": "UPDATE {prefix}guard_audit SET reason = 'another'",
    "deleting the audit": "DELETE FROM {prefix}guard_audit",
}


def test_g8_marks_and_audit_keep_themselves_even_from_their_owner(guarded: Guarded) -> None:
    guard, sql = guarded.guard(), guarded.sql
    guard.raise_to(9, reason="first")
    guard.lower(5, reason="second")
    guard.close(HandmadeLease(7))
    look = f"SELECT * FROM {sql.prefix}mark, {sql.prefix}guard_audit ORDER BY id"
    before = guarded.database.rows(look)
    assert len(before) == 2
    with guarded.database.connect() as native:
        for what, statement in (FORBIDDEN | sql.also_forbidden).items():
            with pytest.raises(sql.client_error) as caught:
                run(native, statement.format(prefix=sql.prefix, lock=sql.lock_column))
            assert sql.code_of(caught.value) in sql.keeps_itself, what
    assert guarded.database.rows(look) == before


def test_g8_what_operators_do_is_audited_with_their_account(guarded: Guarded) -> None:
    guard, sql = guarded.guard(), guarded.sql
    guard.raise_to(9, reason="restored")
    guard.lower(5, reason="poisoned: 'quoted' \\ 100 %")
    guard.unprotect(reason="moved")
    rows = guarded.database.rows(
        f"SELECT action, from_token, to_token, reason, {sql.is_by_admin}, who <> '' FROM {sql.prefix}guard_audit "
        "ORDER BY id"
    )
    assert rows == [
        ("raise-to", 0, 9, "restored", True, True),
        ("lower", 9, 5, "poisoned: 'quoted' \\ 100 %", True, True),
        ("unprotect", 5, 5, f"moved ({sql.schema_of(guarded.database)}.reports)", True, True),
    ]


def test_stale_leases_get_errors_of_fencelock_with_the_numbers(guarded: Guarded) -> None:
    old = guarded.sealed(5)
    guarded.sealed(8)
    with pytest.raises(StaleTokenError) as caught, guarded.guard().transaction(old):
        raise AssertionError("not reached")
    assert (caught.value.token, caught.value.mark, caught.value.resource) == (5, 8, "reports")


def test_present_in_a_guarded_block_raises_errors_of_fencelock(guarded: Guarded) -> None:
    guarded.guard("other").seal(HandmadeLease(9))
    for credential, kind in ((sequencer(8), StaleTokenError), (sequencer(10), GuardError)):
        with pytest.raises(kind), guarded.guard().transaction(HandmadeLease(5)) as own:
            run(own, f"{guarded.sql.call}present(%s, 'other')", str(credential))
