"""A cluster that is restored from a snapshot has old marks and old data, and tenures that had sealed find out."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import fencelock
from fencelock import SealLostError, StaleTokenError
from fencelock_lab.servers.etcd import EtcdCluster
from fencelock_lab.servers.programs import give
from tests.etcd.guarded import Direct
from tests.support.guards import LOCK, HandmadeLease, HandmadeSource

KEY = "app/r/value"


def restore(cluster: EtcdCluster, snapshot: Path) -> None:
    """Stop the only member, replace its data by the snapshot, and start it."""
    (server,) = cluster.servers
    cluster.stop()
    shutil.rmtree(server.data)
    name, peer = server.name, server.peer_url
    cluster.ctl(
        "snapshot", "restore", snapshot, f"--data-dir={server.data}", f"--name={name}",
        f"--initial-cluster={name}={peer}", f"--initial-advertise-peer-urls={peer}",
    )  # fmt: skip
    for path in (server.data, *server.data.rglob("*")):
        give(path)
    cluster.start()


def test_g9_a_tenure_that_had_sealed_finds_its_seal_lost(own_etcd: EtcdCluster, tmp_path: Path) -> None:
    url = own_etcd.url("app")
    guard = fencelock.guard(url, resource="r", lock=LOCK)
    before, after, following = HandmadeLease(5), HandmadeLease(6), HandmadeLease(7)

    def write(lease: HandmadeLease, value: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        with guard.transaction(lease) as txn:
            txn.get(KEY)
            txn.put(KEY, value)
            meanwhile()

    write(before, "one")
    own_etcd.ctl("snapshot", "save", tmp_path / "snapshot")
    write(after, "two")
    with pytest.raises(SealLostError, match="sealed it with token 6, and now its mark is 5"):
        write(after, "inside", lambda: restore(own_etcd, tmp_path / "snapshot"))
    for _ in range(2):
        with pytest.raises(SealLostError):
            write(after, "late")
    assert Direct(url).get(KEY) == "one"
    guard.raise_to(HandmadeSource(6), reason="restored the snapshot")
    for late in (before, after):
        with pytest.raises(StaleTokenError):
            write(late, "late")
    write(following, "three")
    assert Direct(url).get(KEY) == "three"


def test_reused_revisions_do_not_pass_for_the_old_ones(own_etcd: EtcdCluster, tmp_path: Path) -> None:
    """Another lease's seal gets the same revision as the seal of an open block had before the restore."""
    url = own_etcd.url("app")
    guard = fencelock.guard(url, resource="r", lock=LOCK)
    direct = Direct(url)
    direct.put(KEY, "initial")
    own_etcd.ctl("snapshot", "save", tmp_path / "snapshot")
    other = fencelock.guard(url, resource="r", lock=LOCK)

    def write_across() -> None:
        with guard.transaction(HandmadeLease(5)) as txn:
            txn.put(KEY, "late")
            restore(own_etcd, tmp_path / "snapshot")
            take_over(other)

    with pytest.raises(StaleTokenError, match="its mark is 9"):
        write_across()
    assert direct.get(KEY) == "initial"


def take_over(guard: fencelock.Guard) -> None:
    """Seal as the next holder, from another thread than the one that has a block open."""
    thread = threading.Thread(target=guard.seal, args=[HandmadeLease(9)])
    thread.start()
    thread.join(30)
