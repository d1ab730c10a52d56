"""A source's schema on an SQL server, and its users: installed once, refused when it is another, few rights needed."""

import threading
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import SchemaError, SourceError, SourceUnavailableError
from fencelock.protocol import source_requests as ask
from tests.sql.clients import PublicSource, SqlClient, one_token
from tests.sql.dialect import SqlDialect, install, run
from tests.sql.interleaving import holding
from tests.sql.marks import kinds, one_version
from tests.sql.stage import SqlStage
from tests.support.helpers import wait_until

pytestmark = pytest.mark.server_wide


# --- the schema -----------------------------------------------------------------------------------
@kinds
def test_a_database_without_the_schema_says_how_it_is_made(database: Any, kind: str) -> None:
    with PublicSource(kind, database.url()) as public:
        for request in (
            lambda: public.do(public.source.lock("lock").acquire()),
            lambda: public.do(public.source.info("lock")),
            lambda: public.do(public.source.describe()),
            lambda: public.do(public.source.purge()),
        ):
            with pytest.raises(
                SchemaError, match=r"holds no source of tokens.*run `fencelock install --source "
            ) as caught:
                request()
            assert caught.value.definite
        public.do(public.source.install())
        assert public.do(public.source.lock("lock").acquire()).token == 1


@one_version
def test_a_schema_of_another_version_is_refused_and_left_alone(sql: SqlDialect, url: str, database: Any) -> None:
    one_token(url)
    database.rows(f"UPDATE {sql.prefix}source SET {sql.schema_column} = 99")
    with fencelock.connect(url) as source:
        for request in (source.lock("lock").acquire, source.describe, source.install):
            with pytest.raises(SchemaError, match=r"schema 99, and this version .* has schema 3: a newer"):
                request()
    assert database.value(f"SELECT {sql.schema_column} FROM {sql.prefix}source") == 99


@one_version
def test_a_source_whose_row_is_gone_is_refused(sql: SqlDialect, url: str, database: Any) -> None:
    one_token(url)
    database.rows(f"DELETE FROM {sql.prefix}source")
    with fencelock.connect(url) as source:
        for request in (source.lock("lock").acquire, source.describe):
            with pytest.raises(SchemaError, match="its one row is missing"):
                request()


@pytest.mark.process
@one_version
def test_ten_processes_install_at_once_and_agree(sql: SqlDialect, database: Any, tmp_path: Path) -> None:
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


@one_version
def test_two_databases_are_two_sources(sql: SqlDialect, url: str) -> None:
    with (
        sql.fresh_database() as database,
        fencelock.connect(url) as first,
        fencelock.connect(install(database.url())) as second,
    ):
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


# --- names and numbers ----------------------------------------------------------------------------
@one_version
def test_locks_are_listed_page_by_page_in_the_order_of_their_bytes(url: str, client: SqlClient) -> None:
    names = [f"{number:x}" for number in range(520)] + ["é" * 256, "\U0001f512" * 128, "x" * 512, "Z", "z", "ä", " "]
    names += ["z ", "%s", "\\", "'", '"', "a\\'b"]
    for name in names:
        client.token(name)
    with fencelock.connect(url) as source:
        listed = [info.name for info in source.locks()]
        assert listed == sorted(names, key=str.encode)
        assert source.info("\U0001f512" * 128).is_held
        with source.lock("told", holder="日本語 \U0001f512 \\'%s"):
            assert source.info("told").holder == "日本語 \U0001f512 \\'%s"
        with pytest.raises(fencelock.ConfigError, match="512"):
            source.lock("x" * 513)


# --- accounts -------------------------------------------------------------------------------------


@kinds
def test_an_account_that_may_take_locks_can_do_what_a_holder_does_and_no_more(
    sql: SqlDialect, owned: Any, kind: str
) -> None:
    url = owned.url(user="worker")
    with PublicSource(kind, url) as public, fencelock.connect(url) as other:
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
            with pytest.raises(SourceError, match=sql.denied) as caught:
                request()
            assert caught.value.definite
    with owned.connect(user="worker") as native:
        for statement in sql.operators_statements:
            with pytest.raises(sql.client_error, match=r"denied|owner"):
                run(native, statement)


@one_version
def test_an_account_without_the_right_to_make_a_schema_leaves_nothing(sql: SqlDialect, owned: Any) -> None:
    with sql.fresh_database() as empty:
        sql.permit_to_connect(empty, "worker")
        with pytest.raises(SourceError, match="does not permit it"):
            install(empty.url(user="worker"))
        assert empty.rows(sql.tables) == []


# --- limits ---------------------------------------------------------------------------------------
@one_version
def test_a_statement_that_the_server_gave_up_has_not_happened(sql: SqlDialect, url: str, database: Any) -> None:
    client = SqlClient(url)
    client.one_token()
    sql.limit_statements(client)
    with holding(sql, database, sql.hold_lock):
        with pytest.raises(SourceUnavailableError, match=r"statement timeout|Lock wait timeout") as caught:
            client.acquire("lock", "claim")
        assert caught.value.definite
    client.close()
    assert not client.ask(ask.Inspect("lock")).is_held
    client.close()
