"""Fixtures: one etcd member and one cluster of three for the whole test session, and clusters that a test may kill.

Tests share the first two by having a prefix each; a test that ends, freezes or restores members has a cluster of its
own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.etcd.fix_server import LOCK_FILE, EtcdCluster, EtcdServer
from tests.fleet import BaseFleet, fleet_of
from tests.private_server import Wrap

THREE = 3


@dataclass(frozen=True, slots=True)
class Corner:
    """A prefix of one test in a cluster that it may share with other tests."""

    cluster: EtcdCluster
    prefix: str

    @property
    def url(self) -> str:
        return self.cluster.url(self.prefix)

    def keys(self) -> list[str]:
        """Return the names of all keys below the prefix, without it."""
        return [key.removeprefix(f"{self.prefix}/") for key in self.cluster.keys(f"{self.prefix}/")]


class EtcdFleet(BaseFleet):
    """All members of a test session."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, LOCK_FILE)
        self._shared: dict[int, EtcdCluster] = {}

    def new_cluster(self, size: int, *, hosts: Sequence[str] = (), wraps: Sequence[Wrap] = ()) -> EtcdCluster:
        """Return a cluster of so many members, not started yet; `hosts` and `wraps` say where they run."""
        where = list(zip(hosts, wraps, strict=True)) or [("127.0.0.1", None)] * size
        cluster = EtcdCluster(
            EtcdServer(self.new_folder(f"n{number}"), f"n{number}", host=host, wrap=wrap)
            for number, (host, wrap) in enumerate(where, start=1)
        )
        self._owned.append(cluster)
        return cluster

    def shared(self, size: int) -> EtcdCluster:
        """Return the running cluster of this size that the tests of this session share."""
        if size not in self._shared:
            cluster = self.new_cluster(size)
            cluster.start()
            self._shared[size] = cluster
        assert all(server.is_running() for server in self._shared[size].servers), "a test has ended what all share"
        return self._shared[size]

    def corner(self, size: int) -> Corner:
        """Return a fresh prefix in the cluster of this size that all share."""
        return Corner(self.shared(size), f"test-{next(self._numbers)}")


@pytest.fixture(scope="session")
def etcd_fleet() -> Iterator[EtcdFleet]:
    """Yield what makes members."""
    with fleet_of(EtcdFleet, "fl-etcd-") as fleet:
        yield fleet


@pytest.fixture
def etcd(etcd_fleet: EtcdFleet) -> Corner:
    """Return a prefix of the test's own at the one member that all share: a test may neither end nor freeze it."""
    return etcd_fleet.corner(1)


@pytest.fixture
def etcd_three(etcd_fleet: EtcdFleet) -> Corner:
    """Return a prefix of the test's own at the three members that all share: a test may neither end nor freeze them."""
    return etcd_fleet.corner(THREE)


@pytest.fixture
def own_etcd(etcd_fleet: EtcdFleet) -> Iterator[EtcdCluster]:
    """Yield a running member of the test's own, which may do with it what it likes."""
    with etcd_fleet.new_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def own_etcd_three(etcd_fleet: EtcdFleet) -> Iterator[EtcdCluster]:
    """Yield three running members of the test's own, which may do with them what it likes."""
    with etcd_fleet.new_cluster(THREE) as cluster:
        yield cluster
