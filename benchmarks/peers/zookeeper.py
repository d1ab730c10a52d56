"""Who offers locks on ZooKeeper."""

from typing import Any
from urllib.parse import urlsplit

from benchmarks.peers.contender import Calls, Contender, Lock
from benchmarks.peers.ours import OURS

SESSION_S = 30.0


def client_of(url: str) -> Any:
    """Return a started client."""
    from kazoo.client import KazooClient

    client = KazooClient(urlsplit(url).netloc, timeout=SESSION_S)
    client.start()
    return client


def _by_hand(url: str, name: str) -> Lock:
    client = client_of(url)
    folder = f"/by-hand-{name}"
    client.ensure_path(folder)
    paths: list[str] = []

    def acquire() -> None:
        path, stat = client.create(f"{folder}/n-", b"bench", ephemeral=True, sequence=True, include_data=True)
        assert stat.czxid
        assert client.get_children(folder)
        paths.append(path)

    return Calls(acquire, lambda: client.delete(paths.pop()))


def _kazoo(url: str, name: str) -> Lock:
    lock = client_of(url).Lock(f"/kazoo-{name}", "bench")
    return Calls(lock.acquire, lock.release)


def _tooz(url: str, name: str) -> Lock:
    from tooz import coordination

    coordinator = coordination.get_coordinator(f"zookeeper://{urlsplit(url).netloc}", b"bench")
    coordinator.start()
    lock = coordinator.get_lock(name.encode())
    return Calls(lock.acquire, lock.release)


CONTENDERS = [
    Contender(
        "create, get_children, delete by hand",
        _by_hand,
        "no waiting, no notice of a loss",
        can_wait=False,
    ),
    *OURS,
    Contender("kazoo Lock", _kazoo, "no token handed out; stays `is_acquired` after its session was lost"),
    Contender("tooz", _tooz, "no token, no notice of a loss"),
]
