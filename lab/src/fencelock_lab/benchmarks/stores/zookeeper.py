"""A private ZooKeeper server for the benchmarks, and the work by hand on it.

By hand: the three requests that an expert in kazoo would make for one lock with a token, each waited for,
and nothing around them. What they lack: the queue's node made when it is missing, waiting, the look for a node whose
reply was lost, the refusal of late duplicates, a time left, histories, and errors.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from kazoo.client import KazooClient

from fencelock_lab.benchmarks.stores import PREFIX, Operation, Site, install
from fencelock_lab.servers.fleet import fleet_of
from fencelock_lab.servers.zookeeper import ZooKeeperFleet

_PATH = "/by-hand/lock"


SESSION_S = 30.0


@contextmanager
def site() -> Iterator[Site]:
    """Yield a temporary server with its files on a disk."""
    with fleet_of(ZooKeeperFleet, PREFIX, on_disk=True) as fleet:
        server = fleet.shared()
        install(server.url())
        yield Site(
            "zookeeper", f"ZooKeeper {server.version()}", server.url(), server, lambda: int(server.report()["Received"])
        )


def client_of(url: str) -> Any:
    """Return a started client."""
    client = KazooClient(urlsplit(url).netloc, timeout=SESSION_S)
    client.start()
    return client


@contextmanager
def by_hand(site: Site) -> Iterator[dict[str, Operation]]:
    """Yield kazoo's plain requests."""
    with closing(ZooKeeperHandWrittenLock(site.url)) as floor:
        yield {
            "create, get_children, delete by hand": floor.cycle,
            "create, delete by hand: no queue": floor.two_writes,
        }


class ZooKeeperHandWrittenLock:
    """Take and free a lock by kazoo's plain requests."""

    def __init__(self, url: str) -> None:
        self.client = client_of(url)
        self.client.ensure_path(_PATH)
        self._path = ""

    def take(self) -> None:
        """Make the node and read the queue."""
        self._path, stat = self.client.create(
            f"{_PATH}/n-", b"somebody", ephemeral=True, sequence=True, include_data=True
        )
        assert stat.czxid > 0
        assert len(self.client.get_children(_PATH)) == 1

    def free(self) -> None:
        """Remove the node."""
        self.client.delete(self._path)

    def cycle(self) -> None:
        """Take the lock and free it: three trips."""
        self.take()
        self.free()

    def two_writes(self) -> None:
        """Make a node and remove it, without a queue."""
        self.client.delete(self.client.create(f"{_PATH}/n-", b"somebody", ephemeral=True, sequence=True))

    def close(self) -> None:
        """End the session."""
        self.client.stop()
        self.client.close()
