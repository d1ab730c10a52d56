"""The sources of both SQL servers keep every rule, over threads and over the client library's own asyncio."""

import pytest

from fencelock.testing import AsyncSourceConformance, SourceConformance


class InDatabase:
    """A fresh database for each check."""

    def setup_method(self) -> None:
        """The database comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_database(self, url: str) -> None:
        self.url = url
        super().setup_method()

    def make_url(self) -> str:
        return self.url


class TestSqlSource(InDatabase, SourceConformance):
    pass


@pytest.mark.campaign
class TestAsyncSqlSource(InDatabase, AsyncSourceConformance):
    pass
