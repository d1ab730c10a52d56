"""What the design takes PostgreSQL to do. Where a version does otherwise, reasons given elsewhere no longer hold.

Each fact is asked of real servers, of both versions, and of nothing of fencelock.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Literal

import psycopg
import pytest

from fencelock_lab.servers.postgres import PostgresFleet, PostgresServer
from tests.sql.postgres.fix_copies import (
    Copies,
    create_restore_point,
    disconnect,
    is_in_recovery,
    promote,
    wait_until_replayed,
)
from tests.sql.postgres.fix_postgres import Database
from tests.support.helpers import DEADLINE_S, wait_until

pytestmark = [pytest.mark.process, pytest.mark.server_wide]

TIMELINE = "select substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8)"
SYSTEM = "select system_identifier from pg_control_system()"
DATABASE = "select oid from pg_database where datname = current_database()"
TABLE = "select 'kept'::regclass::oid"


@pytest.fixture
def server(own_postgres: PostgresServer) -> PostgresServer:
    """Return a server with a row in a logged table `kept`, and one in an unlogged table `witness`."""
    own_postgres.rows("create table kept as select 1 as value")
    own_postgres.rows("create unlogged table witness as select 1 as value")
    return own_postgres


def witnesses(server: PostgresServer, dbname: str = "postgres") -> int:
    """Return how many rows the unlogged table has; the logged one always has its row."""
    assert server.value("select count(*) from kept", dbname=dbname) == 1
    return server.value("select count(*) from witness", dbname=dbname)


# An unlogged table is emptied by every recovery


def kill_a_backend(server: PostgresServer) -> None:
    with server.admin() as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        wait_until(lambda: "all server processes terminated; reinitializing" in server.log)
        connection.close()
    server.wait_until_ready()


@pytest.mark.parametrize(
    "end",
    [PostgresServer.crash, lambda server: server.restart("immediate"), kill_a_backend],
    ids=["kill -9 of all", "immediate stop", "kill -9 of one backend"],
)
def test_an_unlogged_table_is_empty_after_a_crash(
    server: PostgresServer, end: Callable[[PostgresServer], None]
) -> None:
    assert witnesses(server) == 1
    end(server)
    assert witnesses(server) == 0


@pytest.mark.parametrize("mode", ["fast", "smart"])
def test_an_unlogged_table_survives_a_clean_restart(server: PostgresServer, mode: Literal["fast", "smart"]) -> None:
    server.restart(mode)
    assert witnesses(server) == 1


def test_an_unlogged_table_is_empty_in_a_base_backup(server: PostgresServer, copies: Copies) -> None:
    copy = copies.started(copies.base_backup(server), server)
    assert witnesses(copy) == 0
    assert witnesses(server) == 1


def test_an_unlogged_table_is_empty_after_a_recovery_to_a_point_in_time(server: PostgresServer, copies: Copies) -> None:
    archive = copies.archive_of(server)
    backup = copies.base_backup(server)
    create_restore_point(server, "here")
    recovered = copies.recovered(backup, server, archive, "here")
    assert witnesses(recovered) == 0


def test_an_unlogged_table_is_empty_on_a_promoted_standby(server: PostgresServer, copies: Copies) -> None:
    standby = copies.standby_of(server)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="unlogged relations during recovery"):
        witnesses(standby)
    promote(standby)
    assert witnesses(standby) == 0
    assert witnesses(server) == 1


def test_a_cold_copy_has_everything_and_cannot_be_distinguished(server: PostgresServer, copies: Copies) -> None:
    server.stop()
    copy = copies.cold_copy(server)
    server.start()
    assert witnesses(copy) == witnesses(server) == 1
    for question in (SYSTEM, TIMELINE, DATABASE, TABLE):
        assert copy.value(question) == server.value(question)


# A dump carries an unlogged table along


@pytest.fixture
def restored(database: Database, copies: Copies) -> Iterator[Callable[[Literal["plain", "custom"]], Database]]:
    """Yield what dumps the test's database, and restores it into a new one of the same server."""
    server = database.server
    name = f"{database.name}_restored"

    def restore(form: Literal["plain", "custom"]) -> Database:
        server.rows(f"create database {name}")
        copies.restore(copies.dump(server, database.name, form), server, name)
        return Database(server, name)

    yield restore
    server.rows(f"drop database if exists {name} with (force)")


