"""Fixtures: a MariaDB server per test session, a database per test, and servers that a test may kill.

Every server begins as a copy of one template, which is made once per session.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from fencelock.stores.mysql.source.store import MySQLSource
from fencelock_lab.servers.mariadb import ADMIN, MariaDBFleet, MariaDBServer
from tests.fix_servers import fresh_name
from tests.sql.mysql.framing import MySQLProxy

if TYPE_CHECKING:
    import pymysql
    from pymysql.cursors import Cursor


class Database:
    """A database of one test, on a server that it may share with other tests."""

    def __init__(self, server: MariaDBServer, name: str) -> None:
        self.server = server
        self.name = name

    def url(self, *, user: str = ADMIN, password: str = "", **params: str | int) -> str:
        return self.server.url(user=user, password=password, database=self.name, **params)

    def connect(self, *, user: str = ADMIN, **params: Any) -> "pymysql.Connection[Cursor]":
        """Return a new connection in autocommit mode."""
        return self.server.connect(user=user, database=self.name, **params)

    def rows(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        return self.server.rows(statement, *params, database=self.name)

    def value(self, statement: str, *params: object) -> Any:
        return self.server.value(statement, *params, database=self.name)


@pytest.fixture
def mysql_server(mysql_fleet: MariaDBFleet) -> MariaDBServer:
    """Return the running server that all tests share: a test may neither end nor freeze it."""
    return mysql_fleet.shared()


@contextmanager
def fresh_mysql_database(server: MariaDBServer) -> Iterator[Database]:
    """Have a new database on a server that others use too."""
    name = fresh_name()
    server.rows(f"create database {name}")
    yield Database(server, name)
    server.rows(f"drop database if exists {name}")


@pytest.fixture
def mysql_database(mysql_server: MariaDBServer) -> Iterator[Database]:
    """Yield a database of the test's own on the shared server."""
    with fresh_mysql_database(mysql_server) as database:
        yield database


@pytest.fixture
def own_mysql(mysql_fleet: MariaDBFleet) -> Iterator[MariaDBServer]:
    """Yield a running server of the test's own, which may do with it what it likes."""
    with mysql_fleet.new_server() as server:
        yield server


@pytest.fixture
def mysql_proxy(mysql_server: MariaDBServer) -> Iterator[MySQLProxy]:
    """Yield a proxy before the shared server."""
    with MySQLProxy(mysql_server.port) as the_proxy:
        yield the_proxy


@pytest.fixture
def mysql_url(mysql_database: Database) -> str:
    """Return the address of a source in a database of the test's own."""
    MySQLSource(mysql_database.url()).install()
    return mysql_database.url()
