"""Fixtures: a ZooKeeper server per test session, a base per test, servers and ensembles that a test may kill."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fencelock.stores.zookeeper.source.store import ZooKeeperSource
from tests.fleet import BaseFleet, fleet_of
from tests.private_server import copy_folder
from tests.zookeeper.fix_server import LOCK_FILE, Ensemble, ZooKeeperServer
from tests.zookeeper.proxy import ZooKeeperProxy

TICK_MS = 100
"""Of a server alone: sessions of 200 ms are possible."""
ENSEMBLE_TICK_MS = 200


class Fleet(BaseFleet):
    """All servers of a test session."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, LOCK_FILE)
        self._shared: ZooKeeperServer | None = None
        self._ensemble: Ensemble | None = None

    def new_server(self, *, tick_ms: int = TICK_MS) -> ZooKeeperServer:
        """Return a server, not started yet."""
        server = ZooKeeperServer(self.new_folder("server"), tick_ms=tick_ms)
        self._owned.append(server)
        return server

    def copy_of(self, data: Path, *, tick_ms: int = TICK_MS) -> ZooKeeperServer:
        """Return a server over a copy of a stopped one's data folder, not started yet."""
        server = self.new_server(tick_ms=tick_ms)
        copy_folder(data, server.data)
        return server

    def new_ensemble(self, size: int = 3, *, tick_ms: int = ENSEMBLE_TICK_MS, **more: Any) -> Ensemble:
        """Return an ensemble, not started yet; `more` says where its servers run."""
        ensemble = Ensemble([self.new_folder("member") for _ in range(size)], tick_ms=tick_ms, **more)
        self._owned.append(ensemble)
        return ensemble

    def shared(self) -> ZooKeeperServer:
        """Return the running server that the tests of this session share."""
        if self._shared is None:
            self._shared = self.new_server()
            self._shared.start()
        assert self._shared.is_running(), "a test has ended the server that all share"
        return self._shared

    def shared_ensemble(self) -> Ensemble:
        """Return the running ensemble of three that the tests of this session share."""
        if self._ensemble is None:
            self._ensemble = self.new_ensemble()
            self._ensemble.start()
        assert len(self._ensemble.running()) == len(self._ensemble.servers), "a test has ended what all share"
        return self._ensemble


@pytest.fixture(scope="session")
def zookeeper_fleet() -> Iterator[Fleet]:
    """Yield what makes servers."""
    with fleet_of(Fleet, "fl-zk-") as fleet:
        yield fleet


_bases = itertools.count(1)


def fresh_base() -> str:
    """Return a path that no other test uses."""
    return f"/test-{next(_bases)}/locks"


@pytest.fixture
def zookeeper(zookeeper_fleet: Fleet) -> ZooKeeperServer:
    """Return the running server that all tests share: a test may neither end nor freeze it."""
    return zookeeper_fleet.shared()


@pytest.fixture
def zookeeper_ensemble(zookeeper_fleet: Fleet) -> Ensemble:
    """Return the running ensemble that all tests share: a test may neither end nor freeze any of it."""
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
def own_zookeeper(zookeeper_fleet: Fleet) -> Iterator[ZooKeeperServer]:
    """Yield a running server of the test's own, which may do with it what it likes."""
    with zookeeper_fleet.new_server() as server:
        yield server


@pytest.fixture
def own_ensemble(zookeeper_fleet: Fleet) -> Iterator[Ensemble]:
    """Yield a running ensemble of three of the test's own."""
    with zookeeper_fleet.new_ensemble() as ensemble:
        yield ensemble
