"""Fixtures: a MariaDB server per test session, a database per test, and servers that a test may kill.

Every server begins as a copy of one template, which is made once per session.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fencelock.stores.mysql.source.store import MySQLSource
from tests.fleet import BaseFleet, fleet_of
from tests.private_server import copy_folder
from tests.sql.mysql.fix_server import ADMIN, LOCK_FILE, MySQLServer, initialise
from tests.sql.mysql.proxy import MySQLProxy

if TYPE_CHECKING:
    import pymysql
    from pymysql.cursors import Cursor


class Database:
    """A database of one test, on a server that it may share with other tests."""

    def __init__(self, server: MySQLServer, name: str) -> None:
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


class Fleet(BaseFleet):
    """All servers of a test session."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, LOCK_FILE)
        self._template: Path | None = None
        self._shared: MySQLServer | None = None

    def new_server(self) -> MySQLServer:
        """Return a server, not started yet."""
        if self._template is None:
            template = self.new_folder("template")
            initialise(template)
            self._template = template / "data"
        return self.copy_of(self._template)

    def copy_of(self, data: Path) -> MySQLServer:
        """Return a server over a copy of a data folder, not started yet."""
        server = MySQLServer(self.new_folder("server"))
        self._owned.append(server)
        copy_folder(data, server.data)
        (server.data / LOCK_FILE).unlink(missing_ok=True)
        return server

    def shared(self) -> MySQLServer:
        """Return the running server that the tests of this session share."""
        if self._shared is None:
            self._shared = self.new_server()
            self._shared.start()
        assert self._shared.is_running(), "a test has ended the server that all share"
        return self._shared


@pytest.fixture(scope="session")
def mysql_fleet() -> Iterator[Fleet]:
    """Yield what makes servers."""
    with fleet_of(Fleet, "fl-my-") as fleet:
        yield fleet


@pytest.fixture
def mysql_server(mysql_fleet: Fleet) -> MySQLServer:
    """Return the running server that all tests share: a test may neither end nor freeze it."""
    return mysql_fleet.shared()


_numbers = itertools.count(1)


@contextmanager
def fresh_mysql_database(server: MySQLServer) -> Iterator[Database]:
    """Have a new database on a server that others use too."""
    name = f"test_{next(_numbers)}"
    server.rows(f"create database {name}")
    yield Database(server, name)
    server.rows(f"drop database if exists {name}")


@pytest.fixture
def mysql_database(mysql_server: MySQLServer) -> Iterator[Database]:
    """Yield a database of the test's own on the shared server."""
    with fresh_mysql_database(mysql_server) as database:
        yield database


@pytest.fixture
def own_mysql(mysql_fleet: Fleet) -> Iterator[MySQLServer]:
    """Yield a running server of the test's own, which may do with it what it likes."""
    with mysql_fleet.new_server() as server:
        yield server


@pytest.fixture
def mysql_proxy(mysql_server: MySQLServer) -> Iterator[MySQLProxy]:
    """Yield a proxy before the shared server."""
    with MySQLProxy(mysql_server.port) as the_proxy:
        yield the_proxy


@pytest.fixture
def mysql_url(mysql_database: Database) -> str:
    """Return the address of a source in a database of the test's own."""
    MySQLSource(mysql_database.url()).install()
    return mysql_database.url()
