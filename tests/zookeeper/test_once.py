"""The rule G14 at ZooKeeper: the work of a key is written once, in the same request as the key."""

import pytest

from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.support.once import OvertakenJobs
from tests.zookeeper.fix_zookeeper import fresh_base


class TestOnceJobs(OvertakenJobs):
    @pytest.fixture
    def once_url(self, zookeeper: ZooKeeperServer) -> str:
        return zookeeper.url(fresh_base())
