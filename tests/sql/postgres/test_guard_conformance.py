"""The PostgreSQL guard keeps every rule, synchronously and on the event loop."""

import psycopg
import pytest

from fencelock.stores.postgres.guard.store import PostgresGuard
from fencelock.testing import AsyncGuardConformance, GuardConformance
from tests.sql.postgres.fix_postgres import Database


class InDatabase:
    """A fresh database for each check, with two tables."""

    database: Database

    def setup_method(self) -> None:
        """The database comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_database(self, database: Database) -> None:
        self.database = database
        super().setup_method()

    def make_url(self) -> str:
        with self.database.connect() as native:
            for table in self.tables:
                native.execute(f"CREATE TABLE {table} (key text PRIMARY KEY, value text)")
        PostgresGuard(self.database.url()).install()
        return self.database.url()

    def put(self, native: psycopg.Connection, table: str, key: str, value: str) -> None:
        native.execute(UPSERT.format(table), (key, value))

    def put_alone(self, table: str, key: str, value: str) -> None:
        with self.database.connect() as native:
            native.execute(UPSERT.format(table), (key, value))

    def get(self, table: str, key: str) -> str | None:
        rows = self.database.rows(f"SELECT value FROM {table} WHERE key = %s", key)
        return rows[0][0] if rows else None


UPSERT = "INSERT INTO {} VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value"


class TestPostgresGuard(InDatabase, GuardConformance):
    pass


class TestAsyncPostgresGuard(InDatabase, AsyncGuardConformance):
    async def put_async(self, native: psycopg.AsyncConnection, table: str, key: str, value: str) -> None:
        await native.execute(UPSERT.format(table), (key, value))
