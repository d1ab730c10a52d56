"""Fixtures of the MySQL tests that are no servers; those are in the `fix_` modules."""

from collections.abc import Iterator

import pytest

import fencelock
from fencelock_lab.servers.mariadb import MariaDBFleet
from tests.guards import LOCK, RESOURCE
from tests.sql.mysql.dialect import MySQLDialect
from tests.sql.mysql.fix_mysql import Database
from tests.sql.mysql.guarded import TABLE, Guarded

LEVELS = ["read committed", "repeatable read", "serializable"]


@pytest.fixture
def sql(mysql_fleet: MariaDBFleet) -> MySQLDialect:
    """Return the server that the test runs on, for the fixtures that both servers share."""
    return MySQLDialect(mysql_fleet)


@pytest.fixture
def guarded(mysql_database: Database) -> Guarded:
    """A database whose table `reports` has one row, and is protected."""
    for statement in TABLE:
        mysql_database.rows(statement)
    fencelock.guard(mysql_database.url(), resource=RESOURCE, lock=LOCK).protect("reports")
    return Guarded(mysql_database)


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, mysql_database: Database) -> Iterator[str]:
    """Have guards' transactions on this level too, which is the server's default meanwhile."""
    before = mysql_database.value("SELECT @@global.tx_isolation")
    mysql_database.rows(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {request.param}")
    yield request.param
    mysql_database.rows(f"SET GLOBAL TRANSACTION ISOLATION LEVEL {before.replace('-', ' ')}")
