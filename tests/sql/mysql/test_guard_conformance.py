"""The MySQL guard keeps every rule, synchronously and on the event loop."""

from typing import Any

import pymysql
import pytest

from fencelock.stores.mysql.guard.store import MySQLGuard
from fencelock.testing import AsyncGuardConformance, GuardConformance
from tests.sql.mysql.fix_mysql import Database

UPSERT = "INSERT INTO {} VALUES (%s, %s) ON DUPLICATE KEY UPDATE value = VALUES(value)"


class InDatabase:
    """A fresh database for each check, with two tables."""

    database: Database

    def setup_method(self) -> None:
        """The database comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_database(self, mysql_database: Database) -> None:
        self.database = mysql_database
        super().setup_method()

    def make_url(self) -> str:
        for table in self.tables:
            self.database.rows(f"CREATE TABLE {table} (`key` varchar(64) PRIMARY KEY, value varchar(64))")
        MySQLGuard(self.database.url()).install()
        return self.database.url()

    def put(self, native: pymysql.Connection, table: str, key: str, value: str) -> None:
        with native.cursor() as cursor:
            cursor.execute(UPSERT.format(table), (key, value))

    def put_alone(self, table: str, key: str, value: str) -> None:
        with self.database.connect() as native:
            self.put(native, table, key, value)

    def get(self, table: str, key: str) -> str | None:
        rows = self.database.rows(f"SELECT value FROM {table} WHERE `key` = %s", key)
        return rows[0][0] if rows else None


class TestMySQLGuard(InDatabase, GuardConformance):
    pass


class TestAsyncMySQLGuard(InDatabase, AsyncGuardConformance):
    async def put_async(self, native: Any, table: str, key: str, value: str) -> None:
        async with native.cursor() as cursor:
            await cursor.execute(UPSERT.format(table), (key, value))
