"""Protecting MySQL's tables, whose DDL commits by itself, step by step; observing, roles, and what doctor says."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

import fencelock
from fencelock import GuardError, SchemaError, SourceInfo, SourceUnavailableError
from fencelock.model import Finding
from fencelock.stores.mysql.connection.url import parse_url
from fencelock.stores.mysql.guard import block as guard_block
from fencelock.stores.mysql.guard import store as guard_store
from fencelock.stores.mysql.guard.codec import SeparateConnection
from fencelock.stores.mysql.guard.store import MySQLGuard
from fencelock_lab.servers.mariadb import MariaDBServer
from tests.guards import LOCK, RESOURCE, HandmadeLease, sequencer
from tests.sql.dialect import run
from tests.sql.guarded import TABLE, Guarded, Step
from tests.sql.mysql.dialect import UNFENCED
from tests.sql.mysql.fix_mysql import Database

pytestmark = pytest.mark.server_wide

SOURCE = SourceInfo("source", 1, "history", 7, 7)
UNFENCED_WRITE = "UPDATE reports SET value = 'unfenced'"


def own_triggers(database: Database) -> list[str]:
    statement = (
        "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS "
        "WHERE TRIGGER_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE = 'reports' ORDER BY 1"
    )
    return [row[0] for row in database.rows(statement)]


def findings(guarded: Guarded, **login: Any) -> dict[str, Finding]:
    return {finding.code: finding for finding in MySQLGuard(guarded.database.url(**login)).examine()}


# --- installing -----------------------------------------------------------------------------------
def test_an_installation_that_is_broken_off_anywhere_is_completed_by_the_next(
    unprotected: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = parse_url(unprotected.database.url())
    performed = guard_store.results

    class BrokenOffError(Exception):
        pass

    def install_until(last: int) -> int:
        count = 0

        def counted(native: Any, statement: str) -> Any:
            nonlocal count
            count += 1
            if count > last:
                raise BrokenOffError
            return performed(native, statement)

        with monkeypatch.context() as patch:
            patch.setattr(guard_store, "results", counted)
            guard_store.install(place)
        return count

    for last in (4, 9, 15, 30, 60):
        with pytest.raises(BrokenOffError):
            install_until(last)
        with pytest.raises(SchemaError):
            unprotected.guard().seal(HandmadeLease(5))
    guard_store.install(place)
    assert install_until(2) == 2, "and one that is there is left as it is"
    unprotected.guard().seal(HandmadeLease(5))


def test_installing_at_the_same_time_makes_one_schema(unprotected: Guarded) -> None:
    store = MySQLGuard(unprotected.database.url())
    for step in [Step(store.install) for _ in range(4)]:
        step.end()
    assert unprotected.database.value("SELECT COUNT(*) FROM fencelock_guard") == 1


def test_another_schema_is_refused(guarded: Guarded) -> None:
    guarded.database.rows("UPDATE fencelock_guard SET schema_number = 2")
    for attempt in (lambda: guarded.sealed(5), MySQLGuard(guarded.database.url()).install):
        with pytest.raises(SchemaError, match="guard schema 2, and this fencelock knows schema 1"):
            attempt()


def test_an_installation_is_not_done_where_a_table_is_somebody_elses(unprotected: Guarded) -> None:
    unprotected.database.rows("CREATE TABLE fencelock_observation (name varchar(40), colour int)")
    for _ in range(2):
        with pytest.raises(SchemaError, match=r"a table fencelock_observation that is not fencelock's own .*rename"):
            unprotected.guard().protect("reports")
    unprotected.database.rows("RENAME TABLE fencelock_observation TO theirs")
    unprotected.guard().protect("reports")
    unprotected.sealed(5)


def test_a_guard_whose_account_is_gone_says_so(unprotected: Guarded) -> None:
    name = f"keeper_{unprotected.database.name}"
    unprotected.database.rows(f"CREATE USER {name}")
    unprotected.database.rows(f"GRANT ALL ON `{unprotected.database.name}`.* TO {name}")
    unprotected.guard(user=name).protect("reports")
    unprotected.database.rows(f"DROP USER {name}")
    with pytest.raises(SchemaError, match=r"account that is gone .*have it made again"):
        unprotected.sealed(5)
    assert "account that is gone" in findings(unprotected)["guard-refused"].message


def test_a_database_without_a_schema_says_what_to_run(unprotected: Guarded) -> None:
    for attempt in (unprotected.guard().mark, lambda: unprotected.sealed(5)):
        with pytest.raises(SchemaError, match=r"run `fencelock protect mysql://.*--resource"):
            attempt()


# --- protecting step by step ----------------------------------------------------------------------
def protect_until(guarded: Guarded, last: int, monkeypatch: pytest.MonkeyPatch, **named: Any) -> int:
    """Protect, and have the process end before one more than so many statements of the DDL's connection."""
    count = 0
    aside = guard_block.MySQLGuardConnection._exchange

    def counted(connection: Any, said: Any) -> Any:
        nonlocal count
        if count >= last:
            # A process that is dead says nothing more, on either connection.
            raise KeyboardInterrupt
        count += isinstance(said, SeparateConnection)
        return aside(connection, said)

    with monkeypatch.context() as patch:
        patch.setattr(guard_block.MySQLGuardConnection, "_exchange", counted)
        guarded.guard().protect("reports", **named)
    return count


