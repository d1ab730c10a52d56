"""Connections that present no token: with them a test sees whether a store refuses those who write past the guard.

Promise: what is yielded is the store's own client, connected as a guard with the same URL is, in autocommit mode, and
closed at the end of the block. Where the store keeps keys or nodes, `resource_path` says which belong to a resource.
Never: a mark read or raised here.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from fencelock.errors import UnsupportedError
from fencelock.stores.quorum.colocated import split_locks
from fencelock.stores.registry import guard_store, shown_url

if TYPE_CHECKING:
    from fencelock.stores.etcd.connection.client import EtcdClient

REQUEST_TIMEOUT_S = 10.0
PAGE_KEYS = 1000


@contextmanager
def unfenced(url: str) -> Iterator[Any]:
    """Yield a connection to the place of a guard, made by the store's client, that presents no token.

    It is a connection of sqlite3, psycopg or PyMySQL in autocommit mode, a KazooClient, or `EtcdKeys`.
    SourceUnavailableError if the store cannot be reached, UnsupportedError for every other store (Redis, S3, DynamoDB,
    files, a third party's).
    """
    guard_store(url)  # Raises what is wrong with the URL, or that a client is missing.
    scheme = url.partition("://")[0].lower()
    if scheme not in _CONNECT:
        raise UnsupportedError(f"{shown_url(url)}: unfenced makes no connection to {scheme}: use a client of your own")
    with _CONNECT[scheme](split_locks(url)[0]) as connection:
        yield connection


def resource_path(url: str, resource: str) -> str:
    """Return what the keys of a resource begin with in etcd, or the node above its nodes in ZooKeeper.

    It connects to nothing. UnsupportedError for every other store.
    """
    layout: Any = getattr(guard_store(url), "layout", None)
    if hasattr(layout, "area"):
        return str(layout.area(resource).decode())
    if hasattr(layout, "root"):
        return str(layout.root(resource))
    raise UnsupportedError(f"{shown_url(url)}: resource_path is for etcd and ZooKeeper only")


class EtcdKeys:
    """Reads and writes keys of etcd without a token."""

    def __init__(self, client: "EtcdClient") -> None:
        self._client = client

    def read_below(self, prefix: str) -> Iterator[Any]:
        """Yield each key that begins with the prefix: its `key`, `value`, `version`, `mod_revision`, page by page."""
        from fencelock.stores.etcd.connection import wire
        from fencelock.stores.etcd.connection.wire import prefix_end

        start, end = prefix.encode(), prefix_end(prefix.encode())
        while start:
            page = wire.RequestOp(
                request_range=wire.RangeRequest(key=start, range_end=end, limit=PAGE_KEYS),
            )
            keys = self._transact([], [page]).responses[0].response_range.kvs
            yield from keys
            start = keys[-1].key + b"\0" if len(keys) == PAGE_KEYS else b""

    def write(self, values: Mapping[str, str], *, unless_any_below: str) -> bool:
        """Write the keys in one transaction unless one begins with the prefix; return whether they were written."""
        from fencelock.stores.etcd.connection.wire import is_empty, put

        puts = [put(key.encode(), value.encode()) for key, value in values.items()]
        return bool(self._transact([is_empty(unless_any_below.encode())], puts).succeeded)

    def delete_below(self, prefix: str) -> None:
        """Delete each key that begins with the prefix."""
        from fencelock.stores.etcd.connection.wire import delete, prefix_end

        self._transact([], [delete(prefix.encode(), prefix_end(prefix.encode()))])

    def _transact(self, compare: list[Any], success: list[Any]) -> Any:
        from fencelock.stores.etcd.connection.client import TXN
        from fencelock.stores.etcd.connection.wire import txn

        return self._client.call(TXN, txn(compare, success), REQUEST_TIMEOUT_S)


# --- how each store is connected to ---------------------------------------------------------------------------------
@contextmanager
def _sqlite(url: str) -> Iterator[Any]:
    import sqlite3

    from fencelock.stores.sqlite.connection.database import path_of

    with closing(sqlite3.connect(path_of(url), timeout=REQUEST_TIMEOUT_S, isolation_level=None)) as connection:
        yield connection


@contextmanager
def _postgres(url: str) -> Iterator[Any]:
    from fencelock.stores.postgres.connection.client import open_connection
    from fencelock.stores.postgres.connection.url import parse_url

    with closing(open_connection(parse_url(url), REQUEST_TIMEOUT_S)) as connection:
        yield connection


@contextmanager
def _mysql(url: str) -> Iterator[Any]:
    from fencelock.stores.mysql.connection.opening import open_connection
    from fencelock.stores.mysql.connection.url import parse_url

    with closing(open_connection(parse_url(url), REQUEST_TIMEOUT_S)) as connection:
        yield connection


@contextmanager
def _etcd(url: str) -> Iterator[Any]:
    from fencelock.stores.etcd.connection.client import EtcdClient
    from fencelock.stores.etcd.connection.url import parse_url

    yield EtcdKeys(EtcdClient(parse_url(url)))


@contextmanager
def _zookeeper(url: str) -> Iterator[Any]:
    from fencelock.stores.zookeeper.connection.client import open_client
    from fencelock.stores.zookeeper.connection.url import parse_url
    from fencelock.stores.zookeeper.guard.connection import SESSION_TICKS

    info = parse_url(url)
    client = open_client(info, SESSION_TICKS * info.tick_ms, REQUEST_TIMEOUT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


_CONNECT = {
    "etcd": _etcd,
    "mariadb": _mysql,
    "mysql": _mysql,
    "postgres": _postgres,
    "postgresql": _postgres,
    "sqlite": _sqlite,
    "zookeeper": _zookeeper,
}
