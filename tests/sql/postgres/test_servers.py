"""What the fixtures promise: servers that really start, stop, die and freeze, and real copies of them."""

import os
import signal
from typing import Literal

import psycopg
import pytest

from fencelock import SourceError
from fencelock_lab.servers.postgres import PostgresFleet, PostgresServer
from fencelock_lab.servers.processes import GONE, STOPPED, state_of
from tests.sql.postgres.fix_copies import (
    Copies,
    create_restore_point,
    disconnect,
    failover_url,
    is_in_recovery,
    promote,
    wait_until_replayed,
)
from tests.sql.postgres.fix_postgres import Database, only
from tests.support.helpers import wait_until

pytestmark = pytest.mark.process


def start_notes(server: PostgresServer) -> None:
    server.rows("create table noted (value int)")


def note(server: PostgresServer, value: int) -> None:
    server.rows("insert into noted values (%s)", value)


def noted(server: PostgresServer) -> list[int]:
    return [value for (value,) in server.rows("select value from noted order by value")]


# Versions and databases


def test_the_version_is_the_one_asked_for(postgres: PostgresServer, postgres_kind: str) -> None:
    assert postgres.value("select current_setting('server_version_num')::int / 10000") == postgres.programs.version
    assert postgres.programs.version >= int(postgres_kind)


def test_what_is_committed_is_flushed(postgres: PostgresServer) -> None:
    assert postgres.value("select current_setting('fsync')") == "on"
    assert postgres.value("select current_setting('synchronous_commit')") == "on"


@pytest.mark.parametrize("time", ["first", "second"])
def test_each_test_has_a_database_of_its_own(database: Database, time: str) -> None:
    assert database.value("select current_database()") == database.name
    assert database.value("select count(*) from pg_class where relname = 'leftover'") == 0
    database.rows("create table leftover ()")


@only("18")
def test_servers_of_their_own_have_identities_of_their_own(
    postgres_fleet: PostgresFleet, postgres: PostgresServer
) -> None:
    identity = "select system_identifier from pg_control_system()"
    with postgres_fleet.new_server("18") as other, postgres_fleet.copied_server("18") as copied:
        identities = {server.value(identity) for server in (postgres, other, copied)}
    assert len(identities) == 3


# Stops and crashes


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
def test_only_an_immediate_stop_leaves_a_recovery(
    own_postgres: PostgresServer, mode: Literal["smart", "fast", "immediate"]
) -> None:
    start_notes(own_postgres)
    note(own_postgres, 1)
    own_postgres.restart(mode)
    assert noted(own_postgres) == [1]
    assert ("automatic recovery in progress" in own_postgres.log) == (mode == "immediate")


def test_what_is_committed_survives_a_kill(own_postgres: PostgresServer) -> None:
    start_notes(own_postgres)
    note(own_postgres, 1)
    processes = own_postgres.processes()
    with own_postgres.admin() as connection:
        own_postgres.kill()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        own_postgres.admin()
    assert not [pid for pid in processes if state_of(pid) not in GONE]
    own_postgres.start()
    assert noted(own_postgres) == [1]
    assert "automatic recovery in progress" in own_postgres.log


def test_a_server_that_cannot_start_says_why(own_postgres: PostgresServer) -> None:
    own_postgres.stop()
    own_postgres.settings["max_connections"] = "many"
    with pytest.raises(SourceError, match='invalid value for parameter "max_connections": "many"'):
        own_postgres.start()


def test_the_port_stays_the_same(own_postgres: PostgresServer) -> None:
    url = own_postgres.url()
    own_postgres.restart()
    psycopg.connect(url).close()


# Freezing


def test_a_frozen_server_answers_only_after_it_is_thawed(own_postgres: PostgresServer) -> None:
    start_notes(own_postgres)
    with own_postgres.admin() as connection:
        own_postgres.freeze()
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            own_postgres.connect(connect_timeout=2)
        assert all(state_of(pid) in STOPPED for pid in own_postgres.processes())
        # The backend of an open connection has a session of its own, and stands still as well.
        connection.pgconn.send_query(b"insert into noted values (1)")
        assert not connection.pgconn.flush()
        own_postgres.thaw()
        wait_until(lambda: noted(own_postgres) == [1])
        connection.close()


@only("18")
def test_a_frozen_server_can_be_killed(own_postgres: PostgresServer) -> None:
    own_postgres.freeze()
    own_postgres.crash()
    assert own_postgres.value("select 1") == 1


