"""The lock libraries on etcd. python-etcd3 is missing, because it does not import with a current protobuf."""

from typing import Any
from urllib.parse import urlsplit

from fencelock_lab.benchmarks.peers.contender import Calls, Contender, ContenderLock, Coroutines, run
from fencelock_lab.benchmarks.peers.ours import OURS

TTL_S = 30


def _by_hand(url: str, _name: str) -> ContenderLock:
    from fencelock_lab.benchmarks.stores.etcd import BareTransactions

    lock = BareTransactions(url)
    return Calls(lock.take, lock.free)


def _aetcd(url: str, name: str) -> ContenderLock:
    import aetcd

    parts = urlsplit(url)

    async def make() -> Any:
        client = aetcd.Client(host=parts.hostname, port=parts.port)
        await client.connect()
        return client.lock(name.encode(), ttl=TTL_S)

    lock = run(make())
    return Coroutines(lock.acquire, lock.release)


def _tooz(url: str, name: str) -> ContenderLock:
    from tooz import coordination

    parts = urlsplit(url)
    coordinator = coordination.get_coordinator(f"etcd3+http://{parts.hostname}:{parts.port}", b"bench")
    coordinator.start()
    lock = coordinator.get_lock(name.encode())
    return Calls(lock.acquire, lock.release)


IMPORTS = ("aetcd", "grpc", "tooz.coordination", "tooz.drivers.etcd3gw")
CONTENDERS = [
    Contender(
        "two transactions by hand",
        _by_hand,
        "no waiting, no notice of a loss, no renewal",
        can_wait=False,
    ),
    *OURS,
    Contender(
        "aetcd", _aetcd, "no token handed out, no renewal, gives up after 10 s; waiters in a herd", can_wait=False
    ),
    Contender("tooz", _tooz, "no token, a heartbeat that never tells of a loss; polls", can_wait=False),
]
