"""`source.check` over a SQLite file, and over a source in memory."""

from pathlib import Path

import pytest

from fencelock.model import draw_claim
from tests.support.checks import Checks
from tests.support.guards import url_of


class TestSQLite(Checks):
    @pytest.fixture
    def checked_url(self, tmp_path: Path) -> str:
        return url_of(tmp_path / "locks.db")


class TestMemory(Checks):
    @pytest.fixture
    def checked_url(self) -> str:
        return f"memory://{draw_claim()}"
