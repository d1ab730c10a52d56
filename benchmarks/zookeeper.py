"""A private ZooKeeper server for the benchmarks, and the work by hand on it.

By hand: the three requests that somebody who knows kazoo well would make for one lock with a token, each waited for,
and nothing around them. What they lack: the queue's node made when it is missing, waiting, the look for a node whose
reply was lost, the refusal of late duplicates, a time left, histories, and errors.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fenceline.stores.zookeeper.source import ZooKeeperSource
from tests.zookeeper.fix_server import ZooKeeperServer
from tests.zookeeper.fix_zookeeper import Fleet

_PATH = "/by-hand/lock"


@contextmanager
def private_server() -> Iterator[tuple[ZooKeeperServer, str]]:
    """Yield a server on a disk that is gone afterwards, and the URL of a source on it."""
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as folder:
        Path(folder).chmod(0o755)
        fleet = Fleet(Path(folder))
        try:
            server = fleet.shared()
            ZooKeeperSource(server.url()).install()
            yield server, server.url()
        finally:
            fleet.close()


class HandWrittenLock:
    """Take and free a lock by kazoo's plain requests."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self.client = server.client(timeout=30.0)
        self.client.ensure_path(_PATH)
        self._lock = self.client.Lock("/by-hand/kazoo", "somebody")

    def cycle(self) -> None:
        """Make the node, read the queue, remove the node: three trips."""
        path, stat = self.client.create(f"{_PATH}/n-", b"somebody", ephemeral=True, sequence=True, include_data=True)
        assert stat.czxid > 0
        assert len(self.client.get_children(_PATH)) == 1
        self.client.delete(path)

    def two_writes(self) -> None:
        """Make a node and remove it, without a queue."""
        path = self.client.create(f"{_PATH}/n-", b"somebody", ephemeral=True, sequence=True)
        self.client.delete(path)

    def kazoo_lock(self) -> None:
        """Acquire and release kazoo's own lock, which has no token."""
        assert self._lock.acquire()
        self._lock.release()

    def close(self) -> None:
        """End the session."""
        self.client.stop()
        self.client.close()
