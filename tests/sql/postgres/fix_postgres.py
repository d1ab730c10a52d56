"""Fixtures: a PostgreSQL server per version and test session, a database per test, and servers that a test may kill.

A test runs on both versions of `VERSIONS`; one that is heavy asks for a single one with `only("18")`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from fencelock.stores.registry import source_store
from fencelock.stores.statements import statements
from fencelock_lab.servers.postgres import ADMIN, VERSIONS, PostgresFleet, PostgresServer
from tests.fix_servers import fresh_name
from tests.sql.dialect import empty
from tests.sql.postgres.framing import PostgresProxy

SCHEMA_END = statements("fencelock.stores.postgres.source", "functions_history.sql")
"""Its last statements give the source its identity, which depends on the database."""


class Database:
    """A database of one test, on a server that it may share with other tests."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        self.server = server
        self.name = name

    def url(self, *, user: str = ADMIN, **params: str | int) -> str:
        return self.server.url(user=user, dbname=self.name, **params)

    def connect(self, *, user: str = ADMIN, **params: Any) -> psycopg.Connection:
        """Return a new connection in autocommit mode."""
        return self.server.connect(user=user, dbname=self.name, **params)

    def rows(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        return self.server.rows(statement, *params, dbname=self.name)

    def value(self, statement: str, *params: object) -> Any:
        return self.server.value(statement, *params, dbname=self.name)


def only(*kinds: str) -> pytest.MarkDecorator:
    """Run a test on these versions alone."""
    return pytest.mark.parametrize("postgres_kind", kinds, indirect=True)


@pytest.fixture(params=list(VERSIONS))
def postgres_kind(request: pytest.FixtureRequest) -> str:
    """Return a key of VERSIONS: the test runs once for each."""
    return request.param


@pytest.fixture
def postgres(postgres_fleet: PostgresFleet, postgres_kind: str) -> PostgresServer:
    """Return the running server that all tests share: a test may neither end nor freeze it."""
    return postgres_fleet.shared(postgres_kind)


Fill = Callable[[Database], None]


@contextmanager
def fresh_database(server: PostgresServer, fill: Fill = empty, *, has_source: bool = False) -> Iterator[Database]:
    """Have a new database on a server that others use too, with what `fill` makes of an empty one, and maybe a source.

    It is a copy of one that was filled once, which takes less time than to fill each.
    """
    made = Database(server, fresh_name())
    is_empty = fill is empty and not has_source
    _create(made, "template1" if is_empty else f"{fill.__name__}_{has_source}".lower(), fill, has_source=has_source)
    if has_source:
        # A source notices that it was copied: here its installation comes to its end.
        made.rows(f"{SCHEMA_END.insert_source}; {SCHEMA_END.insert_witness}")
    yield made
    with server.admin() as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(made.name)))


def _create(made: Database, template: str, fill: Fill, *, has_source: bool) -> None:
    # By a copy of the template's files, which takes half the time where they are in memory.
    create = f"create database {made.name} template {template} strategy file_copy"
    try:
        made.server.rows(create)
    except psycopg.errors.InvalidCatalogName:
        _make_template(made.server, template, fill, has_source=has_source)
        made.server.rows(create)


def _make_template(server: PostgresServer, template: str, fill: Fill, *, has_source: bool) -> None:
    """Fill a database for copies, unless another worker has."""
    with server.admin() as connection:
        connection.execute("select pg_advisory_lock(hashtext(%s))", [template])
        if connection.execute("select from pg_database where datname = %s", [template]).rowcount:
            return
        made = Database(server, fresh_name())
        connection.execute(f"create database {made.name} strategy file_copy".encode())
        fill(made)
        if has_source:
            source_store(made.url()).install()
            made.rows("truncate fencelock.source, fencelock.witness")
        connection.execute(f"alter database {made.name} rename to {template}".encode())


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    """Yield a database of the test's own on the shared server."""
    with fresh_database(postgres) as the_database:
        yield the_database


@pytest.fixture
def own_postgres(postgres_fleet: PostgresFleet, postgres_kind: str) -> Iterator[PostgresServer]:
    """Yield a running server of the test's own, which may do with it what it likes."""
    with postgres_fleet.copied_server(postgres_kind) as server:
        yield server


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[PostgresProxy]:
    """Yield a proxy before the shared server."""
    with PostgresProxy(postgres.port) as the_proxy:
        yield the_proxy
