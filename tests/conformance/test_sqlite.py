"""The SQLite stores keep every rule, on the machine's own clock."""

from fenceline.testing.conformance import AsyncSourceConformance, SourceConformance


class InFile:
    def make_url(self):
        return f"sqlite:///{self.folder}/locks.db"


class TestSQLiteSource(InFile, SourceConformance):
    pass


class TestAsyncSQLiteSource(InFile, AsyncSourceConformance):
    pass