@pytest.mark.parametrize("form", ["plain", "custom"])
def test_a_dump_holds_the_rows_of_an_unlogged_table(
    database: Database, restored: Callable[[str], Database], form: str
) -> None:
    database.rows("create unlogged table witness as select 1 as value")
    assert restored(form).rows("select value from witness") == [(1,)]


def test_a_row_that_names_its_own_transaction_no_longer_does_after_a_restore(
    database: Database, restored: Callable[[str], Database]
) -> None:
    database.rows("create unlogged table witness (xid xid)")
    database.rows("insert into witness values (pg_current_xact_id()::xid)")
    is_its_own = "select xmin = xid from witness"
    assert database.value(is_its_own)
    assert not restored("plain").value(is_its_own)


@pytest.mark.parametrize("command", ["vacuum (freeze)", "vacuum (full, freeze)", "analyze"])
def test_a_row_names_its_own_transaction_for_good(database: Database, command: str) -> None:
    database.rows("create unlogged table witness (xid xid)")
    database.rows("insert into witness values (pg_current_xact_id()::xid)")
    database.rows(f"{command} witness")
    assert database.value("select xmin = xid from witness")


# What tells one history from another


def test_the_timeline_changes_with_the_promotion_and_not_later(server: PostgresServer, copies: Copies) -> None:
    standby = copies.standby_of(server)
    wait_until_replayed(server, standby)
    assert server.value(TIMELINE) == "00000001"
    with standby.admin() as connection:
        connection.execute("select pg_promote(wait => false)")
        # The first moment in which it can write at all is on the new timeline.
        while connection.execute("select pg_is_in_recovery()").fetchall() == [(True,)]:
            pass
        [(timeline,)] = connection.execute(TIMELINE).fetchall()
    assert timeline == "00000002"
    assert server.value(TIMELINE) == "00000001"


def test_a_standby_has_no_insert_position(server: PostgresServer, copies: Copies) -> None:
    standby = copies.standby_of(server)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="recovery is in progress"):
        standby.value(TIMELINE)


def test_two_standbys_promoted_apart_have_the_same_timeline(server: PostgresServer, copies: Copies) -> None:
    """So only what their promotion emptied tells each from the history before; nothing tells one from the other."""
    standbys = [copies.standby_of(server), copies.standby_of(server)]
    server.kill()
    for standby in standbys:
        disconnect(standby)
        promote(standby)
    assert [standby.value(TIMELINE) for standby in standbys] == ["00000002", "00000002"]
    assert [witnesses(standby) for standby in standbys] == [0, 0]


def test_a_recovery_to_a_point_in_time_begins_a_timeline(server: PostgresServer, copies: Copies) -> None:
    archive = copies.archive_of(server)
    backup = copies.base_backup(server)
    create_restore_point(server, "here")
    assert copies.recovered(backup, server, archive, "here").value(TIMELINE) == "00000002"


def test_a_crash_and_a_plain_start_of_a_backup_begin_no_timeline(server: PostgresServer, copies: Copies) -> None:
    """So there the emptied unlogged table is the only witness."""
    backup = copies.base_backup(server)
    server.crash()
    assert server.value(TIMELINE) == "00000001"
    copy = copies.started(backup, server)
    assert copy.value(TIMELINE) == "00000001"
    assert not is_in_recovery(copy)


def test_every_role_may_read_the_system_identifier_and_the_timeline(postgres: PostgresServer) -> None:
    postgres.rows("drop role if exists nobody_special")
    postgres.rows("create role nobody_special login")
    with postgres.connect(user="nobody_special") as connection:
        for question in (SYSTEM, TIMELINE, DATABASE):
            assert connection.execute(question).fetchall() == postgres.rows(question)
    postgres.rows("drop role nobody_special")


def test_the_system_identifier_is_new_with_initdb_and_kept_by_copies(
    server: PostgresServer, copies: Copies, postgres: PostgresServer
) -> None:
    identity = server.value(SYSTEM)
    assert postgres.value(SYSTEM) != identity
    assert copies.started(copies.base_backup(server), server).value(SYSTEM) == identity
    standby = copies.standby_of(server)
    promote(standby)
    assert standby.value(SYSTEM) == identity


def test_a_dump_restored_into_a_new_cluster_is_in_another_system(
    server: PostgresServer, copies: Copies, postgres_fleet: PostgresFleet, postgres_kind: str
) -> None:
    dump = copies.dump(server, "postgres")
    with postgres_fleet.new_server(postgres_kind) as other:
        copies.restore(dump, other, "postgres")
        assert witnesses(other) == 1
        assert other.value(SYSTEM) != server.value(SYSTEM)


