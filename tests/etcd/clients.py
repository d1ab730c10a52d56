"""Clients of an etcd source for tests: they send single requests, each from a store of its own, like a separate
process.
"""

from fencelock.stores.etcd.source.store import EtcdSource
from tests.support import sources


class Client(sources.Client):
    """One process's view of a source: a store of its own, with its sessions and claims, and one connection."""

    def __init__(self, url: str, *, request_timeout_s: float = 10.0) -> None:
        self.url = url
        self.store = EtcdSource(url)
        self.connection = self.store.connect(request_timeout_s=request_timeout_s)

    @property
    def state(self):
        return self.store.state


def installed(url: str) -> Client:
    """Return a client of a source that is installed now."""
    client = Client(url)
    client.store.install()
    return client
