"""What the tests of PostgreSQL alone have other than those of both servers."""

from collections.abc import Callable, Iterator

import pytest

from fencelock_lab.servers.postgres import PostgresFleet, PostgresServer
from tests.sql.clients import SqlClient
from tests.sql.dialect import install
from tests.sql.postgres.dialect import PostgresDialect
from tests.sql.postgres.fix_postgres import Database
from tests.sql.postgres.issued import IssuedTokens


@pytest.fixture
def sql(postgres_fleet: PostgresFleet, postgres_kind: str) -> PostgresDialect:
    """Return the server that the test runs on, for the fixtures that both servers share."""
    return PostgresDialect(postgres_fleet, postgres_kind)


@pytest.fixture
def issued() -> IssuedTokens:
    return IssuedTokens()


@pytest.fixture
def primary(own_postgres: PostgresServer, issued: IssuedTokens) -> PostgresServer:
    """Return a server with a source that has issued a few tokens."""
    install(own_postgres.url())
    issued.issue(own_postgres.url())
    return own_postgres


@pytest.fixture
def dumped(database: Database, issued: IssuedTokens) -> Database:
    """Return a database with a source, on the shared server."""
    install(database.url())
    issued.issue(database.url())
    return database


@pytest.fixture
def clients() -> Iterator[Callable[[str], SqlClient]]:
    """Yield what opens a client; it closes with the test."""
    opened: list[SqlClient] = []

    def open_client(url: str) -> SqlClient:
        opened.append(SqlClient(url))
        return opened[-1]

    yield open_client
    for client in opened:
        client.close()
