"""Who offers locks on etcd. python-etcd3 does not import with a current protobuf, and is not here."""

from typing import Any
from urllib.parse import urlsplit

from benchmarks.peers.contender import Calls, Contender, Coroutines, Lock, run
from benchmarks.peers.ours import OURS

TTL_S = 30


def _by_hand(url: str, name: str) -> Lock:
    """Two transactions on one channel, under one lease that somebody else would keep alive."""
    import grpc

    from fenceline.stores.etcd import messages as say
    from fenceline.stores.etcd import operations as do
    from fenceline.stores.etcd.client import LEASE_GRANT, TXN

    channel = grpc.insecure_channel(urlsplit(url).netloc)

    def caller(method: Any) -> Any:
        serialise = lambda message: message.SerializeToString()  # noqa: E731
        return channel.unary_unary(method.path, serialise, method.reply.FromString)

    txn, key = caller(TXN), f"by-hand/{name}".encode()
    lease = caller(LEASE_GRANT)(say.LeaseGrantRequest(ttl=3600)).id
    revisions: list[int] = []

    def acquire() -> None:
        put = say.RequestOp(request_put=say.PutRequest(key=key, value=b"bench", lease=lease))
        taken = txn(say.TxnRequest(compare=[do.is_absent(key)], success=[put]))
        assert taken.succeeded
        revisions.append(taken.header.revision)

    def release() -> None:
        delete = say.RequestOp(request_delete_range=say.DeleteRangeRequest(key=key))
        assert txn(say.TxnRequest(compare=[do.was_created(key, revisions.pop())], success=[delete])).succeeded

    return Calls(acquire, release)


def _aetcd(url: str, name: str) -> Lock:
    import aetcd

    parts = urlsplit(url)

    async def make() -> Any:
        client = aetcd.Client(host=parts.hostname, port=parts.port)
        await client.connect()
        return client.lock(name.encode(), ttl=TTL_S)

    lock = run(make())
    return Coroutines(lock.acquire, lock.release)


def _tooz(url: str, name: str) -> Lock:
    from tooz import coordination

    parts = urlsplit(url)
    coordinator = coordination.get_coordinator(f"etcd3+http://{parts.hostname}:{parts.port}", b"bench")
    coordinator.start()
    lock = coordinator.get_lock(name.encode())
    return Calls(lock.acquire, lock.release)


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
