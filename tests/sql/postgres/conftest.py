"""What the tests of PostgreSQL alone have other than those of both servers."""

import pytest

from fencelock_lab.servers.postgres import PostgresFleet
from tests.sql.postgres.dialect import PostgresDialect


@pytest.fixture
def sql(postgres_fleet: PostgresFleet, postgres_kind: str) -> PostgresDialect:
    """Return the server that the test runs on, for the fixtures that both servers share."""
    return PostgresDialect(postgres_fleet, postgres_kind)
