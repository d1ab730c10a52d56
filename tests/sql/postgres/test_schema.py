"""The source's schema and its users: installed once, refused when it is another, used by roles with little right, in
databases of every encoding and with every setting that a role may have by default.
"""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.errors import CharacterNotInRepertoire, InvalidParameterValue

import fencelock
from fencelock import SchemaError, SourceError, SourceUnavailableError
from fencelock.protocol import source_requests as ask
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock.stores.registry import guard_store
from fencelock_lab.servers.postgres import PostgresServer
from tests.helpers import wait_until
from tests.sql.clients import PublicSource, SqlClient, one_token
from tests.sql.dialect import SqlDialect
from tests.sql.postgres.fix_postgres import Database, only
from tests.sql.stage import SqlStage

pytestmark = pytest.mark.server_wide

kinds = pytest.mark.parametrize("kind", ["sync", "async"])


@pytest.fixture
def url(database: Database) -> str:
    PostgresSource(database.url()).install()
    return database.url()


# --- the schema -----------------------------------------------------------------------------------
@kinds
def test_a_database_without_the_schema_says_how_it_is_made(database: Database, kind: str) -> None:
    with PublicSource(kind, database.url()) as public:
        for request in (
            lambda: public.do(public.source.lock("lock").acquire()),
            lambda: public.do(public.source.info("lock")),
            lambda: public.do(public.source.describe()),
            lambda: public.do(public.source.purge()),
        ):
            with pytest.raises(SchemaError, match=r"holds no fencelock schema.*run `fencelock install`") as caught:
                request()
            assert caught.value.definite
        public.do(public.source.install())
        assert public.do(public.source.lock("lock").acquire()).token == 1


@only("18")
def test_a_schema_of_another_version_is_refused_and_left_alone(url: str, database: Database) -> None:
    one_token(url)
    database.rows("update fencelock.source set schema = 99")
    with fencelock.connect(url) as source:
        for request in (source.lock("lock").acquire, source.describe, source.install):
            with pytest.raises(SchemaError, match=r"source of tokens with schema 99, and this version .* has schema 1"):
                request()
    assert database.value("select schema from fencelock.source") == 99


@only("18")
def test_a_source_whose_row_is_gone_is_refused(url: str, database: Database) -> None:
    one_token(url)
    database.rows("delete from fencelock.source")
    with fencelock.connect(url) as source:
        for request in (source.lock("lock").acquire, source.describe):
            with pytest.raises(SchemaError, match="row was deleted; restore it from a backup"):
                request()


@pytest.mark.process
@only("18")
def test_ten_processes_install_at_once_and_agree(sql: SqlDialect, database: Database, tmp_path: Path) -> None:
    with SqlStage(sql, database, tmp_path) as stage:
        actors = [
            stage.actor("say('ready'); hear(); source.install(); say(source.describe().source_id)") for _ in range(10)
        ]
        for actor in actors:
            assert actor.hear() == "ready"
        for actor in actors:
            actor.say()
        assert len({actor.hear() for actor in actors}) == 1
    assert one_token(database.url()) == 1


@only("18")
def test_two_databases_are_two_sources(postgres: PostgresServer, url: str) -> None:
    other = Database(postgres, "the_other")
    postgres.rows("create database the_other")
    PostgresSource(other.url()).install()
    with fencelock.connect(url) as first, fencelock.connect(other.url()) as second:
        held = first.lock("lock", ttl=600.0).acquire()
        assert held is not None
        assert second.lock("lock").acquire(blocking=False) is not None
        assert first.describe().source_id != second.describe().source_id
        waiting = threading.Thread(target=lambda: first.lock("lock").acquire())
        waiting.start()
        wait_until(lambda: first.info("lock").waiters)
        assert second.info("lock").waiters == ()
        held.release()
        waiting.join(30)
    postgres.rows("drop database the_other with (force)")


# --- names ----------------------------------------------------------------------------------------
@only("18")
def test_locks_are_listed_page_by_page_in_the_order_of_their_bytes(url: str) -> None:
    client = SqlClient(url)
    names = [f"{number:x}" for number in range(520)] + ["é" * 256, "\U0001f512" * 128, "x" * 512, "Z", "z", "ä", " "]
    for name in names:
        client.token(name)
    with fencelock.connect(url) as source:
        listed = [info.name for info in source.locks()]
        assert listed == sorted(names, key=str.encode)
        assert source.info("\U0001f512" * 128).is_held
        with pytest.raises(fencelock.ConfigError, match="512"):
            source.lock("x" * 513)
    client.close()


