"""The guard of a range of etcd keys: marks beside the data, and one Txn that compares them.

Promise: the constructor opens nothing; all connections of one guard share one client. etcd itself refuses nobody who
writes past the guard: etcd's roles have to, and `examine` reports where etcd requires no login.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from fencelock.errors import FencelockError, SourceError
from fencelock.model import Finding
from fencelock.protocol.generators import run_generator
from fencelock.protocol.guard_requests import InspectResources
from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.errors import refused_finding
from fencelock.stores.etcd.connection.client import EtcdClient
from fencelock.stores.etcd.connection.url import parse_url, prefix_of
from fencelock.stores.etcd.connection.wire import delete, txn, was_modified
from fencelock.stores.etcd.guard.block import MAX_OPERATIONS, MAX_REQUEST_BYTES
from fencelock.stores.etcd.guard.codec import EtcdGuardCodec, EtcdGuardLayout, find_conflict_of_guard
from fencelock.stores.etcd.guard.colocated import EtcdColocatedLocks
from fencelock.stores.etcd.guard.transactions import AsyncEtcdTransaction, EtcdTransaction, send_txn, send_txn_async
from fencelock.stores.etcd.policy import guard_policy
from fencelock.stores.optimistic.connection import AsyncOptimisticConnection, OptimisticConnection
from fencelock.stores.quorum.colocated import split_locks


class EtcdGuard:
    """A guarded range of keys."""

    capabilities = GuardCapabilities(
        enforced_by="policy",
        speaks_asyncio=True,
        keeps_open=False,
        max_writes=MAX_OPERATIONS,
        max_request_bytes=MAX_REQUEST_BYTES,
    )

    def __init__(self, url: str) -> None:
        url, locks = split_locks(url)
        self.info = parse_url(url)
        self.url = self.info.url
        self.layout = EtcdGuardLayout(self.info.prefix)
        self.locks = None if locks is None else EtcdColocatedLocks(prefix_of(locks))
        self._client = EtcdClient(self.info)

    def connect(self) -> OptimisticConnection[EtcdGuardCodec]:
        """Return a connection for the caller's thread."""
        return OptimisticConnection(self._codec(EtcdTransaction), partial(send_txn, self._client))

    def connect_async(self) -> AsyncOptimisticConnection[EtcdGuardCodec]:
        """Return a connection for the running loop."""
        return AsyncOptimisticConnection(self._codec(AsyncEtcdTransaction), partial(send_txn_async, self._client))

    def _codec(self, transaction_type: Callable[..., Any]) -> EtcdGuardCodec:
        return EtcdGuardCodec(self.url, self.layout, self.locks, partial(transaction_type, self._client))

    def install(self) -> None:
        """Do nothing: the first seal creates what it needs."""

    def policy(self, resource: str, lock: str, *roles: str) -> str:
        """Return the commands that let these roles write one resource, and no more."""
        locks = None if self.locks is None else self.locks.layout
        return "\n".join(guard_policy(self.layout, locks, resource, lock, role) for role in roles)

    def examine(self) -> list[Finding]:
        """Report a source of locks that conflicts with the guard, and missing access control."""
        try:
            self.connect().perform(InspectResources(None))
            conflict: str | None = run_generator(
                find_conflict_of_guard(self.layout), lambda trip: send_txn(self._client, trip)
            )
        except FencelockError as error:
            return [refused_finding("guard-refused", error)]
        shared = [] if conflict is None else [_shared_prefix_finding(self.url, conflict)]
        return shared if self._requires_login() else [*shared, _open_to_all_finding(self.url)]

    def _requires_login(self) -> bool:
        """Return whether etcd refuses a write from a client without a login; nothing is written either way."""
        tls = self.info.tls and self.info.tls.anonymous()
        anonymous = EtcdClient(self.info._replace(user=None, password=None, tls=tls))
        key = self.layout.marks
        try:
            # No key has revision -1, so nothing is ever deleted; etcd checks the rights before it compares.
            send_txn(anonymous, txn((was_modified(key, -1),), (delete(key),)))
        except SourceError:
            return True
        return False


def _shared_prefix_finding(url: str, conflict: str) -> Finding:
    return Finding(
        "shared-place",
        f"{url} {conflict}, so guarded data may block locks, and no new resource can be sealed here",
        "keep data and locks behind prefixes of which neither begins with the other",
    )


def _open_to_all_finding(url: str) -> Finding:
    return Finding(
        "open-to-all",
        f"{url}: everybody may write every key, with or without a token: etcd requires no login, and by itself it "
        f"refuses nobody",
        "require a login (etcdctl auth enable), name a user in the URLs of the applications that use the guard, and "
        "give the right to write this prefix to that user's role alone",
    )
