"""Fixtures of the tests that run on both SQL servers. `sql` says which one; all others follow from it.

The folders `postgres/` and `mysql/` have a `sql` of their own, so that the same fixtures serve them.
"""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencelock_lab.servers.mariadb import MariaDBFleet
from fencelock_lab.servers.postgres import PostgresFleet
from tests.sql.clients import SqlClient
from tests.sql.clock import ClockedServer, clocked_server
from tests.sql.dialect import MakeRole, SqlDialect, empty, install
from tests.sql.guarded import Guarded, make_guarded, make_table
from tests.sql.losses import LossScene, OpenScene
from tests.sql.mysql.dialect import MySQLDialect
from tests.sql.postgres.dialect import PostgresDialect
from tests.sql.stage import SqlStage
from tests.sql.waiters import Waiter
from tests.support.helpers import wait_until

VERSIONS = {"postgres15": "15", "postgres18": "18"}
SERVERS = (*VERSIONS, "mysql")
LEVELS = ["read committed", "repeatable read", "serializable"]


@pytest.fixture(params=SERVERS)
def sql_server(request: pytest.FixtureRequest) -> str:
    """Return one of SERVERS: the test runs once on each."""
    return request.param


@pytest.fixture
def sql(sql_server: str, postgres_fleet: PostgresFleet, mysql_fleet: MariaDBFleet) -> SqlDialect:
    """Return the server that the test runs on."""
    if sql_server in VERSIONS:
        return PostgresDialect(postgres_fleet, VERSIONS[sql_server])
    return MySQLDialect(mysql_fleet)


@pytest.fixture
def database(request: pytest.FixtureRequest, sql: SqlDialect) -> Iterator[Any]:
    """Yield a database of the test's own on the shared server, filled for one that asks for `guarded` or `url`."""
    fill = make_guarded if "guarded" in request.fixturenames else empty
    with sql.fresh_database(fill, has_source="url" in request.fixturenames) as made:
        yield made


@pytest.fixture
def own_database(sql: SqlDialect) -> Iterator[Any]:
    """Yield a database on a running server of the test's own, which may do with it what it likes."""
    with sql.own_database() as made:
        yield made


@pytest.fixture
def url(database: Any) -> str:
    """Return the address of a source."""
    return str(database.url())


@pytest.fixture
def own_url(own_database: Any) -> str:
    """Return the address of a source on a server of the test's own."""
    return install(own_database.url())


@pytest.fixture
def proxy(sql: SqlDialect) -> Iterator[Any]:
    """Yield a proxy before the shared server."""
    with sql.proxy_type(sql.shared().port) as made:
        yield made


@pytest.fixture
def client(url: str) -> Iterator[SqlClient]:
    """Yield a client of the source."""
    made = SqlClient(url)
    yield made
    made.close()


@pytest.fixture
def clocked(sql: SqlDialect) -> Iterator[ClockedServer]:
    """Yield a server of the test's own with a clock that jumps."""
    with clocked_server(sql) as made:
        yield made


@pytest.fixture(params=["sync", "async"])
def open_scene(request: pytest.FixtureRequest, sql: SqlDialect, url: str, proxy: Any, database: Any) -> OpenScene:
    """Return what opens a scene with one of the public APIs."""
    return lambda: LossScene(sql, request.param, url, proxy, database)


@pytest.fixture
def owned(sql: SqlDialect, database: Any) -> Iterator[Any]:
    """Yield a database whose installer is no superuser, and another account, `worker`, that may take locks there."""
    with sql.accounts(database):
        install(database.url(user="installer"))
        sql.permit_worker(database)
        yield database


@pytest.fixture
def stage(sql: SqlDialect, database: Any, url: str, tmp_path: Path) -> Iterator[SqlStage]:
    """Yield a place for real processes that share the source."""
    with SqlStage(sql, database, tmp_path) as made:
        yield made


@pytest.fixture
def unprotected(sql: SqlDialect, database: Any) -> Guarded:
    """Return a database with the table `reports`, and nothing of fencelock's."""
    make_table(database)
    return Guarded(sql, database)


@pytest.fixture
def guarded(sql: SqlDialect, database: Any) -> Guarded:
    """Return a database whose table `reports` has one row, and is protected."""
    return Guarded(sql, database)


@pytest.fixture
def make_role(sql: SqlDialect, guarded: Guarded) -> Iterator[MakeRole]:
    """Yield what makes roles without a right to the guarded table's resource."""
    with sql.roles(guarded.database) as make:
        yield make


@pytest.fixture
def role(make_role: MakeRole) -> str:
    return make_role()


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, sql: SqlDialect) -> Iterator[str]:
    """Yield an isolation level that `guarded.guard_at(level)` has."""
    with sql.server_level(request.param):
        yield request.param


@pytest.fixture
def no_stray_threads() -> Iterator[None]:
    """Wait until the thread of every waiter has ended."""
    before = set(threading.enumerate())
    yield
    stray = [thread for thread in set(threading.enumerate()) - before if isinstance(thread, Waiter)]
    wait_until(lambda: not any(thread.is_alive() for thread in stray))