@only("18")
@pytest.mark.parametrize(("encoding", "can_say_it"), [("LATIN1", False), ("EUC_JP", False), ("SQL_ASCII", True)])
def test_names_are_bytes_in_databases_of_any_encoding(
    postgres: PostgresServer, encoding: str, can_say_it: bool
) -> None:
    """The holder's name is text, for people to read: a database that cannot hold it says so."""
    name = f"in_{encoding.lower()}"
    postgres.rows(f"create database {name} encoding '{encoding}' template template0")
    database = Database(postgres, name)
    PostgresSource(database.url()).install()
    with fencelock.connect(database.url()) as source:
        locks = {text: source.lock(text, holder="a plain name") for text in ("é", "\U0001f512", "日本", "\\x41", "%s")}
        leases = {text: lock.acquire() for text, lock in locks.items()}
        assert None not in leases.values()
        assert {info.name for info in source.locks()} == set(locks)
        lock = source.lock("told", holder="日本語 \U0001f512")
        if can_say_it:
            lock.acquire()
            assert source.info("told").holder == "日本語 \U0001f512"
        else:
            with pytest.raises(SourceError, match=rf'has no equivalent in encoding "{encoding}"') as caught:
                lock.acquire()
            assert caught.value.definite
            assert source.lock("told").acquire(timeout=30) is not None
    postgres.rows(f"drop database {name} with (force)")


# --- roles ----------------------------------------------------------------------------------------
@pytest.fixture
def roles(postgres: PostgresServer) -> Iterator[None]:
    postgres.rows("create role installer login")
    postgres.rows("create role worker login")
    yield
    for role in ("worker", "installer"):
        for database in ("owned", "postgres"):
            if postgres.rows("select from pg_database where datname = %s", database):
                postgres.rows(f"drop owned by {role}", dbname=database)
    postgres.rows("drop database if exists owned with (force)")
    for role in ("worker", "installer"):
        postgres.rows(f"drop role {role}")


@pytest.fixture
def owned(postgres: PostgresServer, roles: None) -> Database:
    """Return a database whose owner, no superuser, has installed the schema; another role may use it."""
    postgres.rows("create database owned owner installer")
    database = Database(postgres, "owned")
    PostgresSource(database.url(user="installer")).install()
    with database.connect(user="installer") as connection:
        connection.execute("grant usage on schema fencelock to worker")
    return database


@kinds
def test_a_role_that_may_use_the_schema_can_do_what_a_holder_does_and_no_more(owned: Database, kind: str) -> None:
    with PublicSource(kind, owned.url(user="worker")) as public, fencelock.connect(owned.url(user="worker")) as other:
        lease = public.do(public.source.lock("lock", ttl=600.0).acquire())
        waiting = threading.Thread(target=lambda: other.lock("lock", ttl=600.0).acquire())
        waiting.start()
        wait_until(lambda: other.info("lock").waiters)
        assert public.do(lease.release())
        waiting.join(30)
        for request in (
            lambda: public.do(public.source.break_lock("lock", reason="a test")),
            lambda: public.do(public.source.raise_epoch(reason="a test")),
            lambda: public.do(public.source.purge()),
        ):
            with pytest.raises(
                SourceError, match=r"does not permit it \(permission denied for function \w+\)"
            ) as caught:
                request()
            assert caught.value.definite
        owned.rows("truncate fencelock.witness")  # A recovery: whoever comes first begins the history.
        assert public.do(public.source.lock("another").acquire()).token > lease.token
        assert public.do(public.source.describe()).epoch == 2


@only("18")
@pytest.mark.parametrize("name", [b"\xff\xff", b"a\0", b"\xed\xa0\x80", b"", b"x" * 513])
def test_a_role_cannot_make_a_lock_that_operators_cannot_read(owned: Database, name: bytes) -> None:
    with owned.connect(user="worker") as connection:
        for call in (
            "select fencelock.acquire(%s, 'claim', 'me', 1000, 1, 'wait', 'told', 1000, 10)",
            "select fencelock.acquire(%s, 'claim', 'me', 1000, 1, 'poll', 'told', 1000, 10)",
            "select fencelock.release(%s, 'claim', 1)",
        ):
            with pytest.raises((InvalidParameterValue, CharacterNotInRepertoire)):
                connection.execute(call.encode(), (name,))
    with fencelock.connect(owned.url()) as source:
        assert list(source.locks()) == []


