"""The databases on which every adapter test runs; their table `reports` is protected."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fencelock
from tests.sql.mysql.fix_mysql import Database as MySQLDatabase
from tests.sql.mysql.fix_mysql import fresh_mysql_database
from tests.sql.postgres.fix_postgres import Database, fresh_database
from tests.support.guards import LOCK, RESOURCE

if TYPE_CHECKING:
    from fencelock_lab.servers.postgres import PostgresFleet

KINDS = ("sqlite", "postgres", "mysql")
POSTGRES = "15"
TABLES = (
    "CREATE TABLE reports (id INTEGER NOT NULL PRIMARY KEY, value VARCHAR(40))",
    "CREATE TABLE plain (id INTEGER NOT NULL PRIMARY KEY, value VARCHAR(40))",
    "INSERT INTO reports VALUES (1, 'first')",
    "INSERT INTO plain VALUES (1, 'first')",
)


_END_OTHERS = (
    "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
)
_OTHERS = "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()"


@dataclass
class GuardedDatabase:
    """The database of one test."""

    kind: str
    url: str
    """The guard's URL."""
    engines: tuple[str, str]
    """SQLAlchemy's URLs, synchronous and asynchronous."""
    settings: dict[str, Any]
    """Django's settings."""
    native: Any
    """Opens a plain connection, in autocommit mode."""
    refused: str = "takes writes only with its newest sealed token"
    """Part of the store's error for a write without a token."""

    def end_other_sessions(self) -> None:
        """Have the server end every session of the database, as it ends one that is idle for too long."""
        if self.kind == "postgres":
            self.rows(_END_OTHERS)
            return
        for (number,) in self.rows(_OTHERS):
            with suppress(Exception):  # It has ended meanwhile.
                self.rows(f"KILL {number}")

    def guard(self, *resources: str) -> fencelock.Guard:
        return fencelock.guard(self.url, resources=resources or (RESOURCE,), lock=LOCK)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        connection = self.native()
        try:
            cursor = connection.cursor()
            cursor.execute(statement)
            return [] if cursor.description is None else list(cursor.fetchall())
        finally:
            connection.close()

    def value(self, table: str = RESOURCE) -> Any:
        (row,) = self.rows(f"SELECT value FROM {table} WHERE id = 1")
        return row[0]


def make_tables(guarded: GuardedDatabase) -> None:
    for statement in TABLES:
        guarded.rows(statement)
    guarded.guard().protect(RESOURCE)


def _make_tables_in(database: Database) -> None:
    make_tables(_postgres(database))


@contextmanager
def open_guarded(kind: str, folder: Path, fleet: Any) -> Iterator[GuardedDatabase]:
    """Open a database with the tables of `make_tables`; `fleet` as for `open_database`."""
    if kind == "postgres":
        with fresh_database(fleet("postgres_fleet").shared(POSTGRES), _make_tables_in) as database:
            yield _postgres(database)
        return
    with open_database(kind, folder, fleet) as guarded:
        make_tables(guarded)
        yield guarded


@contextmanager
def open_database(kind: str, folder: Path, fleet: Any) -> Iterator[GuardedDatabase]:
    """Open an empty database; `fleet` returns the fleet of servers by its fixture's name."""
    if kind == "sqlite":
        yield _file(folder / "app.db")
        return
    if kind == "mysql":
        with fresh_mysql_database(fleet("mysql_fleet").shared()) as there:
            yield _mysql(there)
        return
    the_fleet: PostgresFleet = fleet("postgres_fleet")
    with fresh_database(the_fleet.shared(POSTGRES)) as database:
        yield _postgres(database)


def _file(path: Path) -> GuardedDatabase:
    sqlite3.connect(path).close()
    path.touch()
    return GuardedDatabase(
        "sqlite",
        f"sqlite:///{path}",
        (f"sqlite:///{path}", f"sqlite+aiosqlite:///{path}"),
        {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)},
        lambda: sqlite3.connect(path, isolation_level=None),
    )


def _postgres(database: Database) -> GuardedDatabase:
    engine = database.url().replace("postgresql://", "postgresql+psycopg://")
    settings = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": database.name,
        "USER": "postgres",
        "HOST": "127.0.0.1",
        "PORT": str(database.server.port),
    }
    return GuardedDatabase("postgres", database.url(), (engine, engine), settings, database.connect)


def _mysql(database: MySQLDatabase) -> GuardedDatabase:
    url = database.url()
    settings = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": database.name,
        "USER": "root",
        "HOST": "127.0.0.1",
        "PORT": str(database.server.port),
    }
    engines = (url.replace("mysql://", "mysql+pymysql://"), url.replace("mysql://", "mysql+aiomysql://"))
    return GuardedDatabase("mysql", url, engines, settings, database.connect, "FL001 no token presented")
