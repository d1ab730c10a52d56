"""What accounts can do at MySQL's guard, and what doctor says of them and of what was broken."""

import re
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from fencelock import GuardError
from fencelock.model import Finding, one_way
from fencelock.stores.mysql.connection.expressions import expand
from fencelock.stores.mysql.guard.store import MySQLGuard
from tests.sql.dialect import run
from tests.sql.guarded import Guarded
from tests.sql.mysql.dialect import UNFENCED
from tests.support.guards import HandmadeLease, sequencer

pytestmark = pytest.mark.server_wide

UNFENCED_WRITE = "UPDATE reports SET value = 'unfenced'"


def findings(guarded: Guarded, **login: Any) -> dict[str, Finding]:
    return {finding.code: finding for finding in MySQLGuard(guarded.database.url(**login)).examine()}


# --- roles ----------------------------------------------------------------------------------------
ROUTINES = (
    *(
        "begin",
        "finish",
        "commit",
        "unbind",
        "draw_mask",
        "open",
        "offer",
        "take_back",
        "check_marks",
        "read_marks",
        "write_and_commit",
    ),
    *(
        "record_refusal",
        "show_marks",
        "show_rights",
        "show_triggers",
        "show_observations",
        "show_floors",
        "seal",
        "present",
        "withdraw",
        "rollback",
    ),
)