@only("18")
def test_a_role_without_the_right_to_make_a_schema_leaves_nothing(database: Database, roles: None) -> None:
    with pytest.raises(SourceError, match="does not permit it"):
        PostgresSource(database.url(user="worker")).install()
    assert database.value("select to_regnamespace('fencelock') is null")


@only("18")
@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_isolation = 'repeatable read'",
        "synchronous_commit = 'off'",
        "search_path = 'evil, pg_catalog'",
        "timezone = 'Asia/Kathmandu'",
        "bytea_output = 'escape'",
        "standard_conforming_strings = 'off'",
        "client_encoding = 'latin1'",
    ],
)
def test_what_a_role_has_set_by_default_changes_nothing(owned: Database, setting: str) -> None:
    name, value = setting.split(" = ")
    owned.rows(f"alter role worker set {name} = {value}" if name != "search_path" else SEARCH_EVIL)
    owned.rows("create schema evil")
    owned.rows("create function evil.pg_current_xact_id() returns int language sql as 'select 1'")
    owned.rows("create function evil.nextval(text) returns bigint language sql as 'select 1::bigint'")
    owned.rows("grant usage on schema evil to worker")
    with fencelock.connect(owned.url(user="worker")) as source:
        tokens = []
        for turn in range(3):
            with source.lock("ünï\\x", ttl=30.0) as lease:
                tokens.append(lease.token)
                assert source.lock("ünï\\x").acquire(timeout=0.01) is None
                assert [info.name for info in source.locks()] == ["ünï\\x"]
            if turn == 1:
                owned.rows("truncate fencelock.witness")
        assert tokens == sorted(set(tokens))
        assert source.describe().epoch == 2


def test_t2_the_last_tokens_are_refused_with_a_remedy(url: str, database: Database) -> None:
    with fencelock.connect(url) as source:
        for last in (2**63 - 2**25, 2**63 - 1):
            database.rows("SELECT setval('fencelock.token', %s)", last)
            database.rows("UPDATE fencelock.source SET bound = %s, xid = pg_current_xact_id()::xid", last)
            for attempt in (source.lock("lock").acquire, lambda: source.raise_epoch(reason="a test")):
                with pytest.raises(SourceError, match=r"no token is left above .*: make a new source") as caught:
                    attempt()
                assert caught.value.definite


def test_the_schema_is_made_where_slips_of_plpgsql_are_errors(database: Database) -> None:
    url = database.url(options="-c plpgsql.extra_errors=all")
    PostgresSource(url).install()
    guard_store(url).install()
    with fencelock.connect(url) as source, source.lock("lock") as lease:
        assert lease.token == 1


def test_t7_whoever_raises_the_epoch_is_told_the_new_one_however_the_planner_joins(database: Database) -> None:
    PostgresSource(database.url()).install()
    with fencelock.connect(database.url(options="-c geqo_threshold=2")) as source:
        before = source.describe()
        after = source.raise_epoch(reason="a test")
        assert (after.epoch, after) == (before.epoch + 1, source.describe())


SEARCH_EVIL = "alter role worker set search_path = evil, pg_catalog"


# --- limits that a role may have ------------------------------------------------------------------
@only("18")
def test_a_connection_that_the_server_ended_for_idleness_is_made_anew(owned: Database) -> None:
    owned.rows("alter role worker set idle_session_timeout = '50ms'")
    with fencelock.connect(owned.url(user="worker")) as source:
        for _ in range(3):
            lease = source.lock("lock", ttl=600.0).acquire()
            assert lease is not None
            wait_until(lambda: not owned.rows("select from pg_stat_activity where usename = 'worker'"))
            assert lease.release()


@only("18")
def test_a_statement_that_the_server_broke_off_has_not_happened(owned: Database) -> None:
    owned.rows("alter role worker set statement_timeout = '100ms'")
    client = SqlClient(owned.url(user="worker"))
    client.one_token()
    with owned.connect() as side, side.transaction():
        side.execute("select from fencelock.lock where name = 'lock' for update")
        with pytest.raises(SourceUnavailableError, match="statement timeout") as caught:
            client.acquire("lock", "claim")
        assert caught.value.definite
    client.close()
    assert not client.ask(ask.Inspect("lock")).is_held
    client.close()
