"""The lock libraries on ZooKeeper."""

from urllib.parse import urlsplit

from fencelock_lab.benchmarks.peers.contender import Calls, Contender, ContenderLock
from fencelock_lab.benchmarks.peers.ours import OURS


def _by_hand(url: str, _name: str) -> ContenderLock:
    from fencelock_lab.benchmarks.stores.zookeeper import ZooKeeperHandWrittenLock

    lock = ZooKeeperHandWrittenLock(url)
    return Calls(lock.take, lock.free)


def _kazoo(url: str, name: str) -> ContenderLock:
    from fencelock_lab.benchmarks.stores.zookeeper import client_of

    lock = client_of(url).Lock(f"/kazoo-{name}", "bench")
    return Calls(lock.acquire, lock.release)


def _tooz(url: str, name: str) -> ContenderLock:
    from tooz import coordination

    coordinator = coordination.get_coordinator(f"zookeeper://{urlsplit(url).netloc}", b"bench")
    coordinator.start()
    lock = coordinator.get_lock(name.encode())
    return Calls(lock.acquire, lock.release)


IMPORTS = ("kazoo.client", "tooz.coordination", "tooz.drivers.zookeeper")
CONTENDERS = [
    Contender(
        "create, get_children, delete by hand",
        _by_hand,
        "no waiting, no notice of a loss",
        can_wait=False,
    ),
    *OURS,
    Contender("kazoo ContenderLock", _kazoo, "no token handed out; stays `is_acquired` after its session was lost"),
    Contender("tooz", _tooz, "no token, no notice of a loss"),
]