@pytest.fixture
def clerk(guarded: Guarded) -> Iterator[str]:
    """An account with the rights of a holder, as the reference lists them."""
    name = f"clerk_{guarded.database.name}"
    grant = f"{guarded.database.name}"
    guarded.database.rows(f"CREATE USER {name}")
    guarded.database.rows(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {grant}.reports TO {name}")
    for routine in ROUTINES:
        guarded.database.rows(f"GRANT EXECUTE ON PROCEDURE {grant}.fencelock_{routine} TO {name}")
    guarded.guard().grant(name)
    yield name
    guarded.database.rows(f"DROP USER {name}")


def test_a_holder_needs_its_tables_and_the_routines(guarded: Guarded, clerk: str) -> None:
    guard = guarded.guard(user=clerk)
    with guard.transaction(HandmadeLease(5)) as own:
        run(own, "UPDATE reports SET value = 'by a clerk'")
    assert (guarded.value(), guard.mark().token) == ("by a clerk", 5)
    with guarded.database.connect(user=clerk, autocommit=False) as native:
        guarded.present(native, 5)
        run(native, "UPDATE reports SET value = 'by hand'")
        run(native, "CALL fencelock_commit()")
    guard.close(HandmadeLease(5))
    assert guarded.value() == "by hand"
    assert findings(guarded, user=clerk) == {}


def test_a_holder_reads_no_proof_and_changes_no_mark(guarded: Guarded, clerk: str) -> None:
    guarded.sealed(5)
    with guarded.database.connect(user=clerk) as native:
        for table in ("mark", "guard", "guard_audit", "observation", "protection"):
            for statement in (f"SELECT * FROM fencelock_{table}", f"DELETE FROM fencelock_{table}"):
                with pytest.raises(pymysql.Error, match="denied"):
                    run(native, statement)
        run(native, "START TRANSACTION")
        for call in ("show_marks(NULL)", "show_triggers(NULL)", "read_marks('7265706F727473', NULL, 'shared')"):
            assert sequencer(5).proof not in str(run(native, f"CALL fencelock_{call}"))
        run(native, "ROLLBACK")
        run(native, "CALL fencelock_begin('7265706F727473', NULL, 'shared', 5, NULL)")
        with pytest.raises(pymysql.Error, match=UNFENCED):
            run(native, UNFENCED_WRITE)
        run(native, "ROLLBACK")
    for attempt in (
        lambda: guarded.guard(user=clerk).lower(3, reason="x"),
        lambda: guarded.guard(user=clerk).unprotect(reason="x"),
        lambda: guarded.guard(user=clerk).protect("reports", mode="observe"),
    ):
        with pytest.raises(GuardError, match="does not permit"):
            attempt()
    assert guarded.guard().mark().token == 5
    with pytest.raises(pymysql.Error, match=UNFENCED):
        guarded.database.rows(UNFENCED_WRITE)


# --- doctor ---------------------------------------------------------------------------------------
def test_doctor_finds_no_marks_where_there_are_none(unprotected: Guarded) -> None:
    assert set(findings(unprotected)) == {"no-marks"}


def test_doctor_names_accounts_that_go_past_the_triggers(guarded: Guarded) -> None:
    found = [one for one in MySQLGuard(guarded.database.url()).examine() if one.code == "powerful-role"]
    [root] = [one for one in found if "'root'@" in one.message][:1]
    assert "DROP" in root.message
    assert "TRUNCATE" in root.message
    name = f"dropper_{guarded.database.name}"
    guarded.database.rows(f"CREATE USER {name}")
    guarded.database.rows(f"GRANT SELECT, INSERT, DROP, EXECUTE ON `{guarded.database.name}`.* TO {name}")
    try:
        codes = findings(guarded, user=name)
        assert "by DROP" in codes["powerful-role"].message
        assert "on all tables of the database: marks" in codes["open-marks"].message
    finally:
        guarded.database.rows(f"DROP USER {name}")


def test_g1_a_sessions_own_temporary_table_does_not_stand_in_for_the_marks(guarded: Guarded, clerk: str) -> None:
    guarded.sealed(5)
    guarded.database.rows(f"GRANT CREATE TEMPORARY TABLES ON `{guarded.database.name}`.* TO {clerk}")
    assert "powerful-role" not in findings(guarded, user=clerk)
    with guarded.database.connect(user=clerk) as native:
        run(
            native,
            "CREATE TEMPORARY TABLE fencelock_mark SELECT x'7265706f727473' AS resource, 1 AS token, %s AS digest",
            one_way("mine"),
        )
        run(native, "ALTER TABLE fencelock_mark ADD is_closed BOOLEAN NOT NULL DEFAULT FALSE, ADD stamp INT DEFAULT 7")
        entry = expand("PRESENTED('7265706F727473', 1, 7)")
        run(native, f"SET @fencelock_presented = CONCAT(',', {entry})")
        with pytest.raises(pymysql.Error, match="PARTITION"):
            run(native, "UPDATE reports SET value = 'forged'")
    assert guarded.value() != "forged"


@pytest.mark.parametrize("hidden", ["floor", "effect"])
def test_g15_a_sessions_own_temporary_table_does_not_stand_in_for_floors_and_effects(
    guarded: Guarded, clerk: str, hidden: str
) -> None:
    lease = guarded.sealed(5)
    guarded.database.rows(f"GRANT CREATE TEMPORARY TABLES ON `{guarded.database.name}`.* TO {clerk}")
    guarded.database.rows(f"GRANT EXECUTE ON `{guarded.database.name}`.* TO {clerk}")
    calls = {
        "floor": ("CALL fencelock_seal(%s, 'never sealed')", str(lease.sequencer)),
        "effect": ("CALL fencelock_read_effect('reports', 'key')",),
    }
    guarded.guard().grant(clerk, resource="*")
    with guarded.database.connect(user=clerk) as native:
        run(native, f"CREATE TEMPORARY TABLE fencelock_{hidden} (source_id varbinary(64), token bigint)")
        with pytest.raises(pymysql.Error, match="PARTITION"):
            run(native, *calls[hidden])


def test_doctor_names_the_tables_that_an_account_has_rights_on_and_no_others(guarded: Guarded) -> None:
    database, name = guarded.database.name, f"dropper_{guarded.database.name}"
    for table in ("orders", "plain"):
        guarded.database.rows(f"CREATE TABLE {table} (id int)")
    guarded.guard().protect("orders")
    guarded.database.rows(f"CREATE USER {name}")

    def powers() -> list[str]:
        found = MySQLGuard(guarded.database.url()).examine()
        return [one.message for one in found if one.code == "powerful-role" and f"'{name}'@" in one.message]

    try:
        guarded.database.rows(f"GRANT DROP, ALTER, TRIGGER ON `{database}`.plain TO {name}")
        assert powers() == []
        for table, named in (("reports", "reports"), ("orders", "orders, reports")):
            guarded.database.rows(f"GRANT DROP ON `{database}`.{table} TO {name}")
            [message] = powers()
            assert f"the triggers of {named}, by DROP:" in message
        guarded.database.rows(f"REVOKE DROP ON `{database}`.orders FROM {name}")
        guarded.database.rows(f"GRANT ALTER ON `{database}`.* TO {name}")
        on_all, on_one = powers()
        assert "the triggers of orders, reports, by ALTER:" in on_all
        assert "the triggers of reports, by DROP:" in on_one
    finally:
        guarded.database.rows(f"DROP USER {name}")


def test_doctor_names_accounts_that_may_empty_the_table_of_marks(guarded: Guarded, clerk: str) -> None:
    """TRUNCATE needs the right DROP, and meets no trigger that protects the marks."""
    guarded.database.rows(f"GRANT DROP ON {guarded.database.name}.fencelock_mark TO {clerk}")
    assert f"'{clerk}'@'%' has DROP on fencelock_mark" in findings(guarded, user=clerk)["open-marks"].message
    with guarded.database.connect(user=clerk) as native:
        run(native, "TRUNCATE fencelock_mark")
    assert guarded.database.rows("SELECT * FROM fencelock_mark") == []


@pytest.mark.parametrize("table", ["fencelock_right", "fencelock_guard_key", "fencelock_guard"])
def test_doctor_names_accounts_that_may_give_themselves_rights_or_read_secrets(
    guarded: Guarded, clerk: str, table: str
) -> None:
    guarded.database.rows(f"GRANT SELECT, INSERT ON {guarded.database.name}.{table} TO {clerk}")
    assert f"'{clerk}'@'%' has INSERT, SELECT on {table}" in findings(guarded, user=clerk)["open-marks"].message


BROKEN = {
    "lost-protection": (
        ("DROP TRIGGER fencelock_1_delete_enforce",),
        "only insert, update writes meet a trigger of fencelock",
    ),
    "open-cascade": (
        (
            "CREATE TABLE parent (id int PRIMARY KEY)",
            "CREATE TABLE child (id int PRIMARY KEY, FOREIGN KEY (id) REFERENCES parent (id) ON DELETE CASCADE)",
            "protect child",
        ),
        "any writer of parent writes here",
    ),
    "open-reference": (
        ("CREATE TABLE child (id int PRIMARY KEY, FOREIGN KEY (id) REFERENCES reports (id) ON DELETE CASCADE)",),
        "table child is not protected",
    ),
    "late-trigger": (
        ("CREATE TRIGGER early BEFORE INSERT ON reports FOR EACH ROW PRECEDES fencelock_1_insert_enforce SET @x = 1",),
        "another trigger",
    ),
    "not-transactional": (("ALTER TABLE reports ENGINE = MyISAM",), "has the engine MyISAM"),
    "unflushed": (("SET GLOBAL innodb_flush_log_at_trx_commit = 2",), "innodb_flush_log_at_trx_commit is 2"),
    "only-observed": (("observe reports",), "only observed"),
}


@pytest.mark.parametrize("code", BROKEN)
def test_doctor_finds_what_was_broken_and_nothing_before(guarded: Guarded, code: str) -> None:
    assert code not in findings(guarded)
    statements, message = BROKEN[code]
    try:
        for statement in statements:
            if statement.startswith("protect "):
                guarded.guard().protect(statement.removeprefix("protect "))
            elif statement.startswith("observe "):
                guarded.guard().protect(statement.removeprefix("observe "), mode="observe")
            else:
                guarded.database.rows(statement)
        assert message in findings(guarded)[code].message
    finally:
        guarded.database.rows("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def test_a_cascade_into_a_protected_table_meets_no_trigger(guarded: Guarded) -> None:
    """What doctor warns of is so: this pins the server's behaviour."""
    guarded.database.rows("CREATE TABLE parent (id int PRIMARY KEY)")
    guarded.database.rows("INSERT INTO parent VALUES (1)")
    guarded.database.rows(
        "CREATE TABLE child (id int PRIMARY KEY, FOREIGN KEY (id) REFERENCES parent (id) ON DELETE CASCADE)"
    )
    guarded.database.rows("INSERT INTO child VALUES (1)")
    guarded.guard().protect("child")
    guarded.database.rows("DELETE FROM parent")
    assert guarded.database.rows("SELECT * FROM child") == []


def test_truncate_meets_no_trigger(guarded: Guarded) -> None:
    guarded.database.rows("TRUNCATE reports")
    assert guarded.database.rows("SELECT * FROM reports") == []


def test_doctor_cannot_log_in_and_says_so(guarded: Guarded) -> None:
    assert set(findings(guarded, user="nobody_of_that_name")) == {"guard-refused"}


def test_a_refusal_shows_no_proof(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.database.connect(autocommit=False) as native, pytest.raises(pymysql.Error) as caught:
        run(native, "CALL fencelock_present(%s, 'reports')", str(sequencer(4)))
    assert not re.search("[0-9a-f]{32}", str(caught.value))