@only("18")
def test_the_death_of_one_backend_restarts_all_others(own_postgres: PostgresServer) -> None:
    with own_postgres.admin() as connection, own_postgres.admin() as other:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
        for each in (connection, other):
            with pytest.raises(psycopg.OperationalError):
                each.execute("select pg_sleep(30)")
    wait_until(lambda: "all server processes terminated; reinitializing" in own_postgres.log)
    own_postgres.wait_until_ready()
    assert own_postgres.value("select 1") == 1


# Copies


def test_a_base_backup_holds_what_was_there_when_it_was_made(own_postgres: PostgresServer, copies: Copies) -> None:
    start_notes(own_postgres)
    note(own_postgres, 1)
    backup = copies.base_backup(own_postgres)
    note(own_postgres, 2)
    copy = copies.started(backup, own_postgres)
    assert noted(copy) == [1]
    assert noted(own_postgres) == [1, 2]


def test_a_cold_copy_goes_its_own_way(own_postgres: PostgresServer, copies: Copies) -> None:
    start_notes(own_postgres)
    own_postgres.stop()
    copy = copies.cold_copy(own_postgres)
    own_postgres.start()
    note(copy, 1)
    note(own_postgres, 2)
    assert (noted(copy), noted(own_postgres)) == ([1], [2])


def test_a_standby_follows_and_lags_and_is_promoted(own_postgres: PostgresServer, copies: Copies) -> None:
    start_notes(own_postgres)
    standby = copies.standby_of(own_postgres)
    note(own_postgres, 1)
    wait_until_replayed(own_postgres, standby)
    disconnect(standby)
    note(own_postgres, 2)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        note(standby, 3)
    own_postgres.kill()
    promote(standby)
    note(standby, 3)
    assert noted(standby) == [1, 3]


@only("18")
def test_unflushed_commits_count_as_replayed_too(own_postgres: PostgresServer, copies: Copies) -> None:
    start_notes(own_postgres)
    standby = copies.standby_of(own_postgres)
    for value in range(50):
        with own_postgres.admin() as connection:
            connection.execute("set synchronous_commit = off")
            connection.execute("insert into noted values (%s)", [value])
        wait_until_replayed(own_postgres, standby)
        assert noted(standby)[-1] == value


@only("18")
def test_an_address_of_several_servers_leads_to_the_primary(own_postgres: PostgresServer, copies: Copies) -> None:
    standby = copies.standby_of(own_postgres)
    url = failover_url([standby, own_postgres])
    with psycopg.connect(url) as connection:
        assert connection.info.port == own_postgres.port
    own_postgres.kill()
    promote(standby)
    with psycopg.connect(url) as connection:
        assert connection.info.port == standby.port


def test_a_recovery_ends_at_the_point_in_time(own_postgres: PostgresServer, copies: Copies) -> None:
    archive = copies.archive_of(own_postgres)
    start_notes(own_postgres)
    backup = copies.base_backup(own_postgres)
    note(own_postgres, 1)
    create_restore_point(own_postgres, "before")
    note(own_postgres, 2)
    recovered = copies.recovered(backup, own_postgres, archive, "before")
    assert noted(recovered) == [1]
    assert not is_in_recovery(recovered)
    note(recovered, 3)
    recovered.restart()
    assert noted(recovered) == [1, 3]
    assert noted(own_postgres) == [1, 2]


@pytest.mark.parametrize("form", ["plain", "custom"])
def test_a_dump_is_restored_elsewhere(
    database: Database, own_postgres: PostgresServer, copies: Copies, form: Literal["plain", "custom"]
) -> None:
    database.rows("create table kept as select 7 as value")
    dump = copies.dump(database.server, database.name, form)
    database.rows("update kept set value = 8")
    own_postgres.rows("create database restored")
    copies.restore(dump, own_postgres, "restored")
    assert own_postgres.value("select value from kept", dbname="restored") == 7


@only("18")
def test_a_dump_that_does_not_fit_is_refused(database: Database, copies: Copies) -> None:
    database.rows("create table kept as select 7 as value")
    for form in ("plain", "custom"):
        dump = copies.dump(database.server, database.name, form)
        with pytest.raises(SourceError, match='relation "kept" already exists'):
            copies.restore(dump, database.server, database.name)
