"""What the fixtures promise: servers that really start, stop, die and freeze."""

import pytest

from tests.postgres.fix_postgres import Database
from tests.postgres.fix_server import PostgresServer

pytestmark = pytest.mark.process


def test_the_version_is_the_one_asked_for(postgres: PostgresServer, postgres_kind: str) -> None:
    assert postgres.value("select current_setting('server_version_num')::int / 10000") == postgres.programs.version
    assert postgres.programs.version >= int(postgres_kind)


def test_each_test_has_a_database_of_its_own(database: Database) -> None:
    assert database.value("select current_database()") == database.name
    assert database.value("select count(*) from pg_class where relname = 'leftover'") == 0
    database.rows("create table leftover ()")


def test_each_test_has_a_database_of_its_own_again(database: Database) -> None:
    assert database.value("select count(*) from pg_class where relname = 'leftover'") == 0
    database.rows("create table leftover ()")


def test_what_is_committed_survives_a_kill(own_postgres: PostgresServer) -> None:
    own_postgres.rows("create table kept as select 7 as value")
    own_postgres.crash()
    assert own_postgres.value("select value from kept") == 7
    assert "automatic recovery in progress" in own_postgres.log
