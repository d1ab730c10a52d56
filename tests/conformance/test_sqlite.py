"""The SQLite stores keep every rule, on the machine's own clock."""

import sqlite3
from contextlib import closing

from fencelock.testing import (
    AsyncGuardConformance,
    AsyncSourceConformance,
    GuardConformance,
    SourceConformance,
)


class InFile:
    def make_url(self):
        return f"sqlite:///{self.folder}/locks.db"


class TestSQLiteSource(InFile, SourceConformance):
    pass


class TestAsyncSQLiteSource(InFile, AsyncSourceConformance):
    pass


class GuardedFile:
    interrupted_files = ("/fencelock/stores/sqlite/guard/connection.py",)

    def make_url(self):
        self.path = self.folder / "app.db"
        with closing(sqlite3.connect(self.path)) as native:
            for table in self.tables:
                native.execute(f"CREATE TABLE {table} (key TEXT PRIMARY KEY, value TEXT)")
        return f"sqlite:///{self.path}"

    def put(self, native, table, key, value):
        native.execute(
            f"INSERT INTO {table} VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (key, value)
        )

    def put_alone(self, table, key, value):
        with closing(sqlite3.connect(self.path)) as native, native:
            self.put(native, table, key, value)

    def get(self, table, key):
        with closing(sqlite3.connect(self.path)) as native:
            row = native.execute(f"SELECT value FROM {table} WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None


class TestSQLiteGuard(GuardedFile, GuardConformance):
    pass


class TestAsyncSQLiteGuard(GuardedFile, AsyncGuardConformance):
    pass
