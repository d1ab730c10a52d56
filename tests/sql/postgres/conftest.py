"""Fixtures of the PostgreSQL tests that are no servers; those are in the `fix_` modules."""

import pytest

import fencelock
from fencelock_lab.servers.postgres import PostgresFleet
from tests.guards import LOCK, RESOURCE
from tests.sql.postgres.dialect import PostgresDialect
from tests.sql.postgres.fix_postgres import Database
from tests.sql.postgres.guarded import TABLE, Guarded


@pytest.fixture
def sql(postgres_fleet: PostgresFleet, postgres_kind: str) -> PostgresDialect:
    """Return the server that the test runs on, for the fixtures that both servers share."""
    return PostgresDialect(postgres_fleet, postgres_kind)


@pytest.fixture
def guarded(database: Database) -> Guarded:
    """A database whose table `reports` has one row, and is protected."""
    with database.connect() as native:
        native.execute(TABLE)
    fencelock.guard(database.url(), resource=RESOURCE, lock=LOCK).protect("reports")
    return Guarded(database)
