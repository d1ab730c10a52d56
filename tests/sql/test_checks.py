"""`source.check` over SQL servers."""

import pytest

from tests.support.checks import Checks


class TestChecks(Checks):
    @pytest.fixture
    def checked_url(self, url: str) -> str:
        return url
