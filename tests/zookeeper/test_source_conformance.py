"""The ZooKeeper source keeps every rule, over threads and over asyncio, on one server and on three."""

import pytest

from fencelock.stores.zookeeper.source.store import ZooKeeperSource
from fencelock.testing import AsyncSourceConformance, SourceConformance
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.zookeeper.fix_zookeeper import dump, fresh_base


class OnServer:
    short_ttl_ms = 1000
    many_names = 300
    shows_spent_tokens = False
    break_keeps_queue = False
    counts_alone = False  # Other tests use the same server meanwhile.
    renewal_lag_ms = 4000  # A tenth of the ttl between two pings, and the random time that kazoo adds.
    ends_unrenewed_leases = False

    def setup_method(self) -> None:
        """The server comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _on_server(self, zookeeper: ZooKeeperServer) -> None:
        self.server = zookeeper
        super().setup_method()

    def make_url(self) -> str:
        self.base = fresh_base()
        url = self.server.url(self.base)
        ZooKeeperSource(url).install()
        return url

    def dump(self) -> bytes:
        client = self.server.client()
        try:
            return dump(client, self.base)
        finally:
            client.stop()
            client.close()


class TestZooKeeperSource(OnServer, SourceConformance):
    pass


@pytest.mark.campaign
class TestAsyncZooKeeperSource(OnServer, AsyncSourceConformance):
    pass
