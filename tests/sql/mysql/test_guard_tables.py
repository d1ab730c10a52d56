"""Installing a guard in MySQL and protecting its tables, whose DDL commits by itself, step by step; observing."""

import json
import subprocess
import sys
from functools import partial
from typing import Any

import pymysql
import pytest

import fencelock
from fencelock import GuardError, SchemaError, SourceInfo, SourceUnavailableError
from fencelock.stores.mysql.connection.url import parse_url
from fencelock.stores.mysql.guard import connection as guard_connection
from fencelock.stores.mysql.guard import store as guard_store
from fencelock.stores.mysql.guard.store import MySQLGuard
from fencelock.stores.mysql.guard.trips import SeparateConnection
from fencelock_lab.servers.mariadb import MariaDBServer
from tests.sql.dialect import run
from tests.sql.guarded import TABLE, Guarded, Step, write
from tests.sql.mysql.dialect import UNFENCED
from tests.sql.mysql.fix_mysql import Database
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide

SOURCE = SourceInfo("source", 1, "history", 7, 7)
UNFENCED_WRITE = "UPDATE reports SET value = 'unfenced'"


def own_triggers(database: Database) -> list[str]:
    statement = (
        "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS "
        "WHERE TRIGGER_SCHEMA = DATABASE() AND EVENT_OBJECT_TABLE = 'reports' ORDER BY 1"
    )
    return [row[0] for row in database.rows(statement)]


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
    assert install_until(4) == 4, "and one that is there is left as it is"
    unprotected.guard().seal(HandmadeLease(5))


def test_installing_at_the_same_time_makes_one_schema(unprotected: Guarded) -> None:
    store = MySQLGuard(unprotected.database.url())
    for step in [Step(store.install) for _ in range(4)]:
        step.end()
    assert unprotected.database.value("SELECT COUNT(*) FROM fencelock_guard") == 1


def test_an_installation_is_refused_where_a_table_is_not_of_fencelock(unprotected: Guarded) -> None:
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
    for attempt in (partial(unprotected.sealed, 5), unprotected.guard().install):
        with pytest.raises(SchemaError, match=r"account that is gone .*have it made again"):
            attempt()
    [found] = MySQLGuard(unprotected.database.url()).examine()
    assert (found.code, "account that is gone" in found.message) == ("guard-refused", True)


# --- protecting step by step ----------------------------------------------------------------------
def protect_until(guarded: Guarded, last: int, monkeypatch: pytest.MonkeyPatch, **named: Any) -> int:
    """Protect, and have the process end before one more than so many statements of the DDL's connection."""
    count = 0
    exchanged = guard_connection.MySQLGuardConnection._exchange

    def counted(connection: Any, operation: Any) -> Any:
        nonlocal count
        if count >= last:
            # A process that is dead says nothing more, on either connection.
            raise KeyboardInterrupt
        count += isinstance(operation, SeparateConnection)
        return exchanged(connection, operation)

    with monkeypatch.context() as patch:
        patch.setattr(guard_connection.MySQLGuardConnection, "_exchange", counted)
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
    prepared = guard_connection.SQL.settle_separate.format(limit_s=1)
    monkeypatch.setattr(guard_connection, "SETTLE_SEPARATE", prepared)
    with unprotected.database.connect(autocommit=False) as native:
        run(native, UNFENCED_WRITE)
        with pytest.raises(SourceUnavailableError, match="try again"):
            unprotected.guard().protect("reports")
    unprotected.guard().protect("reports")
    with pytest.raises(pymysql.Error, match=UNFENCED):
        unprotected.database.rows(UNFENCED_WRITE)


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


def test_with_the_binary_log_on_an_account_that_may_make_no_trigger_learns_why(own_mysql: MariaDBServer) -> None:
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
    [of_reports] = shown["resources"]
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


def test_g16_a_table_that_another_session_is_changing_is_not_taken_for_rebuilt(guarded: Guarded) -> None:
    database = guarded.database
    database.rows("CREATE TABLE zebra (id int)")
    waiting = (
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND STATE LIKE 'Waiting for table%'"
    )

    def block() -> None:
        with guarded.guard().transaction(HandmadeLease(5)) as native:
            write(native)

    with guarded.client() as reader:
        run(reader, "START TRANSACTION")
        run(reader, "SELECT * FROM zebra")
        # It has locked `reports` alone, and waits for `zebra`.
        renames = "RENAME TABLE reports TO moved, zebra TO z2, z2 TO zebra, moved TO reports"
        changing = Step(database.rows, renames)
        wait_until(lambda: database.value(waiting) == 1)
        writing = Step(block)
        wait_until(lambda: writing.is_done() or database.value(waiting) == 2)
        run(reader, "COMMIT")
    changing.end()
    writing.end()
    assert guarded.value() == "mine"
