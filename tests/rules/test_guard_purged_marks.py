"""The rule G15 on a SQLite file: purged marks leave a floor."""

from pathlib import Path

import pytest

from tests.support.guards import url_of
from tests.support.purged_marks import PurgedMarks

pytestmark = pytest.mark.reduced


class TestPurgedMarks(PurgedMarks):
    @pytest.fixture
    def marks_url(self, file: Path) -> str:
        return url_of(file)
