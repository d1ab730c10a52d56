"""A private etcd member, and the work by hand on it: two bare transactions on one channel, under a lease that somebody
else would keep alive.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import grpc

from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import LEASE_GRANT, TXN, Method
from fencelock.stores.etcd.connection.url import parse_url
from fencelock.stores.etcd.source.store import EtcdSource
from fencelock_lab.benchmarks.stores import PREFIX, Operation, Site
from fencelock_lab.servers.etcd import EtcdFleet
from fencelock_lab.servers.fleet import fleet_of

REQUEST_TIMEOUT_S = 10.0
LEASE_S = 3600
KEY = b"by-hand/lock"


@contextmanager
def site() -> Iterator[Site]:
    """Yield a member that is gone afterwards."""
    with fleet_of(EtcdFleet, PREFIX, on_disk=True) as fleet:
        cluster = fleet.shared(1)
        (server,) = cluster.servers
        url = cluster.url("bench")
        EtcdSource(url).install()
        yield Site("etcd", f"etcd {server.version()}", url, server, lambda: sum(server.calls().values()))


@contextmanager
def by_hand(site: Site) -> Iterator[dict[str, Operation]]:
    """Yield two bare transactions."""
    with closing(BareTransactions(site.url)) as floor:
        yield {"two bare transactions": floor.cycle}


class BareTransactions:
    """Put a key that is not there, and delete it again: what the floor is, without any promise."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.insecure_channel(parse_url(url).endpoints[0])
        self._call = self._caller(TXN)
        self._lease = self._caller(LEASE_GRANT)(wire.LeaseGrantRequest(ttl=LEASE_S), timeout=REQUEST_TIMEOUT_S).id
        self._revision = 0

    def _caller(self, method: Method) -> Any:
        serialise = lambda message: message.SerializeToString()  # noqa: E731
        return self._channel.unary_unary(method.path, serialise, method.reply.FromString)

    def run(self, conditions: Sequence[Any], operations: Sequence[Any]) -> Any:
        """Run a transaction whose conditions hold."""
        reply = self._call(wire.txn(conditions, operations), timeout=REQUEST_TIMEOUT_S)
        assert reply.succeeded
        return reply

    def take(self) -> None:
        """Put the key."""
        self._revision = self.run([wire.is_absent(KEY)], [wire.put(KEY, b"me", self._lease)]).header.revision

    def free(self) -> None:
        """Delete it."""
        self.run([wire.was_created(KEY, self._revision)], [wire.delete(KEY)])

    def cycle(self) -> None:
        """Put the key, and delete it."""
        self.take()
        self.free()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
