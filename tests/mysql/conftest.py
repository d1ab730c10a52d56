"""Fixtures of the MySQL tests that are no servers; those are in the `fix_` modules."""

import pytest

import fenceline
from tests.guards import LOCK, RESOURCE
from tests.mysql.fix_mysql import Database
from tests.mysql.guarded import TABLE, Guarded


@pytest.fixture
def guarded(mysql_database: Database) -> Guarded:
    """A database whose table `reports` has one row, and is protected."""
    for statement in TABLE:
        mysql_database.rows(statement)
    fenceline.guard(mysql_database.url(), resource=RESOURCE, lock=LOCK).protect("reports")
    return Guarded(mysql_database)
