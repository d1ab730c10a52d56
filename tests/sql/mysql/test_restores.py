"""T7: a database that went back. The server cannot tell; who saw more refuses; the operator's step puts it right."""

import subprocess
from pathlib import Path

import pytest

import fencelock
from fencelock import SourceError
from fencelock.protocol import source_requests as ask
from fencelock.stores.mysql.source.store import MySQLSource
from fencelock_lab.servers.mariadb import MariaDBFleet, MariaDBServer
from tests.servers import need
from tests.sql.mysql.clients import Client, one_token
from tests.sql.mysql.fix_mysql import Database

DUMP, RUN = "/usr/bin/mariadb-dump", "/usr/bin/mariadb"


def _run(program: str, server: MariaDBServer, *arguments: str, said: bytes = b"") -> bytes:
    login = ["--no-defaults", "--host=127.0.0.1", f"--port={server.port}", "--user=root"]
    done = subprocess.run([need(program), *login, *arguments], input=said, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def _dump(database: Database) -> bytes:
    return _run(DUMP, database.server, "--routines", "--single-transaction", database.name)


def _restore(database: Database, dump: bytes) -> None:
    _run(RUN, database.server, database.name, said=dump)


def test_t7_a_dump_that_was_restored_over_the_source_is_refused_by_who_saw_more(
    mysql_url: str, mysql_database: Database
) -> None:
    client, waiting = Client(mysql_url), Client(mysql_url)
    client.one_token()
    dump = _dump(mysql_database)
    for _ in range(5):
        last = client.one_token()
    waiting.one_token("another")
    _restore(mysql_database, dump)
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
    mysql_url: str, mysql_database: Database
) -> None:
    """What the documents say of MySQL: a restore is not seen."""
    one_token(mysql_url)
    dump = _dump(mysql_database)
    last = max(one_token(mysql_url) for _ in range(5))
    _restore(mysql_database, dump)
    assert one_token(mysql_url) < last, "a token is issued twice: this is what the step is for"
    _restore(mysql_database, dump)
    with fencelock.connect(mysql_url) as source:
        raised = source.raise_epoch(reason="restored")
    assert one_token(mysql_url) == raised.last_token + 1 > last


def test_t7_a_raise_from_a_backup_is_above_what_was_issued_after_other_raises(
    mysql_url: str, mysql_database: Database
) -> None:
    """The backup knows nothing of the later epochs: the clock does."""
    dump = _dump(mysql_database)
    client = Client(mysql_url)
    client.raise_epoch()
    mysql_database.rows("update fencelock_source set token = token - %s", 2**41)  # It was raised half an hour ago.
    last = Client(mysql_url).one_token()
    _restore(mysql_database, dump)
    fresh = Client(mysql_url)
    assert fresh.raise_epoch().last_token > last


def test_t7_a_raise_is_above_what_the_operator_saw_also_when_the_clock_says_less(
    mysql_url: str, mysql_database: Database
) -> None:
    client = Client(mysql_url)
    mysql_database.rows("update fencelock_source set token = %s", 2**61)
    client.one_token()
    mysql_database.rows("update fencelock_source set token = 5")
    mysql_database.rows("delete from fencelock_lock")
    assert client.raise_epoch().last_token == 2**61 + 2**40


def test_t7_of_two_who_raise_at_once_one_does(mysql_url: str) -> None:
    first, second = Client(mysql_url), Client(mysql_url)
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


def test_t7_a_schema_that_was_made_anew_is_another_source(mysql_url: str, mysql_database: Database) -> None:
    client = Client(mysql_url)
    client.one_token()
    for table in ("source", "lock", "waiter", "source_audit"):
        mysql_database.rows(f"drop table fencelock_{table}")
    MySQLSource(mysql_url).install()
    with pytest.raises(SourceError, match=r"is source .* now: its schema was replaced"):
        client.one_token()


def test_t6_a_counter_outlives_every_lock(mysql_url: str, mysql_database: Database) -> None:
    client = Client(mysql_url)
    last = client.one_token()
    assert client.ask(ask.Purge()) == 1
    assert mysql_database.value("select count(*) from fencelock_lock") == 0
    assert client.one_token() == last + 1


def test_a_break_says_the_same_when_it_is_asked_again(mysql_url: str, mysql_database: Database) -> None:
    client = Client(mysql_url)
    client.token("lock", "holder")
    broken = client.ask(ask.Break("lock", "breaker", "operator", "a test"))
    assert (broken.token, broken.holder) == (2, "tester")
    assert client.token("lock", "next") == 3
    assert client.ask(ask.Break("lock", "breaker", "operator", "a test")) == broken
    assert client.ask(ask.Inspect("lock")).is_held
    assert "operator broke it: a test" not in client.ask(ask.Renew((("lock", "next"),))).lost.values()
    assert mysql_database.value("select count(*) from fencelock_source_audit") == 1