@pytest.mark.parametrize("strategy", ["wal_log", "file_copy"])
def test_a_database_made_from_a_template_differs_only_in_its_own_oid(server: PostgresServer, strategy: str) -> None:
    server.rows("create database original")
    server.rows("create table kept as select 1 as value", dbname="original")
    server.rows("create unlogged table witness as select 1 as value", dbname="original")
    server.rows(f"create database copied template original strategy {strategy}")
    assert witnesses(server, "copied") == 1
    for question in (SYSTEM, TIMELINE, TABLE, "select xmin from witness"):
        assert server.value(question, dbname="copied") == server.value(question, dbname="original")
    assert server.value(DATABASE, dbname="copied") != server.value(DATABASE, dbname="original")


def test_a_renamed_database_keeps_its_oid(server: PostgresServer) -> None:
    server.rows("create database before")
    identity = server.value(DATABASE, dbname="before")
    server.rows("alter database before rename to after")
    assert server.value(DATABASE, dbname="after") == identity


# What is lost, and what is not


@pytest.fixture
def lazy_server(server: PostgresServer) -> PostgresServer:
    """Return the server with a log writer that sleeps: what nobody flushes stays unflushed."""
    server.settings["wal_writer_delay"] = "10s"
    server.restart()
    return server


def test_a_bare_sequence_repeats_values_after_an_immediate_stop(lazy_server: PostgresServer) -> None:
    with lazy_server.admin() as connection:
        connection.execute("create sequence token")
        connection.execute("set synchronous_commit = off")
        issued = [connection.execute("select nextval('token')").fetchall()[0][0] for _ in range(40)]
        lazy_server.stop("immediate")
        connection.close()
    lazy_server.start()
    assert lazy_server.value("select nextval('token')") in issued


def test_a_flushed_commit_flushes_all_that_came_before(lazy_server: PostgresServer) -> None:
    with lazy_server.admin() as connection:
        connection.execute("create sequence token")
        connection.execute("set synchronous_commit = off")
        issued = [connection.execute("select nextval('token')").fetchall()[0][0] for _ in range(40)]
        lazy_server.rows("update kept set value = 2")
        lazy_server.stop("immediate")
        connection.close()
    lazy_server.start()
    assert lazy_server.value("select value from kept") == 2
    assert lazy_server.value("select nextval('token')") > max(issued)


def test_unflushed_commits_are_lost_from_the_newest_on(lazy_server: PostgresServer) -> None:
    with lazy_server.admin() as connection:
        connection.execute("insert into kept values (2)")
        connection.execute("set synchronous_commit = off")
        connection.execute("insert into kept values (3)")
        lazy_server.stop("immediate")
        connection.close()
    lazy_server.start()
    assert lazy_server.rows("select value from kept order by value") == [(1,), (2,)]


# A holder that stands still

HOLDER = """
import psycopg, sys
with psycopg.connect(sys.argv[1]) as connection:
    connection.execute("update held set value = 2")
    # Last: a busy machine may need longer than that between two statements.
    if sys.argv[2] != "0":
        connection.execute(f"set local idle_in_transaction_session_timeout = {sys.argv[2]}")
    print("holds", flush=True)
    sys.stdin.read()
"""


def freeze_a_holder(database: Database, limit_ms: int) -> subprocess.Popen[str]:
    """Return a process that holds a row of `held` in an open transaction, and stands still."""
    database.rows("create table held as select 1 as value")
    command = [sys.executable, "-c", HOLDER, database.url(), str(limit_ms)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holds\n"
    holder.send_signal(signal.SIGSTOP)
    return holder


def test_a_limit_on_idleness_ends_the_transaction_of_a_frozen_holder(database: Database) -> None:
    with freeze_a_holder(database, 200) as holder:
        with database.connect() as successor:
            successor.execute(f"set lock_timeout = '{DEADLINE_S} s'")
            successor.execute("update held set value = 3")
        assert database.value("select value from held") == 3
        holder.kill()


def test_without_the_limit_a_frozen_holder_keeps_its_successor_waiting(database: Database) -> None:
    with freeze_a_holder(database, 0) as holder:
        with database.connect() as successor:
            successor.execute("set lock_timeout = '300 ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                successor.execute("update held set value = 3")
        holder.kill()
