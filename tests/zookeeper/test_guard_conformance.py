"""The ZooKeeper guard keeps every rule, synchronously and from tasks."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient

from fencelock import OutcomeUnknownError
from fencelock.stores.zookeeper.guard.block import ZooKeeperTransaction
from fencelock.stores.zookeeper.guard.connection import ZooKeeperGuardClient
from fencelock.testing import AsyncGuardConformance, GuardConformance
from fencelock_lab.servers.zookeeper import ZooKeeperEnsemble, ZooKeeperFleet, ZooKeeperServer
from tests.zookeeper.fix_zookeeper import dump, fresh_base


@pytest.fixture(scope="module")
def direct(zookeeper_fleet: ZooKeeperFleet) -> Iterator[KazooClient]:
    """Yield a client that bypasses the guard."""
    client = zookeeper_fleet.shared().client()
    yield client
    # Errors that checks have caught keep guards and their sessions alive until the collector runs.
    gc.collect()
    client.stop()
    client.close()


class InSubtree:
    """A fresh base for each check. A value is a node below the resource `r`, which is what the checks write to."""

    compares_reads = True

    def setup_method(self) -> None:
        """The server comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_subtree(self, zookeeper: ZooKeeperServer, direct: KazooClient) -> None:
        self.direct, self.server, self.base = direct, zookeeper, fresh_base()
        super().setup_method()

    def make_url(self) -> str:
        self.direct.ensure_path(f"{self.base}/r")
        return self.server.url(self.base)

    def dump(self) -> bytes:
        return dump(self.direct, self.base)

    def node(self, table: str, key: str) -> str:
        return f"{self.base}/r/{table}-{key}"

    def put(self, native: ZooKeeperTransaction, table: str, key: str, value: str) -> None:
        node = self.node(table, key)
        write = native.create if native.exists(node) is None else native.set
        write(node, value.encode())

    def read(self, native: ZooKeeperTransaction, table: str, key: str) -> str | None:
        return native.get(self.node(table, key))[0].decode()

    def wire(self) -> tuple[Any, str]:
        return ZooKeeperGuardClient, "_send"

    def lost_reply(self) -> Exception:
        return OutcomeUnknownError("the answer was lost on purpose")

    def put_alone(self, table: str, key: str, value: str) -> None:
        self.direct.ensure_path(self.node(table, key))
        self.direct.set(self.node(table, key), value.encode())

    def get(self, table: str, key: str) -> str | None:
        self.direct.sync(self.base)
        node = self.node(table, key)
        return self.direct.get(node)[0].decode() if self.direct.exists(node) else None


class TestZooKeeperGuard(InSubtree, GuardConformance):
    pass


@pytest.mark.campaign
class TestAsyncZooKeeperGuard(InSubtree, AsyncGuardConformance):
    pass


@pytest.mark.campaign
class TestZooKeeperGuardOnThree(InSubtree, GuardConformance):
    @pytest.fixture(autouse=True)
    def _in_subtree(self, zookeeper_ensemble: ZooKeeperEnsemble) -> Iterator[None]:
        self.direct, self.server, self.base = zookeeper_ensemble.client(), zookeeper_ensemble, fresh_base()
        super(InSubtree, self).setup_method()
        yield
        gc.collect()
        self.direct.stop()
        self.direct.close()
