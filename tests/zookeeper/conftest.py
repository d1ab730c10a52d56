"""What surrounds every test of this store."""

import gc
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from fencelock.protocol import source_requests as ask
from fencelock_lab.servers.zookeeper import ZooKeeperServer
from tests.zookeeper.fix_client import Client
from tests.zookeeper.framing import ZooKeeperProxy


@pytest.fixture(autouse=True, scope="module")
def _connections_of_a_module_end_with_it() -> Iterator[None]:
    """Run the collector, so that the connections that tests have left end: `select` takes 1024 descriptors at most, and
    later tests use it.
    """
    yield
    gc.collect()


@pytest.fixture
def client(zookeeper_url: str) -> Iterator[Client]:
    made = Client(zookeeper_url)
    yield made
    made.close()


@pytest.fixture
def proxied(zookeeper_url: str, zookeeper_proxy: ZooKeeperProxy) -> Iterator[Client]:
    """A client behind the proxy, whose session is open."""
    made = Client(zookeeper_proxy.url(zookeeper_url))
    made.perform(ask.Release("opening", made.acquire("opening")))
    made.perform(ask.Release("lock", made.acquire("lock")))
    zookeeper_proxy.sent.clear()
    yield made
    made.close()


@pytest.fixture
def kazoo(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    made = zookeeper.client()
    yield made
    made.stop()
    made.close()
