"""A private etcd member for the benchmarks, and the work by hand on it: two bare transactions on one channel."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from fenceline.stores.etcd import messages as say
from fenceline.stores.etcd import operations as op
from fenceline.stores.etcd.client import LEASE_GRANT, TXN, Client
from fenceline.stores.etcd.conninfo import place_of
from fenceline.stores.etcd.source import EtcdSource
from tests.etcd.fix_etcd import EtcdFleet
from tests.etcd.fix_server import EtcdServer

PATIENCE_S = 10.0
LEASE_S = 3600


@contextmanager
def private_member() -> Iterator[tuple[EtcdServer, str]]:
    """Yield a member that is gone afterwards, and the URL of a source at it."""
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as folder:
        Path(folder).chmod(0o755)
        fleet = EtcdFleet(Path(folder))
        try:
            cluster = fleet.shared(1)
            url = cluster.url("bench")
            EtcdSource(url).install()
            yield cluster.servers[0], url
        finally:
            fleet.close()


class BareTransactions:
    """Put a key that is not there, and delete it again: what the floor is, without any promise."""

    def __init__(self, url: str) -> None:
        place = place_of(url)
        client = Client(place)
        self._lease = client.call(LEASE_GRANT, say.LeaseGrantRequest(ttl=LEASE_S), PATIENCE_S).id
        channel = grpc.insecure_channel(place.endpoints[0])
        self._run = channel.unary_unary(
            TXN.path,
            request_serializer=say.TxnRequest.SerializeToString,
            response_deserializer=say.TxnResponse.FromString,
        )

    def cycle(self) -> None:
        """Put the key, and delete it."""
        key = b"by-hand/lock"
        put = self._run(op.txn([op.is_absent(key)], [op.put(key, b"me", self._lease)]), timeout=PATIENCE_S)
        deleted = self._run(op.txn([op.was_created(key, put.header.revision)], [op.delete(key)]), timeout=PATIENCE_S)
        assert deleted.succeeded
