"""A private etcd member for the benchmarks, and the work by hand: two bare transactions on one channel, under a
lease that another process would keep alive.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import grpc

from fencelock_lab.benchmarks import etcd_messages
from fencelock_lab.benchmarks.stores import PREFIX, Operation, Site, install
from fencelock_lab.servers.etcd import EtcdFleet
from fencelock_lab.servers.fleet import fleet_of

REQUEST_TIMEOUT_S = 10.0
LEASE_S = 3600
KEY = b"by-hand/lock"


@contextmanager
def site() -> Iterator[Site]:
    """Yield a temporary member."""
    with fleet_of(EtcdFleet, PREFIX, on_disk=True) as fleet:
        cluster = fleet.shared(1)
        (server,) = cluster.servers
        url = cluster.url("bench")
        install(url)
        yield Site("etcd", f"etcd {server.version()}", url, server, lambda: sum(server.calls().values()))


@contextmanager
def by_hand(site: Site) -> Iterator[dict[str, Operation]]:
    """Yield two bare transactions."""
    with closing(BareTransactions(site.url)) as floor:
        yield {"two bare transactions": floor.cycle}


class BareTransactions:
    """Put an absent key, and delete it again: the floor, without any promise."""

    def __init__(self, url: str) -> None:
        self._channel = grpc.insecure_channel(urlsplit(url).netloc)
        self._call = self._channel.unary_unary(etcd_messages.TXN)
        grant = self._channel.unary_unary(etcd_messages.LEASE_GRANT)
        reply = grant(etcd_messages.lease_grant(LEASE_S), timeout=REQUEST_TIMEOUT_S)
        self._lease = etcd_messages.lease_of(reply)
        self._revision = 0

    def run(self, conditions: Sequence[bytes], operations: Sequence[bytes]) -> bytes:
        """Run a transaction whose conditions hold, and return the reply."""
        reply: bytes = self._call(etcd_messages.txn(conditions, operations), timeout=REQUEST_TIMEOUT_S)
        assert etcd_messages.is_done(reply)
        return reply

    def take(self) -> None:
        """Put the key."""
        absent = etcd_messages.was_created(KEY, 0)
        self._revision = etcd_messages.revision_of(self.run([absent], [etcd_messages.put(KEY, b"me", self._lease)]))

    def free(self) -> None:
        """Delete it."""
        self.run([etcd_messages.was_created(KEY, self._revision)], [etcd_messages.delete(KEY)])

    def cycle(self) -> None:
        """Put the key, and delete it."""
        self.take()
        self.free()

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
