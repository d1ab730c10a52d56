"""What the ZooKeeper guard survives: lost requests, frozen and killed holders, forks, operators and commands."""

import gc
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

import fencelock
from fencelock.errors import ConfigError, OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.stores.registry import guard_store
from fencelock_lab.servers.zookeeper import ZooKeeperFleet, ZooKeeperServer
from tests.cli.program import program
from tests.support.guard_colocated import BesideLocks
from tests.support.guard_life import GuardLife, outlive_an_outage
from tests.support.guarded_keys import Face, Loss
from tests.support.guards import LOCK, RESOURCE, HandmadeLease
from tests.support.purged_between import PurgedBetween
from tests.zookeeper.fix_zookeeper import fresh_base

__all__ = ["program"]


@pytest.fixture(scope="module")
def direct(zookeeper_fleet: ZooKeeperFleet) -> Iterator[KazooClient]:
    """Yield a client that bypasses the guard."""
    client = zookeeper_fleet.shared().client()
    yield client
    # Errors that tests have caught keep guards and their sessions alive until the collector runs.
    gc.collect()
    client.stop()
    client.close()


class ZooKeeperFace(Face):
    """One guarded node."""

    READ = "txn.get(KEY)[0].decode()"
    WRITE = "txn.set(KEY, value.encode())"

    def __init__(self, server: ZooKeeperServer, direct: KazooClient) -> None:
        self.base = fresh_base()
        self.url = server.url(self.base)
        self.direct = direct
        self.key = f"{self.base}/{RESOURCE}/value"
        direct.create(self.key, b"initial", makepath=True)

    def put(self, txn: Any, value: str) -> None:
        txn.set(self.key, value.encode())

    def read_number(self, txn: Any) -> int:
        return int(txn.get(self.key)[0])

    def value(self) -> str | None:
        self.direct.sync("/")
        return self.direct.get(self.key)[0].decode()

    def put_floors(self, value: bytes) -> None:
        self.direct.set(f"{self.base}/.fencelock/floors", value)

    def watch(self, guard: Any, loss: Loss) -> Loss:
        client = guard._core.store._client
        send = client._send

        def lossy_send(requests: Any, *, is_write: bool = False) -> Any:
            error = OutcomeUnknownError if is_write else SourceUnavailableError
            return loss(lambda: send(requests, is_write=is_write), error("lost on purpose"))

        client._send = lossy_send
        return loss

    def entries(self) -> list[dict[str, Any]]:
        audit = f"{self.base}/.fencelock/audit"
        return [json.loads(self.direct.get(f"{audit}/{name}")[0]) for name in sorted(self.direct.get_children(audit))]


class TestZooKeeperGuard(GuardLife):
    @pytest.fixture
    def new_face(self, zookeeper: ZooKeeperServer, direct: KazooClient) -> Callable[[], Face]:
        return lambda: ZooKeeperFace(zookeeper, direct)

    @pytest.fixture
    def face(self, new_face: Callable[[], Face]) -> Face:
        return new_face()


class TestZooKeeperPurgedBetween(PurgedBetween):
    @pytest.fixture
    def face(self, zookeeper: ZooKeeperServer, direct: KazooClient) -> Face:
        return ZooKeeperFace(zookeeper, direct)


class ZooKeeperFaceBesideLocks(ZooKeeperFace):
    """The same, and the lock is in the same ZooKeeper."""

    ttl = 30.0
    shortest_ttl = 1.0

    def __init__(self, server: ZooKeeperServer, direct: KazooClient) -> None:
        super().__init__(server, direct)
        locks = fresh_base()
        self.source_url = server.url(locks)
        self.url += f"&locks={locks}"


class TestZooKeeperGuardBesideLocks(BesideLocks):
    @pytest.fixture
    def face(self, zookeeper: ZooKeeperServer, direct: KazooClient) -> Face:
        return ZooKeeperFaceBesideLocks(zookeeper, direct)


def test_a_user_of_its_own_leaves_nothing_to_find(zookeeper: ZooKeeperServer, direct: KazooClient) -> None:
    base = fresh_base()
    url = zookeeper.url(base, user="clerk", password="secret")
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    with guard.transaction(HandmadeLease(5)) as txn:
        txn.create(f"{base}/{RESOURCE}", b"mine")
    guard.outrank(HandmadeLease(6), reason="a test")
    assert guard_store(url).examine() == []
    assert "secret" not in repr(guard)
    nobody = fencelock.guard(zookeeper.url(base), resource=RESOURCE, lock=LOCK)
    with pytest.raises(SourceError, match="does not permit it"):
        nobody.seal(HandmadeLease(7))
    assert [one.code for one in guard_store(zookeeper.url(base)).examine()] == ["guard-refused"]
    for write in (direct.set, direct.delete):
        with pytest.raises(NoAuthError):
            write(f"{base}/{RESOURCE}", *[b"unfenced"] * (write == direct.set))


def test_a_guard_outlives_an_outage(own_zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = own_zookeeper.client(timeout=60.0)

    def kill() -> None:
        monkeypatch.setattr("fencelock.stores.zookeeper.guard.connection.REQUEST_TIMEOUT_S", 2.0)
        own_zookeeper.kill()

    def start() -> None:
        monkeypatch.undo()
        own_zookeeper.start()

    outlive_an_outage(ZooKeeperFace(own_zookeeper, direct), kill, start)
    gc.collect()
    direct.stop()
    direct.close()


def test_a_session_that_the_servers_would_change_leads_to_their_tick(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guard's user asks for no ttl, so the error names the URL's tick instead."""
    monkeypatch.setattr("fencelock.stores.zookeeper.guard.connection.SESSION_TICKS", 10)
    guard = fencelock.guard(zookeeper.url(fresh_base(), tick_ms=10), resource=RESOURCE, lock=LOCK)
    with pytest.raises(ConfigError, match=r"0.1 s was asked for.*0.4 s instead.*tick_ms=…: fencelock assumes 10 ms"):
        guard.seal(HandmadeLease(5))
