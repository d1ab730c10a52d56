"""What only PostgreSQL has about protected tables: partitions, schemas, subscriptions, dumps."""

from typing import Any

import psycopg
import pytest

import fencelock
from fencelock import GuardError, SourceUnavailableError
from fencelock.stores.registry import guard_store
from tests.sql.guarded import Guarded, Step
from tests.sql.postgres.dialect import REFUSED
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource

PARTITIONED = """
    CREATE TABLE log (day int, text text) PARTITION BY RANGE (day);
    CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (1) TO (10);
    CREATE TABLE log_2 PARTITION OF log FOR VALUES FROM (10) TO (20) PARTITION BY LIST (text);
    CREATE TABLE log_2_a PARTITION OF log_2 FOR VALUES IN ('a');
    CREATE TABLE log_2_rest PARTITION OF log_2 DEFAULT;
    INSERT INTO log VALUES (1, 'a'), (11, 'a'), (11, 'b');
"""
PARTS = ["log", "log_1", "log_2", "log_2_a", "log_2_rest"]


@pytest.fixture
def log(guarded: Guarded) -> Any:
    """A guard whose table is partitioned, and its database."""
    with guarded.database.connect() as native:
        native.execute(PARTITIONED)
    guard = fencelock.guard(guarded.database.url(), resource="log", lock=LOCK)
    guard.protect("log")
    return guard


def refused(native: psycopg.Connection, statement: str) -> None:
    with pytest.raises(psycopg.Error, match=REFUSED) as caught:
        native.execute(statement)
    assert caught.value.sqlstate == "FL001", statement


def test_partitions_refuse_writes_through_the_parent_and_by_name(guarded: Guarded, log: fencelock.Guard) -> None:
    with guarded.database.connect() as native:
        for part in PARTS:
            refused(native, f"UPDATE {part} SET text = text")
            refused(native, f"DELETE FROM {part}")
            refused(native, f"TRUNCATE {part}")
        refused(native, "INSERT INTO log VALUES (1, 'x')")
        refused(native, "INSERT INTO log_1 VALUES (1, 'x')")
        refused(native, "INSERT INTO log_2_a VALUES (11, 'a')")
        refused(native, "UPDATE log SET day = day + 10 WHERE day = 1")
        refused(
            native, "MERGE INTO log USING (VALUES (1)) AS new (day) ON false WHEN NOT MATCHED THEN INSERT VALUES (2)"
        )
        refused(native, "INSERT INTO log SELECT 1, 'x' FROM generate_series(1, 3)")
    with log.transaction(HandmadeLease(5)) as own:
        own.execute("UPDATE log SET day = day + 10 WHERE day = 1")
        own.execute("INSERT INTO log_1 VALUES (1, 'x')")
        own.execute("TRUNCATE log_2_a")
    assert guarded.database.value("SELECT count(*) FROM log") == 2


def test_new_and_attached_partitions_refuse_writes(guarded: Guarded, log: fencelock.Guard) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE log_3 PARTITION OF log FOR VALUES FROM (20) TO (30)")
        native.execute("CREATE TABLE log_4 (day int, text text)")
        native.execute("INSERT INTO log_4 VALUES (31, 'before')")
        native.execute("ALTER TABLE log ATTACH PARTITION log_4 FOR VALUES FROM (30) TO (40)")
        native.execute("CREATE TABLE log_2_b PARTITION OF log_2 FOR VALUES IN ('bb')")
        native.execute("SET session_replication_role = replica")
        for day, part in ((21, "log_3"), (31, "log_4")):
            refused(native, f"INSERT INTO log VALUES ({day}, 'x')")
            refused(native, f"INSERT INTO {part} VALUES ({day}, 'x')")
        refused(native, "INSERT INTO log_2_b VALUES (11, 'bb')")
        refused(native, "DELETE FROM log_4")


def test_a_new_partition_is_emptied_until_protect_is_repeated(guarded: Guarded, log: fencelock.Guard) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE log_3 PARTITION OF log FOR VALUES FROM (20) TO (30)")
        native.execute("TRUNCATE log_3")
        refused(native, "TRUNCATE log")
        log.protect("log")
        refused(native, "TRUNCATE log_3")


def test_a_table_that_was_protected_alone_can_be_attached(guarded: Guarded, log: fencelock.Guard) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE old (day int, text text)")
        log.protect("old")
        native.execute("ALTER TABLE log ATTACH PARTITION old FOR VALUES FROM (40) TO (50)")
        refused(native, "INSERT INTO log VALUES (41, 'x')")
        refused(native, "INSERT INTO old VALUES (41, 'x')")
    with log.transaction(HandmadeLease(5)) as own:
        own.execute("INSERT INTO log VALUES (41, 'x')")


