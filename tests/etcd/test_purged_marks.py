"""The rule G15 at etcd: purged marks leave a floor, raised by the request that deletes them."""

import pytest

from tests.etcd.fix_etcd import Corner
from tests.support.purged_marks import PurgedMarks


class TestPurgedMarks(PurgedMarks):
    @pytest.fixture
    def marks_url(self, etcd: Corner) -> str:
        return etcd.url
