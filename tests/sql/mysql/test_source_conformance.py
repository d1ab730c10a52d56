"""The MySQL source keeps every rule, over threads and over its client's own asyncio."""

import pytest

from fencelock.stores.mysql.source.store import MySQLSource
from fencelock.testing import AsyncSourceConformance, SourceConformance
from tests.sql.mysql.fix_mysql import Database


class InDatabase:
    def setup_method(self) -> None:
        """The database comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_database(self, mysql_database: Database) -> None:
        self.database = mysql_database
        super().setup_method()

    def make_url(self) -> str:
        MySQLSource(self.database.url()).install()
        return self.database.url()


class TestMySQLSource(InDatabase, SourceConformance):
    pass


class TestAsyncMySQLSource(InDatabase, AsyncSourceConformance):
    pass
