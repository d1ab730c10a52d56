"""Every way past PostgreSQL's guard that is named in the reference is found by `examine`, as far as it can be seen."""

import psycopg
import pytest

import fencelock
from fencelock import RightError
from fencelock.stores.registry import guard_store
from fencelock_lab.servers.postgres import PostgresServer
from tests.sql.guarded import FORGED, TABLE, Guarded, Step
from tests.sql.postgres.dialect import PostgresDialect
from tests.sql.postgres.fix_postgres import Database, only
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource, sequencer
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide


def codes(url: str) -> list[str]:
    """Return what is found, but for findings about the tests' superuser."""
    return sorted(one.code for one in guard_store(url).examine() if one.code != "powerful-role")


def test_nothing_is_found_where_nothing_is_wrong(guarded: Guarded) -> None:
    guarded.sealed(5)
    assert codes(guarded.database.url()) == []


def test_a_database_without_marks(database: Database) -> None:
    [found] = guard_store(database.url()).examine()
    assert (found.code, found.remedy.split(" --")[0]) == (
        "no-marks",
        f"run `fencelock protect {guard_store(database.url()).url}",
    )


WAYS = {
    "DROP TRIGGER fencelock ON reports": "lost-protection",
    "ALTER TABLE reports DISABLE TRIGGER fencelock": "lost-protection",
    "ALTER TABLE reports DISABLE TRIGGER ALL": "lost-protection",
    "ALTER TABLE reports ENABLE TRIGGER fencelock": "lost-protection",
    "ALTER TABLE reports ENABLE REPLICA TRIGGER fencelock": "lost-protection",
    "DROP TABLE reports": "lost-protection",
    "ALTER TABLE reports RENAME TO before; CREATE TABLE reports (LIKE before)": "lost-protection",
    "CREATE TABLE heir () INHERITS (reports)": "open-side-door",
    "CREATE TABLE legator (LIKE reports); ALTER TABLE reports INHERIT legator": "open-side-door",
    "CREATE TABLE whole (LIKE reports) PARTITION BY RANGE (id); "
    "ALTER TABLE whole ATTACH PARTITION reports FOR VALUES FROM (0) TO (9)": "open-side-door",
    "CREATE TABLE follower (id int REFERENCES reports ON DELETE CASCADE)": "open-reference",
    "GRANT SELECT ON fencelock.mark TO pg_monitor": "open-marks",
    "GRANT UPDATE ON fencelock.mark TO PUBLIC": "open-marks",
}


@pytest.mark.parametrize("statement", WAYS)
def test_a_way_past_the_triggers_is_found(guarded: Guarded, statement: str) -> None:
    with guarded.database.connect() as native:
        native.execute(statement)
    assert codes(guarded.database.url()) == [WAYS[statement]]