@pytest.mark.parametrize(("before", "after"), [("enforce", "observe"), ("observe", "enforce")])
def test_no_step_of_a_switch_leaves_an_enforced_table_open(
    unprotected: Guarded, monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    guard, last = unprotected.guard(), 0
    while True:
        guard.protect("reports", mode=before, source=SOURCE)
        last += 1
        try:
            protect_until(unprotected, last, monkeypatch, mode=after, source=SOURCE)
        except KeyboardInterrupt:
            mode_now = {one.rpartition("_")[2] for one in own_triggers(unprotected.database)}
            if before == "enforce":
                assert "enforce" in mode_now
                with pytest.raises(pymysql.Error, match=UNFENCED):
                    unprotected.database.rows(UNFENCED_WRITE)
            guard.protect("reports", mode=after, source=SOURCE)
            assert len(own_triggers(unprotected.database)) == 3
            assert guard.mark().token == 7 or after == "observe"
        else:
            break
    assert last > 6
    assert {one.rpartition("_")[2] for one in own_triggers(unprotected.database)} == {after}


def test_a_switch_without_its_source_changes_nothing(unprotected: Guarded) -> None:
    unprotected.guard().protect("reports", mode="observe")
    before = own_triggers(unprotected.database)
    with pytest.raises(GuardError, match="say which: source"):
        unprotected.guard().protect("reports")
    assert own_triggers(unprotected.database) == before
    unprotected.database.rows(UNFENCED_WRITE)


def test_protecting_waits_a_few_seconds_for_open_writers(unprotected: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = guard_block.SQL.settle_separate.format(limit_s=1)
    monkeypatch.setattr(guard_block, "SETTLE_SEPARATE", prepared)
    with unprotected.database.connect(autocommit=False) as native:
        run(native, UNFENCED_WRITE)
        with pytest.raises(SourceUnavailableError, match="try again"):
            unprotected.guard().protect("reports")
    unprotected.guard().protect("reports")
    with pytest.raises(pymysql.Error, match=UNFENCED):
        unprotected.database.rows(UNFENCED_WRITE)


def test_a_renamed_table_stays_protected_and_one_made_anew_is_free_until_protected(guarded: Guarded) -> None:
    guarded.database.rows("RENAME TABLE reports TO moved")
    with pytest.raises(pymysql.Error, match=UNFENCED):
        guarded.database.rows("DELETE FROM moved")
    with guarded.guard().transaction(HandmadeLease(5)) as own:
        run(own, "UPDATE moved SET value = 'fenced'")
    guarded.guard().protect("moved")
    guarded.database.rows("DROP TABLE moved")
    guarded.database.rows("CREATE TABLE moved (id int PRIMARY KEY)")
    guarded.database.rows("INSERT INTO moved VALUES (1)")
    guarded.guard().protect("moved")
    with pytest.raises(pymysql.Error, match=UNFENCED):
        guarded.database.rows("DELETE FROM moved")
    assert guarded.database.value("SELECT COUNT(*) FROM fencelock_protection") == 1


@pytest.mark.parametrize("name", ["odd`name", "with space", "ünï", "a-b", "%s", "x" * 64])
def test_any_name_of_a_table_is_quoted(unprotected: Guarded, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    with unprotected.database.connect() as native, native.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {quoted} (id int PRIMARY KEY)")
        unprotected.guard().protect(quoted, mode="observe")
        cursor.execute(f"INSERT INTO {quoted} VALUES (1)")
        unprotected.guard().protect(f"{unprotected.database.name}.{quoted}", source=SOURCE)
        with pytest.raises(pymysql.Error, match=UNFENCED):
            cursor.execute(f"INSERT INTO {quoted} VALUES (2)")
    unprotected.guard().unprotect(quoted, reason="a test")


CANNOT = {
    "a view": ("CREATE VIEW other AS SELECT 1", "other", "it is a view"),
    "another engine": ("CREATE TABLE other (id int) ENGINE = MyISAM", "other", "of the engine MyISAM"),
    "none": ("SELECT 1", "nowhere", "there is no table 'nowhere'"),
    "another database": ("SELECT 1", "mysql.user", "is not in database"),
    "no name": ("SELECT 1", "a.b.c", "is not the name of a table"),
    "ours": ("SELECT 1", "fencelock_mark", "one of fencelock's own"),
}


@pytest.mark.parametrize("what", CANNOT)
def test_what_cannot_be_protected_is_refused_with_the_reason(guarded: Guarded, what: str) -> None:
    statement, name, reason = CANNOT[what]
    guarded.database.rows(statement)
    with pytest.raises(GuardError, match=reason):
        guarded.guard().protect(name)


def test_unprotecting_takes_every_trigger_off(guarded: Guarded) -> None:
    guarded.guard().unprotect(reason="a test")
    assert own_triggers(guarded.database) == []
    guarded.database.rows(UNFENCED_WRITE)
    with pytest.raises(GuardError, match="protects no table here"):
        guarded.guard().unprotect(reason="again")


def test_with_the_binary_log_on_who_may_make_no_trigger_is_told_why(own_mysql: MariaDBServer) -> None:
    own_mysql.stop()
    own_mysql.settings |= {"log_bin": str(own_mysql.folder / "log"), "server_id": 7}
    own_mysql.start()
    own_mysql.rows("CREATE DATABASE app")
    for statement in TABLE:
        own_mysql.rows(statement, database="app")
    own_mysql.rows("CREATE USER maker")
    own_mysql.rows("GRANT ALL ON app.* TO maker")
    url = own_mysql.url(user="maker", database="app")
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    with pytest.raises(GuardError, match="log_bin_trust_function_creators"):
        guard.protect("reports")
    own_mysql.rows("SET GLOBAL log_bin_trust_function_creators = 1")
    guard.protect("reports")
    with guard.transaction(HandmadeLease(5)) as own:
        run(own, "UPDATE reports SET value = 'logged'")
    assert own_mysql.rows("SELECT value FROM reports", database="app") == [("logged",)]


# --- observing ------------------------------------------------------------------------------------
def test_observing_records_who_and_counts_statements(unprotected: Guarded) -> None:
    unprotected.guard().protect("reports", mode="observe")
    with unprotected.database.connect() as native:
        run(native, "INSERT INTO reports VALUES (2, 'x'), (3, 'x'), (4, 'x')")
        run(native, UNFENCED_WRITE)
        run(native, UNFENCED_WRITE)
        run(native, "DELETE FROM reports WHERE id > 1")
        run(native, "UPDATE reports SET value = 'x' WHERE id = 99")
    command = [sys.executable, "-m", "fencelock.cli", "marks", unprotected.database.url(), "--json"]
    shown = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    [of_reports] = shown
    seen = {one["kind"]: one["times"] for one in of_reports["observed"]}
    assert seen == {"insert": 1, "update": 2, "delete": 1}
    assert {one["role"] for one in of_reports["observed"]} == {"root"}
    assert {one["address"] for one in of_reports["observed"]} == {"127.0.0.1"}
    assert all(one["first_at"] <= one["last_at"] and one["first_at"].endswith("Z") for one in of_reports["observed"])


def test_observing_neither_blocks_nor_breaks_writers(unprotected: Guarded) -> None:
    unprotected.guard().protect("reports", mode="observe")
    unprotected.database.rows("INSERT INTO reports VALUES (2, 'second')")
    with unprotected.client("serializable") as first, unprotected.client("repeatable read") as second:
        for native, key in ((first, 1), (second, 2)):
            run(native, "SET SESSION innodb_lock_wait_timeout = 1")
            run(native, "START TRANSACTION")
            run(native, "UPDATE reports SET value = 'x' WHERE id = %s", key)
        run(first, "COMMIT")
        run(second, "COMMIT")
        unprotected.database.rows("RENAME TABLE fencelock_observation TO gone")
        run(first, "UPDATE reports SET value = 'y' WHERE id = 1")
    assert unprotected.value() == "y"


# --- roles ----------------------------------------------------------------------------------------
ROUTINES = (
    *(
        "begin",
        "finish",
        "commit",
        "unbind",
        "open",
        "offer",
        "take_back",
        "check_marks",
        "read_marks",
        "write_and_commit",
    ),
    *("record_refusal", "show_marks", "show_triggers", "show_observations", "seal", "present", "withdraw", "rollback"),
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


def test_a_holder_reads_no_claim_and_changes_no_mark(guarded: Guarded, clerk: str) -> None:
    guarded.sealed(5)
    with guarded.database.connect(user=clerk) as native:
        for table in ("mark", "guard", "guard_audit", "observation", "protection"):
            for statement in (f"SELECT * FROM fencelock_{table}", f"DELETE FROM fencelock_{table}"):
                with pytest.raises(pymysql.Error, match="denied"):
                    run(native, statement)
        for call in ("show_marks(NULL)", "show_triggers(NULL)", "read_marks('7265706F727473', NULL, 'shared')"):
            assert "claim-5" not in str(run(native, f"CALL fencelock_{call}"))
        run(native, "CALL fencelock_begin('7265706F727473', 'claim-4', 'shared', 5)")
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
        assert "claims and marks" in codes["open-marks"].message
    finally:
        guarded.database.rows(f"DROP USER {name}")


def test_doctor_names_who_may_hide_the_marks_behind_a_temporary_table(guarded: Guarded, clerk: str) -> None:
    guarded.sealed(5)
    assert "powerful-role" not in findings(guarded, user=clerk)
    guarded.database.rows(f"GRANT CREATE TEMPORARY TABLES ON `{guarded.database.name}`.* TO {clerk}")
    assert "by CREATE TEMPORARY TABLES:" in findings(guarded, user=clerk)["powerful-role"].message
    with guarded.database.connect(user=clerk) as native:
        run(
            native,
            "CREATE TEMPORARY TABLE fencelock_mark SELECT x'7265706f727473' AS resource, 1 AS token, 'mine' AS claim",
        )
        run(native, "ALTER TABLE fencelock_mark ADD is_closed BOOLEAN NOT NULL DEFAULT FALSE")
        run(native, "SET @fencelock_presented = ',7265706F727473.1.mine,'")
        run(native, "UPDATE reports SET value = 'forged'")
    assert guarded.value() == "forged"


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
            [said] = powers()
            assert f"the triggers of {named}, by DROP:" in said
        guarded.database.rows(f"REVOKE DROP ON `{database}`.orders FROM {name}")
        guarded.database.rows(f"GRANT ALTER ON `{database}`.* TO {name}")
        on_all, on_one = powers()
        assert "the triggers of orders, reports, by ALTER:" in on_all
        assert "the triggers of reports, by DROP:" in on_one
    finally:
        guarded.database.rows(f"DROP USER {name}")


def test_doctor_names_who_may_empty_the_table_of_marks(guarded: Guarded, clerk: str) -> None:
    """TRUNCATE needs DROP, and no trigger of ours keeps it from the marks."""
    guarded.database.rows(f"GRANT DROP ON {guarded.database.name}.fencelock_mark TO {clerk}")
    assert f"'{clerk}'@'%' has DROP on fencelock_mark" in findings(guarded, user=clerk)["open-marks"].message
    with guarded.database.connect(user=clerk) as native:
        run(native, "TRUNCATE fencelock_mark")
    assert guarded.database.rows("SELECT * FROM fencelock_mark") == []


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
    statements, said = BROKEN[code]
    try:
        for statement in statements:
            if statement.startswith("protect "):
                guarded.guard().protect(statement.removeprefix("protect "))
            elif statement.startswith("observe "):
                guarded.guard().protect(statement.removeprefix("observe "), mode="observe")
            else:
                guarded.database.rows(statement)
        assert said in findings(guarded)[code].message
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


def test_a_refused_token_is_shown_to_nobody(guarded: Guarded) -> None:
    guarded.sealed(5)
    with guarded.database.connect(autocommit=False) as native, pytest.raises(pymysql.Error) as caught:
        run(native, "CALL fencelock_present(%s, 'reports')", str(sequencer(4)))
    assert "claim" not in str(caught.value)