def test_a_partition_that_was_protected_alone_stays_with_its_resource(guarded: Guarded) -> None:
    """The other table is protected, and takes it over, by the same resource only."""
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE whole (LIKE reports) PARTITION BY RANGE (id)")
        native.execute("ALTER TABLE whole ATTACH PARTITION reports FOR VALUES FROM (0) TO (9)")
        with pytest.raises(GuardError, match="reports belongs to resource reports already"):
            guarded.guard("elsewhere").protect("whole")
        refused(native, "DELETE FROM reports")
        guarded.guard().protect("whole")
        refused(native, "DELETE FROM whole")
        assert [found.code for found in guard_store(guarded.database.url()).examine()] == ["powerful-role"]
        guarded.guard().unprotect(reason="a test")
        native.execute("TRUNCATE whole")


def test_an_attached_table_that_was_protected_alone_is_unprotected_too(guarded: Guarded, log: fencelock.Guard) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE a_first (day int, text text)")
        log.protect("a_first")
        native.execute("ALTER TABLE log ATTACH PARTITION a_first FOR VALUES FROM (40) TO (50)")
        log.unprotect(reason="a test")
        native.execute("INSERT INTO a_first VALUES (41, 'x'); TRUNCATE log")


def test_the_triggers_of_a_resource_are_found_among_those_of_others(guarded: Guarded) -> None:
    asked = "SELECT relation::regclass::text FROM fencelock.our_trigger WHERE resource = %s"
    assert guarded.database.value(asked, RESOURCE) == "reports"


def test_a_detached_partition_is_free_but_for_truncate(guarded: Guarded, log: fencelock.Guard) -> None:
    """A named way past the guard: DETACH needs the owner of the table."""
    with guarded.database.connect() as native:
        native.execute("ALTER TABLE log DETACH PARTITION log_1")
        native.execute("DELETE FROM log_1")
        refused(native, "TRUNCATE log_1")
        log.protect("log_1")
        refused(native, "DELETE FROM log_1")


def test_switching_a_partitioned_table_switches_every_partition(guarded: Guarded, log: fencelock.Guard) -> None:
    log.protect("log", mode="observe")
    with guarded.database.connect() as native:
        native.execute("INSERT INTO log VALUES (1, 'x'), (12, 'y')")
        native.execute("TRUNCATE log_1")
        native.execute("CREATE TABLE log_3 PARTITION OF log FOR VALUES FROM (20) TO (30)")
    seen = guarded.database.rows("SELECT kind, sum(times)::int FROM fencelock.observation GROUP BY kind ORDER BY kind")
    assert seen == [("insert", 2), ("truncate", 1)]
    log.protect("log", source=HandmadeSource(9))
    with guarded.database.connect() as native:
        for part in (*PARTS, "log_3"):
            refused(native, f"TRUNCATE {part}")
        refused(native, "INSERT INTO log_3 VALUES (21, 'x')")
    assert log.mark().token == 9
    log.unprotect(reason="a test")
    with guarded.database.connect() as native:
        native.execute("TRUNCATE log_1; INSERT INTO log VALUES (1, 'x'); TRUNCATE log")
    triggers = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'fencelock%%' AND tgrelid = %s::regclass"
    assert [guarded.database.value(triggers, part) for part in PARTS] == [0] * len(PARTS)


# --- names and kinds ------------------------------------------------------------------------------
UNFIT = {
    "a view": ("CREATE VIEW unfit AS SELECT 1", "a view: protect the tables that it shows"),
    "a materialised view": ("CREATE MATERIALIZED VIEW unfit AS SELECT 1", "a materialised view"),
    "a partition": ("", "a partition: protect the table that it is a partition of"),
    "a parent": ("CREATE TABLE unfit (); CREATE TABLE heir () INHERITS (unfit)", "in an inheritance tree"),
    "an heir": ("CREATE TABLE legator (); CREATE TABLE unfit () INHERITS (legator)", "in an inheritance tree"),
    "a sequence": ("CREATE SEQUENCE unfit", "no table"),
    "a catalogue": ("", "of the system's own"),
    "one of ours": ("", "of the system's own"),
}
NAMES = {"a partition": "log_1", "a catalogue": "pg_class", "one of ours": "fencelock.mark"}


