"""Fixtures: one etcd member and one cluster of three for the whole test session, and clusters that a test may kill.

Tests share the first two by having a prefix each; a test that ends, freezes or restores members has a cluster of its
own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from fencelock_lab.servers.etcd import EtcdCluster, EtcdFleet
from tests.fix_servers import fresh_name

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

    def dump(self) -> bytes:
        """Return all keys below the prefix, and their values."""
        return self.cluster.ctl("get", "--prefix", f"{self.prefix}/").encode()


def fresh_corner(fleet: EtcdFleet, size: int) -> Corner:
    """Return a fresh prefix in the cluster of this size that all tests share."""
    return Corner(fleet.shared(size), fresh_name("test").replace("_", "-"))


@pytest.fixture
def etcd(etcd_fleet: EtcdFleet) -> Corner:
    """Return a prefix of the test's own at the shared member, which a test must neither end nor freeze."""
    return fresh_corner(etcd_fleet, 1)


@pytest.fixture
def etcd_three(etcd_fleet: EtcdFleet) -> Corner:
    """Return a prefix of the test's own at the three shared members, which a test must neither end nor freeze."""
    return fresh_corner(etcd_fleet, THREE)


@pytest.fixture
def own_etcd(etcd_fleet: EtcdFleet) -> Iterator[EtcdCluster]:
    """Yield a running member of the test's own, which the test may kill."""
    with etcd_fleet.new_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def own_etcd_three(etcd_fleet: EtcdFleet) -> Iterator[EtcdCluster]:
    """Yield three running members of the test's own, which the test may kill."""
    with etcd_fleet.new_cluster(THREE) as cluster:
        yield cluster


@pytest.fixture
def early_etcd_beats(early_beats: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each early beat reach etcd, though the session has most of its time left."""
    monkeypatch.setattr("fencelock.stores.etcd.source.session.EtcdSession.is_due", lambda _: True)
