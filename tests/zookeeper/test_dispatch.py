"""The rule G13 at ZooKeeper: an effect outside of it has an intent before it and a result after it."""

import pytest

from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.support.effects import Effects
from tests.zookeeper.fix_zookeeper import fresh_base


class TestEffects(Effects):
    @pytest.fixture
    def effects_url(self, zookeeper: ZooKeeperServer) -> str:
        return zookeeper.url(fresh_base())