def test_a_temporary_table_cannot_be_protected(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TEMP TABLE passing (id int)")
        with pytest.raises(psycopg.Error, match="a temporary one"):
            native.execute("SELECT fencelock.protect_table('passing', 'reports', 'enforce')")


@pytest.mark.parametrize("kind", UNFIT)
def test_what_cannot_be_protected_is_refused_with_the_reason(guarded: Guarded, kind: str) -> None:
    statement, reason = UNFIT[kind]
    with guarded.database.connect() as native:
        native.execute(PARTITIONED if kind == "a partition" else statement or "SELECT 1")
    with pytest.raises(GuardError, match=reason):
        guarded.guard().protect(NAMES.get(kind, "unfit"))


def test_a_table_fed_by_a_subscription_cannot_be_protected(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE fed (id int)")
        native.execute("CREATE SUBSCRIPTION feed CONNECTION 'dbname=x' PUBLICATION feed WITH (connect = false)")
        native.execute("SET allow_system_table_mods = on")
        native.execute(
            "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) SELECT oid, 'fed'::regclass, 'r' "
            "FROM pg_subscription WHERE subname = 'feed'"
        )
        with pytest.raises(GuardError, match="fed by a subscription, which presents no token"):
            guarded.guard().protect("fed")
        native.execute("DELETE FROM pg_subscription_rel")
        native.execute("ALTER SUBSCRIPTION feed SET (slot_name = NONE)")
        native.execute("DROP SUBSCRIPTION feed")


@pytest.mark.parametrize("name", ['"Odd.Name; DROP TABLE reports"', 'other."ünïcode"', "other.plain", '"q""uote\'s"'])
def test_tables_of_any_name_and_schema_are_protected(guarded: Guarded, name: str) -> None:
    guard = guarded.guard()
    with guarded.database.connect() as native:
        native.execute("CREATE SCHEMA other")
        native.execute(f"CREATE TABLE {name} (id int)")
        guard.protect(name)
        refused(native, f"INSERT INTO {name} VALUES (1)")
        guard.unprotect(name, reason="a test")
        native.execute(f"INSERT INTO {name} VALUES (1)")
        assert native.execute("SELECT name FROM fencelock.protected_table").fetchall() == [("public.reports",)]


@pytest.mark.parametrize("name", ["nowhere", "nowhere.reports", "a b", "other.public.reports.x", '"'])
def test_a_name_that_means_no_table_is_refused(guarded: Guarded, name: str) -> None:
    with pytest.raises(GuardError, match="there is no table"):
        guarded.guard().protect(name)


def test_a_renamed_and_moved_table_stays_protected(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute(
            "CREATE SCHEMA archive; ALTER TABLE reports RENAME TO papers; ALTER TABLE papers SET SCHEMA archive"
        )
        refused(native, "DELETE FROM archive.papers")
        guarded.guard().unprotect("archive.papers", reason="a test")
        native.execute("DELETE FROM archive.papers")


def test_unprotecting_what_is_gone_forgets_it(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("DROP TABLE reports")
        guarded.guard().unprotect(reason="a test")
        assert native.execute("SELECT count(*) FROM fencelock.protection").fetchone() == (0,)
    with pytest.raises(GuardError, match="protects no table here"):
        guarded.guard().unprotect(reason="a test")


# --- DDL ------------------------------------------------------------------------------------------
def test_protecting_waits_for_open_writers_and_lets_readers_go_on(guarded: Guarded) -> None:
    with guarded.client() as writer, guarded.client() as reader:
        writer.execute("CREATE TABLE more (id int)")
        reader.execute("BEGIN; SELECT * FROM more")
        writer.execute("BEGIN; INSERT INTO more VALUES (1)")
        protecting = Step(lambda: guarded.guard().protect("more"))
        guarded.wait_for_anybody()
        writer.execute("COMMIT")
        protecting.end()
        reader.execute("SELECT * FROM more")
        refused(writer, "INSERT INTO more VALUES (2)")


def test_protecting_gives_up_on_a_writer_that_stays(guarded: Guarded) -> None:
    with guarded.client() as writer:
        writer.execute("CREATE TABLE more (id int)")
        writer.execute("BEGIN; INSERT INTO more VALUES (1)")
        with pytest.raises(SourceUnavailableError, match="lock timeout"):
            guarded.guard().protect("more")
        writer.execute("COMMIT; INSERT INTO more VALUES (2)")


def test_a_restored_dump_enforces_as_before(guarded: Guarded) -> None:
    """Triggers, functions, marks and the notes of what is protected come along; tables have other numbers then."""
    guarded.sealed(5)
    server = guarded.database.server
    where = ["-h", "127.0.0.1", "-p", server.port, "-U", "postgres"]
    dump = server.folder / "dump.sql"
    server.programs.run("pg_dump", *where, "-f", dump, guarded.database.name, cwd=server.folder)
    server.rows("CREATE DATABASE restored")
    try:
        server.programs.run("psql", *where, "-v", "ON_ERROR_STOP=1", "-f", dump, "restored", cwd=server.folder)
        with server.connect(dbname="restored") as native:
            refused(native, "DELETE FROM reports")
            protected = native.execute("SELECT name, is_whole FROM fencelock.protected_table").fetchall()
            assert protected == [("public.reports", True)]
            assert native.execute("SELECT relation::text FROM fencelock.protection").fetchall() == [("reports",)]
            assert native.execute("SELECT token FROM fencelock.mark").fetchall() == [(5,)]
    finally:
        server.rows("DROP DATABASE restored WITH (FORCE)")
