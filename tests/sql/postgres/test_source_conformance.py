"""The PostgreSQL source keeps every rule, over threads and over its client's own asyncio."""

import pytest

from fencelock.stores.postgres.source.store import PostgresSource
from fencelock.testing import AsyncSourceConformance, SourceConformance
from tests.sql.postgres.fix_postgres import Database


class InDatabase:
    def setup_method(self) -> None:
        """The database comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_database(self, database: Database) -> None:
        self.database = database
        super().setup_method()

    def make_url(self) -> str:
        PostgresSource(self.database.url()).install()
        return self.database.url()


class TestPostgresSource(InDatabase, SourceConformance):
    pass


class TestAsyncPostgresSource(InDatabase, AsyncSourceConformance):
    pass
