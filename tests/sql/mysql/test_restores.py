"""T7: a database that went back. The server cannot notice; a client that saw more refuses; the operator repairs it."""

import subprocess
from pathlib import Path

import pytest

import fencelock
from fencelock import SchemaError, SourceError
from fencelock.protocol import source_requests as ask
from fencelock.stores.mysql.guard.store import MySQLGuard
from fencelock.stores.mysql.source.store import MySQLSource
from fencelock_lab.servers.mariadb import MariaDBFleet, MariaDBServer
from tests.sql.clients import SqlClient, one_token
from tests.sql.guarded import Guarded, write
from tests.sql.mysql.fix_mysql import Database
from tests.sql.restored_rights import RestoredRights
from tests.support.guards import HandmadeLease
from tests.support.programs import need

DUMP, RUN = "/usr/bin/mariadb-dump", "/usr/bin/mariadb"


def _run(program: str, server: MariaDBServer, *arguments: str, text: bytes = b"") -> bytes:
    login = ["--no-defaults", "--host=127.0.0.1", f"--port={server.port}", "--user=root"]
    done = subprocess.run([need(program), *login, *arguments], input=text, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def _dump(database: Database, *options: str) -> bytes:
    return _run(DUMP, database.server, *(options or ("--routines",)), "--single-transaction", database.name)


def _restore(database: Database, dump: bytes) -> None:
    _run(RUN, database.server, database.name, text=dump)


def test_t7_a_dump_that_was_restored_over_the_source_is_refused_by_clients_that_saw_more(
    url: str, database: Database
) -> None:
    client, waiting = SqlClient(url), SqlClient(url)
    client.one_token()
    dump = _dump(database)
    for _ in range(5):
        last = client.one_token()
    waiting.one_token("another")
    _restore(database, dump)
    with pytest.raises(SourceError, match=rf"issued token {2} after {last}: .*fencelock epoch --raise"):
        client.one_token()
    # It goes on to refuse, past the last token that it knows of.
    for number in range(10):
        with pytest.raises(SourceError, match="No lock is granted"):
            client.one_token(f"lock{number}")
    raised = client.raise_epoch()
    assert (raised.epoch, raised.last_token % 2**40) == (2, 0)
    assert client.one_token() > raised.last_token > last
    assert waiting.one_token() > raised.last_token + 1


def test_t7_a_process_that_saw_nothing_cannot_tell_and_the_operators_step_is_what_helps(
    url: str, database: Database
) -> None:
    """What the documents say of MySQL: a restore is not seen."""
    one_token(url)
    dump = _dump(database)
    last = max(one_token(url) for _ in range(5))
    _restore(database, dump)
    assert one_token(url) < last, "a token is issued twice: this is what the step is for"
    _restore(database, dump)
    with fencelock.connect(url) as source:
        raised = source.raise_epoch(reason="restored")
    assert one_token(url) == raised.last_token + 1 > last


def test_t7_a_raise_from_a_backup_is_above_what_was_issued_after_other_raises(url: str, database: Database) -> None:
    """The backup knows nothing of the later epochs: the clock does."""
    dump = _dump(database)
    client = SqlClient(url)
    client.raise_epoch()
    database.rows("update fencelock_source set token = token - %s", 2**41)  # It was raised half an hour ago.
    last = SqlClient(url).one_token()
    _restore(database, dump)
    fresh = SqlClient(url)
    assert fresh.raise_epoch().last_token > last


def test_t7_a_raise_is_above_what_the_operator_saw_also_when_the_clock_says_less(url: str, database: Database) -> None:
    client = SqlClient(url)
    database.rows("update fencelock_source set token = %s", 2**61)
    client.one_token()
    database.rows("update fencelock_source set token = 5")
    database.rows("delete from fencelock_lock")
    assert client.raise_epoch().last_token == 2**61 + 2**40


def test_t7_of_two_raises_at_once_one_succeeds(url: str) -> None:
    first, second = SqlClient(url), SqlClient(url)
    history_id = first.describe().history_id
    assert first.ask(ask.RaiseEpoch(history_id, "a test")).epoch == 2
    assert second.ask(ask.RaiseEpoch(history_id, "a test")) is None


def test_t7_a_cold_copy_needs_the_operators_step_too(
    mysql_fleet: MariaDBFleet, own_mysql: MariaDBServer, tmp_path: Path
) -> None:
    url = own_mysql.url()
    MySQLSource(url).install()
    one_token(url)
    own_mysql.stop()
    with mysql_fleet.copy_of(own_mysql.data) as copy:
        own_mysql.start()
        last = max(one_token(url) for _ in range(3))
        with fencelock.connect(copy.url()) as source:
            raised = source.raise_epoch(reason="a copy of the data folder")
        assert one_token(copy.url()) > raised.last_token > last


def test_t7_a_schema_that_was_made_anew_is_another_source(url: str, database: Database) -> None:
    client = SqlClient(url)
    client.one_token()
    for table in ("source", "lock", "waiter", "source_audit"):
        database.rows(f"drop table fencelock_{table}")
    MySQLSource(url).install()
    with pytest.raises(SourceError, match=r"is source .* now: its schema was replaced"):
        client.one_token()


def test_t6_a_counter_outlives_every_lock(url: str, database: Database) -> None:
    client = SqlClient(url)
    last = client.one_token()
    assert client.ask(ask.Purge()) == 1
    assert database.value("select count(*) from fencelock_lock") == 0
    assert client.one_token() == last + 1


def test_a_break_says_the_same_when_it_is_asked_again(url: str, database: Database) -> None:
    client = SqlClient(url)
    client.token("lock", "holder")
    broken = client.ask(ask.Break("lock", "breaker", "operator", "a test"))
    assert (broken.token, broken.holder) == (2, "tester")
    assert client.token("lock", "next") == 3
    assert client.ask(ask.Break("lock", "breaker", "operator", "a test")) == broken
    assert client.ask(ask.Inspect("lock")).is_held
    assert "operator broke it: a test" not in client.ask(ask.Renew((("lock", "next"),))).lost.values()
    assert database.value("select count(*) from fencelock_source_audit") == 1


@pytest.mark.server_wide
def test_g12_a_restore_brings_back_rights_and_keys_and_the_documented_steps_take_them_away(
    guarded: Guarded, role: str
) -> None:
    story = RestoredRights(guarded, role)
    dump = _dump(guarded.database)
    story.take_away()
    _restore(guarded.database, dump)
    story.check()


def test_a_dump_without_its_routines_serves_nobody_until_install_has_made_them_anew(guarded: Guarded) -> None:
    """`mysqldump` leaves them out, unless it is asked for them."""
    database, guard = guarded.database, guarded.guard()
    url = database.url()
    MySQLSource(url).install()
    with guard.transaction(HandmadeLease(5)) as native:
        write(native)
    dump = _dump(database, "--skip-routines")
    database.rows(f"DROP DATABASE {database.name}")
    database.server.rows(f"CREATE DATABASE {database.name}")
    _restore(database, dump)
    with pytest.raises(SchemaError, match="fencelock install --source"):
        one_token(url)
    with pytest.raises(SchemaError, match="fencelock install --guard"):
        guarded.guard().seal(HandmadeLease(6))
    with guarded.client() as native, pytest.raises(guarded.sql.client_error, match="does not exist"):
        write(native)
    (found,) = MySQLGuard(url).examine()
    assert found.code == "no-marks"
    assert found.remedy.startswith("as their owner, run `fencelock install --guard mysql://")
    MySQLSource(url).install()
    guarded.guard().install()
    assert one_token(url) == 1
    with pytest.raises(fencelock.StaleTokenError):
        guarded.guard().seal(HandmadeLease(4))
    with guarded.guard().transaction(HandmadeLease(6)) as native:
        write(native, "after the restore")
    assert guarded.value() == "after the restore"
