"""What the tests of MySQL alone have other than those of both servers."""

import pytest

from fencelock_lab.servers.mariadb import MariaDBFleet
from tests.sql.mysql.dialect import MySQLDialect


@pytest.fixture
def sql(mysql_fleet: MariaDBFleet) -> MySQLDialect:
    """Return the server that the test runs on, for the fixtures that both servers share."""
    return MySQLDialect(mysql_fleet)
