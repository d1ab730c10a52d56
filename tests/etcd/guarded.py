"""What tests of etcd's guard share: a client that bypasses the guard."""

from typing import Any

from fencelock.stores.etcd.connection.client import TXN, EtcdClient
from fencelock.stores.etcd.connection.url import parse_url
from fencelock.stores.etcd.connection.wire import delete, get, put, txn


class Direct:
    """Reads and writes whole keys."""

    def __init__(self, url: str) -> None:
        self.client = EtcdClient(parse_url(url))

    def _done(self, operation: Any) -> Any:
        return self.client.call(TXN, txn((), (operation,)), 10.0).responses[0]

    def put(self, key: str, value: str | bytes) -> None:
        self._done(put(key.encode(), value.encode() if isinstance(value, str) else value))

    def get(self, key: str) -> str | None:
        found = self._done(get(key.encode())).response_range.kvs
        return found[0].value.decode() if found else None

    def delete(self, key: str) -> None:
        self._done(delete(key.encode()))
