"""The rule G14 at etcd: the work of a key is written once, in the same request as the key."""

import pytest

from tests.etcd.fix_etcd import Corner
from tests.support.once import OvertakenJobs


class TestOnceJobs(OvertakenJobs):
    @pytest.fixture
    def once_url(self, etcd: Corner) -> str:
        return etcd.url
