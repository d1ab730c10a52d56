"""The SQLite stores keep every rule, on the machine's own clock."""

import sqlite3
from contextlib import closing

import fencelock
from fencelock.testing import (
    AsyncGuardConformance,
    AsyncSourceConformance,
    GuardConformance,
    SourceConformance,
)


def everything_in(folder):
    """Return the bytes of all files of a folder, and the names of all files and pipes."""
    paths = sorted(folder.rglob("*"))
    return b"".join(str(path).encode() + (path.read_bytes() if path.is_file() else b"") for path in paths)


class InFile:
    def make_url(self):
        url = f"sqlite:///{self.folder}/locks.db"
        fencelock.connect(url).install()
        return url

    def dump(self):
        return everything_in(self.folder)


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

    def dump(self):
        return everything_in(self.folder)

    def get(self, table, key):
        with closing(sqlite3.connect(self.path)) as native:
            row = native.execute(f"SELECT value FROM {table} WHERE key = ?", (key,)).fetchone()
        return row[0] if row else None


class TestSQLiteGuard(GuardedFile, GuardConformance):
    pass


class TestAsyncSQLiteGuard(GuardedFile, AsyncGuardConformance):
    pass
