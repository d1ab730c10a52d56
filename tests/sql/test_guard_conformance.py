"""The guards of both SQL servers keep every rule, synchronously and on the event loop."""

from typing import Any

import pytest

from fencelock.stores.registry import guard_store
from fencelock.testing import AsyncGuardConformance, GuardConformance
from tests.sql.dialect import SqlDialect, run, run_async


class InDatabase:
    """A fresh database for each check, with two tables."""

    database: Any

    def setup_method(self) -> None:
        """The database comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_database(self, sql: SqlDialect, database: Any) -> None:
        self.database = database
        self.upsert = sql.upsert
        super().setup_method()

    def make_url(self) -> str:
        for table in self.tables:
            self.database.rows(f"CREATE TABLE {table} (name varchar(64) PRIMARY KEY, value varchar(64))")
        guard_store(self.database.url()).install()
        return self.database.url()

    def put(self, native: Any, table: str, key: str, value: str) -> None:
        run(native, self.upsert.format(table), key, value)

    def put_alone(self, table: str, key: str, value: str) -> None:
        with self.database.connect() as native:
            self.put(native, table, key, value)

    def get(self, table: str, key: str) -> str | None:
        rows = self.database.rows(f"SELECT value FROM {table} WHERE name = %s", key)
        return rows[0][0] if rows else None


class TestSqlGuard(InDatabase, GuardConformance):
    pass


@pytest.mark.campaign
class TestAsyncSqlGuard(InDatabase, AsyncGuardConformance):
    async def put_async(self, native: Any, table: str, key: str, value: str) -> None:
        await run_async(native, self.upsert.format(table), key, value)
