"""What the etcd guard survives: lost requests, frozen and killed holders, forks, operators and their commands."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import fencelock
import fencelock.aio
from fencelock.errors import OutcomeUnknownError, SourceError
from fencelock.stores.etcd.connection.client import TXN
from fencelock.stores.etcd.connection.wire import get_prefix, txn
from fencelock.stores.registry import guard_store
from fencelock_lab.servers.etcd import EtcdCluster, EtcdFleet
from tests.cli.program import program
from tests.etcd.fix_etcd import Corner, fresh_corner
from tests.etcd.guarded import Direct
from tests.support.guard_colocated import BesideLocks
from tests.support.guard_life import GuardLife, outlive_an_outage
from tests.support.guarded_keys import Face, Loss
from tests.support.guards import LOCK, RESOURCE, Blocking, HandmadeLease
from tests.support.purged_between import PurgedBetween

__all__ = ["program"]


class EtcdFace(Face):
    """One guarded key."""

    READ = "txn.get(KEY).decode()"
    WRITE = "txn.put(KEY, value)"

    def __init__(self, corner: Corner) -> None:
        self.url = corner.url
        self.corner = corner
        self.direct = Direct(corner.url)
        self.key = f"{corner.prefix}/{RESOURCE}/value"
        self.direct.put(self.key, "initial")

    def put(self, txn: Any, value: str) -> None:
        txn.put(self.key, value)

    def read_number(self, txn: Any) -> int:
        return int(txn.get(self.key))

    def value(self) -> str | None:
        return self.direct.get(self.key)

    def put_floors(self, value: bytes) -> None:
        self.direct.put(f"{self.corner.prefix}/.fencelock/floors", value)

    def watch(self, guard: Any, loss: Loss) -> Loss:
        client = guard._core.store._client
        call = client.call
        client.call = lambda *request: loss(lambda: call(*request), OutcomeUnknownError("lost on purpose"))
        return loss

    def entries(self) -> list[dict[str, Any]]:
        prefix = f"{self.corner.prefix}/.fencelock/audit/".encode()
        answer = self.direct.client.call(TXN, txn((), (get_prefix(prefix),)), 10.0)
        found = sorted(answer.responses[0].response_range.kvs, key=lambda one: one.create_revision)
        return [json.loads(one.value) for one in found]


class TestEtcdGuard(GuardLife):
    @pytest.fixture
    def new_face(self, etcd_fleet: EtcdFleet) -> Callable[[], Face]:
        return lambda: EtcdFace(fresh_corner(etcd_fleet, 1))

    @pytest.fixture
    def face(self, new_face: Callable[[], Face]) -> Face:
        return new_face()


class TestEtcdPurgedBetween(PurgedBetween):
    @pytest.fixture
    def face(self, etcd_fleet: EtcdFleet) -> Face:
        return EtcdFace(fresh_corner(etcd_fleet, 1))


class AsyncEtcdFace(EtcdFace):
    """The same through the async guard."""

    def __init__(self, corner: Corner, runner: asyncio.Runner) -> None:
        super().__init__(corner)
        self.runner = runner

    def guard(self, lock: str = LOCK) -> Any:
        return Blocking(fencelock.aio.guard(self.url, resource=RESOURCE, lock=lock), self.runner.run)

    def watch(self, guard: Any, loss: Loss) -> Loss:
        client = guard._core.store._client
        call = client.call_async

        async def lossy(*request: Any) -> Any:
            """Lose a request before it is sent, or its reply when it has come."""
            error = OutcomeUnknownError("lost on purpose")
            if not loss.is_done:
                loss(lambda: None, error)
                return await call(*request)
            answer = await call(*request)
            return loss(lambda: answer, error)

        client.call_async = lossy
        return loss


class TestAsyncEtcdGuard:
    @pytest.fixture
    def new_face(self, etcd_fleet: EtcdFleet) -> Iterator[Callable[[], Face]]:
        with asyncio.Runner() as runner:
            yield lambda: AsyncEtcdFace(fresh_corner(etcd_fleet, 1), runner)

    test_whatever_is_lost_what_is_told_is_true = GuardLife.test_whatever_is_lost_what_is_told_is_true


class EtcdFaceBesideLocks(EtcdFace):
    """The same, and the lock is in the same etcd."""

    ttl = 30.0
    shortest_ttl = 2.0

    def __init__(self, corner: Corner) -> None:
        super().__init__(dataclasses.replace(corner, prefix=f"{corner.prefix}/data"))
        locks = f"{corner.prefix}/locks"
        self.source_url = corner.cluster.url(locks)
        self.url += f"?locks={locks}"


class TestEtcdGuardBesideLocks(BesideLocks):
    @pytest.fixture
    def face(self, etcd: Corner) -> Face:
        return EtcdFaceBesideLocks(etcd)


def test_a_role_for_the_prefix_is_enough_and_leaves_nothing_to_find(own_etcd: EtcdCluster) -> None:
    root = "root:very-secret"
    own_etcd.ctl("user", "add", root)
    own_etcd.ctl("role", "add", "app")
    own_etcd.ctl("role", "grant-permission", "app", "--prefix=true", "readwrite", "app/")
    own_etcd.ctl("user", "add", "clerk:secret")
    own_etcd.ctl("user", "grant-role", "clerk", "app")
    assert [one.code for one in guard_store(own_etcd.url("app")).examine()] == ["open-to-all"]
    own_etcd.ctl("auth", "enable")
    url = own_etcd.url("app", login="clerk:secret")
    guard = fencelock.guard(url, resource=RESOURCE, lock=LOCK)
    with guard.transaction(HandmadeLease(5)) as txn:
        assert txn.get_prefix(f"app/{RESOURCE}/") == {}
        txn.put(f"app/{RESOURCE}/value", "mine")
    guard.outrank(HandmadeLease(6), reason="a test")
    assert guard_store(url).examine() == []
    assert "secret" not in repr(guard)
    nobody = fencelock.guard(own_etcd.url("app"), resource=RESOURCE, lock=LOCK)
    with pytest.raises(SourceError, match="requires a login"):
        nobody.seal(HandmadeLease(7))
    assert [one.code for one in guard_store(own_etcd.url("app")).examine()] == ["guard-refused"]
    elsewhere = fencelock.guard(own_etcd.url("other", login="clerk:secret"), resource=RESOURCE, lock=LOCK)
    with pytest.raises(SourceError, match="does not permit it"):
        elsewhere.seal(HandmadeLease(7))


def test_a_guard_outlives_an_outage(own_etcd: EtcdCluster) -> None:
    outlive_an_outage(EtcdFace(Corner(own_etcd, "app")), own_etcd.kill, own_etcd.start)


def test_a_write_without_space_may_have_been_executed(etcd_fleet: EtcdFleet) -> None:
    """A member that runs out of space during a request executes the request, and answers that there was no space."""
    cluster = etcd_fleet.new_cluster(1)
    cluster.servers[0].settings["quota-backend-bytes"] = 5_000_000
    with cluster:
        guard = fencelock.guard(cluster.url("app"), resource=RESOURCE, lock=LOCK)
        lease = HandmadeLease(5)

        def fill() -> None:
            for number in range(50):
                with guard.transaction(lease) as txn:
                    txn.put(f"app/{RESOURCE}/{number}", b"x" * 1_000_000)

        with pytest.raises(OutcomeUnknownError, match="has no room") as caught:
            fill()
        assert not caught.value.definite
        with guard.transaction(lease) as txn:
            assert txn.get_prefix(f"app/{RESOURCE}/")