def test_a_new_partition_that_can_be_emptied_is_found_and_repaired(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE log (day int) PARTITION BY RANGE (day)")
        guarded.guard().protect("log")
        assert codes(guarded.database.url()) == []
        native.execute("CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (1) TO (2)")
        [found] = [one for one in guard_store(guarded.database.url()).examine() if one.code == "open-truncate"]
        assert "log_1" in found.message
        guarded.guard().protect("log")
        native.execute("ALTER TABLE log_1 DISABLE TRIGGER fencelock_rows")
    assert codes(guarded.database.url()) == ["lost-protection"]


def test_observed_tables_and_resources_without_tables_are_found(guarded: Guarded) -> None:
    guarded.guard().protect("reports", mode="observe")
    guarded.guard("elsewhere").seal(HandmadeLease(5))
    assert codes(guarded.database.url()) == ["only-observed", "unprotected"]


def test_a_protected_follower_is_no_finding(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE follower (id int REFERENCES reports ON DELETE CASCADE)")
    guarded.guard().protect("follower")
    assert codes(guarded.database.url()) == []


def test_a_role_that_could_disable_triggers_is_named(guarded: Guarded) -> None:
    [found] = guard_store(guarded.database.url()).examine()
    assert found.code == "powerful-role"
    assert "the role postgres of this URL is a superuser" in found.message
    with guarded.database.connect() as native:
        native.execute("DO $$ BEGIN CREATE ROLE tables_owner LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        native.execute("ALTER TABLE reports OWNER TO tables_owner; GRANT USAGE ON SCHEMA fencelock TO tables_owner")
    [found] = guard_store(guarded.database.url(user="tables_owner")).examine()
    assert (found.code, "owns public.reports" in found.message) == ("powerful-role", True)


def test_a_role_that_could_replace_triggers_is_named(guarded: Guarded, role: str) -> None:
    """CREATE OR REPLACE TRIGGER needs TRIGGER alone, which GRANT ALL gives."""
    guarded.database.rows(f"GRANT TRIGGER ON reports TO {role}")
    [found] = guard_store(guarded.database.url(user=role)).examine()
    assert (found.code, "has TRIGGER on public.reports" in found.message) == ("powerful-role", True)
    with guarded.database.connect(user=role) as native:
        native.execute(
            "CREATE FUNCTION pg_temp.pass() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"
        )
        native.execute(
            "CREATE OR REPLACE TRIGGER fencelock BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON reports "
            "FOR EACH STATEMENT EXECUTE FUNCTION pg_temp.pass()"
        )
    assert "lost-protection" in codes(guarded.database.url())
    guarded.guard().protect("reports")
    guarded.database.rows(f"REVOKE TRIGGER ON reports FROM {role}")
    assert guard_store(guarded.database.url(user=role)).examine() == []


def test_a_role_that_could_read_secrets_or_write_marks_is_named(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        for role in ("pg_read_all_data", "pg_write_all_data"):
            native.execute(
                f"DO $$ BEGIN CREATE ROLE of_{role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
                f"GRANT {role} TO of_{role}; GRANT USAGE ON SCHEMA fencelock TO of_{role}"
            )
            [found] = guard_store(guarded.database.url(user=f"of_{role}")).examine()
            assert (found.code, "may read the guard's secrets or write marks" in found.message) == (
                "powerful-role",
                True,
            )


def test_a_role_without_usage_is_found(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("DO $$ BEGIN CREATE ROLE stranger LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    assert codes(guarded.database.url(user="stranger")) == ["guard-refused"]


def test_what_cannot_be_reached_is_a_finding() -> None:
    assert codes("postgresql://127.0.0.1:1/nowhere") == ["guard-refused"]


# --- what the triggers do not see, as the reference says ------------------------------------------
def test_a_rewrite_by_ddl_and_a_drop_pass(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("ALTER TABLE reports ALTER COLUMN value TYPE text USING 'rewritten'")
        assert guarded.value() == "rewritten"
        native.execute("ALTER TABLE reports DROP COLUMN value")


def test_an_unprotected_follower_keeps_the_holder_from_deleting(guarded: Guarded) -> None:
    with guarded.database.connect() as native:
        native.execute("CREATE TABLE follower (id int REFERENCES reports ON DELETE SET NULL)")
        native.execute("INSERT INTO follower VALUES (1)")
        native.execute("BEGIN; INSERT INTO follower VALUES (1)")
        with guarded.guard().transaction(HandmadeLease(5)) as own:
            own.execute("SET LOCAL lock_timeout = '1ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable), own.transaction():
                own.execute("DELETE FROM reports")
        native.execute("COMMIT")


# --- a server of the test's own -------------------------------------------------------------------
@pytest.fixture
def preparing(sql: PostgresDialect, own_postgres: PostgresServer) -> Guarded:
    """A server that prepares transactions, publishes tables, and does not flush what it commits."""
    own_postgres.stop()
    own_postgres.settings |= {"max_prepared_transactions": 4, "wal_level": "logical", "fsync": "off"}
    own_postgres.start()
    database = Database(own_postgres, "postgres")
    with database.connect() as native:
        for statement in TABLE:
            native.execute(statement)
    fencelock.guard(database.url(), resource=RESOURCE, lock=LOCK).protect("reports")
    return Guarded(sql, database)


@only("15")
def test_g3_a_prepared_transaction_holds_the_mark_and_is_found(preparing: Guarded) -> None:
    preparing.sealed(5)
    with preparing.client() as native:
        native.execute("BEGIN")
        preparing.present(native, 5)
        native.execute("UPDATE reports SET value = 'prepared'")
        native.execute("PREPARE TRANSACTION 'left behind'")
        assert codes(preparing.database.url()) == ["prepared-transaction", "unflushed"]
        sealing = Step(lambda: preparing.guard().seal(HandmadeLease(6)))
        preparing.wait_for_anybody()
        native.execute("COMMIT PREPARED 'left behind'")
        sealing.end()
    assert (preparing.value(), preparing.guard().mark().token) == ("prepared", 6)


@only("15")
def test_g12_a_prepared_seal_poisons_no_mark_after_the_cure(preparing: Guarded) -> None:
    """It keeps the mark locked when its session and its right are gone, and the cure waits for its end."""
    with preparing.sql.roles(preparing.database) as make:
        role = make()
        preparing.guard().grant(role)
        with preparing.database.connect(user=role) as forger:
            forger.execute("BEGIN")
            forger.execute("SELECT fencelock.seal(%s, 'reports')", (str(sequencer(FORGED)),))
            forger.execute("PREPARE TRANSACTION 'forged'")
        cure = Step(lambda: preparing.guard().unpoison(role, source=HandmadeSource(7), reason="a forger"))
        preparing.wait_for_anybody()
        with preparing.database.connect(user=role) as forger:
            forger.execute("COMMIT PREPARED 'forged'")
        assert [mark.token for mark in cure.end().marks] == [FORGED]
        assert preparing.guard().mark().token == 7
        with pytest.raises(RightError):
            preparing.guard(user=role).seal(HandmadeLease(FORGED))


def subscribe(guarded: Guarded, table: str) -> None:
    """Have the database `publisher` feed a table, without a first copy; the subscription ends with its first error."""
    server = guarded.database.server
    server.rows(f"CREATE PUBLICATION {table} FOR TABLE {table}", dbname="publisher")
    # By hand: a server that makes the slot for a subscription of its own waits for itself.
    server.rows("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", table, dbname="publisher")
    guarded.database.rows(
        f"CREATE SUBSCRIPTION {table} CONNECTION 'host=127.0.0.1 port={server.port} dbname=publisher user=postgres'"
        f" PUBLICATION {table} WITH (create_slot = false, copy_data = false, disable_on_error = true)"
    )


def test_a_subscription_writes_past_the_triggers_of_an_ordinary_table(preparing: Guarded) -> None:
    """A named way past the guard: for its rows the server fires no statement's triggers."""
    rows, server = preparing.database.rows, preparing.database.server
    rows("CREATE TABLE log (day int) PARTITION BY RANGE (day)")
    rows("CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM (1) TO (9)")
    preparing.guard().protect("log")
    server.rows("CREATE DATABASE publisher")
    server.rows("CREATE TABLE reports (id int PRIMARY KEY, value text)", dbname="publisher")
    server.rows("CREATE TABLE log (day int)", dbname="publisher")
    subscribe(preparing, "reports")
    subscribe(preparing, "log")
    assert codes(preparing.database.url()) == ["open-side-door", "open-side-door", "unflushed"]
    server.rows("INSERT INTO log VALUES (1)", dbname="publisher")
    wait_until(lambda: rows("SELECT 1 FROM pg_subscription WHERE subname = 'log' AND NOT subenabled"))
    assert rows("SELECT * FROM log") == []
    server.rows("INSERT INTO reports VALUES (2, 'fed')", dbname="publisher")
    wait_until(lambda: rows("SELECT 1 FROM reports WHERE value = 'fed'"))
