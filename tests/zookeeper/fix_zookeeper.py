"""Fixtures: a ZooKeeper server per test session, a base per test, servers and ensembles that a test may kill."""

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from fencelock.stores.zookeeper.guard import connection
from fencelock.stores.zookeeper.source.store import ZooKeeperSource
from fencelock_lab.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperFleet, ZooKeeperServer
from tests.fix_servers import fresh_name
from tests.zookeeper.framing import ZooKeeperProxy

SESSION_TICKS = 100
"""The tests' ticks are short, and on a busy machine nothing runs for seconds: guards' sessions must survive that."""


def pytest_configure() -> None:
    """Lengthen the sessions of all guards."""
    connection.SESSION_TICKS = SESSION_TICKS


def fresh_base() -> str:
    """Return a path that no other test uses."""
    return f"/{fresh_name()}/locks"


def dump(client: KazooClient, path: str) -> bytes:
    """Return the names of a node and of all nodes below it, and their values."""
    value, _ = client.get(path)
    below = [dump(client, f"{path}/{name}") for name in client.get_children(path)]
    return b"\n".join([path.encode(), value or b"", *below])


@pytest.fixture
def zookeeper(zookeeper_fleet: ZooKeeperFleet) -> ZooKeeperServer:
    """Return the shared running server, which a test must neither end nor freeze."""
    return zookeeper_fleet.shared()


@pytest.fixture
def zookeeper_ensemble(zookeeper_fleet: ZooKeeperFleet) -> ZooKeeperEnsemble:
    """Return the shared running ensemble, of which a test must neither end nor freeze any server."""
    return zookeeper_fleet.shared_ensemble()


@pytest.fixture
def zookeeper_url(zookeeper: ZooKeeperServer) -> str:
    """Return the address of a source of the test's own on the shared server."""
    url = zookeeper.url(fresh_base())
    ZooKeeperSource(url).install()
    return url


@pytest.fixture
def zookeeper_proxy(zookeeper: ZooKeeperServer) -> Iterator[ZooKeeperProxy]:
    """Yield a proxy before the shared server."""
    with ZooKeeperProxy(zookeeper.port) as the_proxy:
        yield the_proxy


@pytest.fixture
def own_zookeeper(zookeeper_fleet: ZooKeeperFleet) -> Iterator[ZooKeeperServer]:
    """Yield a running server of the test's own, which the test may kill."""
    with zookeeper_fleet.new_server() as server:
        yield server


@pytest.fixture
def own_ensemble(zookeeper_fleet: ZooKeeperFleet) -> Iterator[ZooKeeperEnsemble]:
    """Yield a running ensemble of three of the test's own, which the test may kill."""
    with zookeeper_fleet.new_ensemble() as ensemble:
        yield ensemble
