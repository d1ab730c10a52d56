"""The rule G15 at ZooKeeper: purged marks leave a floor, raised by the request that deletes them."""

import pytest

from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.support.purged_marks import PurgedMarks
from tests.zookeeper.fix_zookeeper import fresh_base


class TestPurgedMarks(PurgedMarks):
    @pytest.fixture
    def marks_url(self, zookeeper: ZooKeeperServer) -> str:
        return zookeeper.url(fresh_base())
