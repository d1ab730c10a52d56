"""What only PostgreSQL has around a source's schema: encodings, roles, and settings that a role has by default."""

import pytest
from psycopg.errors import CharacterNotInRepertoire, InvalidParameterValue

import fencelock
from fencelock import SourceError
from fencelock.stores.postgres.source.store import PostgresSource
from fencelock.stores.registry import guard_store
from fencelock_lab.servers.postgres import PostgresServer
from tests.fix_servers import fresh_name
from tests.sql.clients import PublicSource
from tests.sql.dialect import SqlDialect
from tests.sql.marks import kinds
from tests.sql.postgres.fix_postgres import Database, only
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide


# --- names ----------------------------------------------------------------------------------------


@only("18")
@pytest.mark.parametrize(("encoding", "can_say_it"), [("LATIN1", False), ("EUC_JP", False), ("SQL_ASCII", True)])
def test_names_are_bytes_in_databases_of_any_encoding(
    postgres: PostgresServer, encoding: str, can_say_it: bool
) -> None:
    """The holder's name is text, for people to read: a database that cannot hold it raises an error."""
    name = fresh_name(encoding.lower())
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


@kinds
def test_a_role_that_may_use_the_schema_begins_the_history_after_a_recovery(owned: Database, kind: str) -> None:
    with PublicSource(kind, owned.url(user="worker")) as public:
        before = public.do(public.source.lock("lock", ttl=600.0).acquire())
        owned.rows("truncate fencelock.witness")  # As a recovery does.
        assert public.do(public.source.lock("another").acquire()).token > before.token
        assert public.do(public.source.describe()).epoch == 2


@only("18")
@kinds
def test_a_role_without_usage_learns_what_its_owner_has_to_grant(owned: Database, kind: str) -> None:
    owned.rows("REVOKE USAGE ON SCHEMA fencelock FROM worker")
    with (
        PublicSource(kind, owned.url(user="worker")) as public,
        pytest.raises(SourceError, match="GRANT USAGE ON SCHEMA fencelock TO") as caught,
    ):
        public.do(public.source.lock("lock").acquire())
    assert caught.value.definite


@only("18")
def test_a_role_without_a_right_on_a_table_is_not_advised_to_get_it(owned: Database) -> None:
    with (
        PublicSource("sync", owned.url(user="worker")) as public,
        pytest.raises(SourceError, match=r"for table source\): have the owner .* USAGE .* and no other grant$"),
    ):
        public.do(public.source.install())


@only("18")
def test_a_role_that_may_not_make_a_schema_learns_who_may(owned: Database, sql: SqlDialect) -> None:
    with (
        sql.fresh_database() as empty,
        PublicSource("sync", empty.url(user="worker")) as public,
        pytest.raises(SourceError, match=r"for database \w+\): connect as a role that may create a schema there"),
    ):
        public.do(public.source.install())


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


def test_t7_a_raise_returns_the_new_epoch_for_any_plan_of_the_server(database: Database) -> None:
    PostgresSource(database.url()).install()
    with fencelock.connect(database.url(options="-c geqo_threshold=2")) as source:
        before = source.describe()
        after = source.raise_epoch(reason="a test")
        assert (after.epoch, after) == (before.epoch + 1, source.describe())


SEARCH_EVIL = "alter role worker set search_path = evil, pg_catalog"


# --- limits that a role may have ------------------------------------------------------------------
@only("18")
def test_a_connection_that_the_server_ended_for_idleness_is_made_anew(owned: Database) -> None:
    # Longer than a busy machine needs between two statements of a request.
    owned.rows("alter role worker set idle_session_timeout = '300ms'")
    with fencelock.connect(owned.url(user="worker")) as source:
        for _ in range(2):
            lease = source.lock("lock", ttl=600.0).acquire()
            assert lease is not None
            wait_until(lambda: not owned.rows("select from pg_stat_activity where usename = 'worker'"))
            assert lease.release()
