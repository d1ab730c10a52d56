"""Fixtures: a PostgreSQL server per version and test session, a database per test, and servers that a test may kill.

A test runs on both versions of `KINDS`; one that is heavy asks for a single one with `only("18")`.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from tests.fleet import BaseFleet, fleet_of
from tests.private_server import copy_folder
from tests.sql.postgres.fix_programs import KINDS, Programs, find_programs
from tests.sql.postgres.fix_server import ADMIN, PostgresServer
from tests.sql.postgres.proxy import Proxy


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


class Fleet(BaseFleet):
    """All servers of a test session."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "postmaster.pid")
        self._programs: dict[str, Programs] = {}
        self._shared: dict[str, PostgresServer] = {}
        self._templates: dict[str, Path] = {}

    def programs(self, kind: str) -> Programs:
        if kind not in self._programs:
            self._programs[kind] = find_programs(kind, self.folder)
        return self._programs[kind]

    def new_server(self, kind: str) -> PostgresServer:
        """Return a server, not started yet, with an identity of its own; it takes a second."""
        server = self._adopt(self.programs(kind))
        initialise(server.programs, server.folder)
        return server

    def copied_server(self, kind: str) -> PostgresServer:
        """Return a server, not started yet, quickly: every one of these has the same system identifier."""
        if kind not in self._templates:
            self._templates[kind] = self.new_folder(f"template{kind}")
            initialise(self.programs(kind), self._templates[kind])
        return self.copy_of(self._templates[kind] / "data", self.programs(kind))

    def copy_of(self, data: Path, programs: Programs) -> PostgresServer:
        """Return a server over a copy of a data folder, not started yet."""
        server = self._adopt(programs)
        copy_folder(data, server.data)
        (server.data / "postmaster.pid").unlink(missing_ok=True)
        return server

    def _adopt(self, programs: Programs) -> PostgresServer:
        server = PostgresServer(programs, self.new_folder(f"server{programs.version}"))
        self._owned.append(server)
        return server

    def shared(self, kind: str) -> PostgresServer:
        """Return the running server that the tests of this session share."""
        if kind not in self._shared:
            server = self.new_server(kind)
            server.start()
            self._shared[kind] = server
        assert self._shared[kind].is_running(), "a test has ended the server that all share"
        return self._shared[kind]


def initialise(programs: Programs, folder: Path) -> None:
    """Fill `folder / "data"` with an empty cluster."""
    options = ["--auth=trust", f"--username={ADMIN}", "--encoding=UTF8", "--locale=C", "--no-sync"]
    programs.run("initdb", "-D", folder / "data", *options, cwd=folder)


def only(*kinds: str) -> pytest.MarkDecorator:
    """Run a test on these versions alone."""
    return pytest.mark.parametrize("postgres_kind", kinds, indirect=True)


@pytest.fixture(scope="session")
def postgres_fleet() -> Iterator[Fleet]:
    """Yield what makes servers."""
    with fleet_of(Fleet, "fl-pg-") as fleet:
        yield fleet


@pytest.fixture(params=list(KINDS))
def postgres_kind(request: pytest.FixtureRequest) -> str:
    """Return a key of KINDS: the test runs once for each."""
    return request.param


@pytest.fixture
def postgres(postgres_fleet: Fleet, postgres_kind: str) -> PostgresServer:
    """Return the running server that all tests share: a test may neither end nor freeze it."""
    return postgres_fleet.shared(postgres_kind)


_numbers = itertools.count(1)


@contextmanager
def fresh_database(server: PostgresServer) -> Iterator[Database]:
    """Have a new database on a server that others use too."""
    name = f"test_{next(_numbers)}"
    server.rows(f"create database {name}")
    yield Database(server, name)
    with server.admin() as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    """Yield a database of the test's own on the shared server."""
    with fresh_database(postgres) as the_database:
        yield the_database


@pytest.fixture
def own_postgres(postgres_fleet: Fleet, postgres_kind: str) -> Iterator[PostgresServer]:
    """Yield a running server of the test's own, which may do with it what it likes."""
    with postgres_fleet.copied_server(postgres_kind) as server:
        yield server


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    """Yield a proxy before the shared server."""
    with Proxy(postgres.port) as the_proxy:
        yield the_proxy
