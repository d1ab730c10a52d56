"""The source of tokens in an etcd cluster: one transaction to acquire, one to release, one keepalive for all leases.

Promise: a token is the revision that created the claim's key. The cluster has agreed on it and flushed it before any
answer tells it (T1, T6). One etcd lease for each ttl of a source object keeps all its queue entries; the time left is
counted from the last confirmed keepalive. `etcdctl lock` and Go's `concurrency.Mutex` exclude fencelock's locks, and
the reverse.
Never: a record made without `install`; a request repeated here; a claim or a proof beyond this module: what is below
knows digests only.
"""

import asyncio
import atexit
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import grpc

from fencelock.errors import SourceError
from fencelock.model import Finding, digest_of_claim
from fencelock.protocol import source_requests as ask
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.protocol.stores import Capabilities
from fencelock.stores.etcd.connection.url import parse_url
from fencelock.stores.etcd.policy import source_policy
from fencelock.stores.etcd.source import admin, codec, inspection, renewal
from fencelock.stores.etcd.source.cluster_state import CallPair, ClusterState, EtcdCall, Operations, revoke_all_at_exit
from fencelock.stores.hashed_claims import hash_claims, restore_claims
from fencelock.stores.wakeup import EventWakeup

INSTALL_S = 10.0
OPERATIONS: dict[type, Callable[[ClusterState, Any], Operations]] = {
    ask.Acquire: codec.acquire,
    ask.Poll: codec.poll,
    ask.Release: codec.release,
    ask.Renew: renewal.renew,
    ask.ReserveBlock: admin.reserve,
    ask.ReadSource: inspection.read_source,
    ask.RaiseEpoch: admin.raise_epoch,
    ask.Break: admin.break_lock,
    ask.Inspect: inspection.inspect,
    ask.Check: inspection.check,
    ask.ListLocks: inspection.list_locks,
    ask.Purge: admin.purge,
    ask.AddKey: admin.refuse_keys,
    ask.RetireKey: admin.refuse_keys,
    ask.ReadKeys: admin.refuse_keys,
}


class EtcdSource:
    """A source of tokens below one prefix of a cluster. The constructor opens nothing."""

    capabilities = Capabilities(
        ttl_min_ms=1000,
        ttl_max_ms=86_400_000,
        ttl_step_ms=1000,
        notifies=True,
        speaks_asyncio=True,
        max_connections=1000,
    )

    def __init__(self, url: str) -> None:
        info = parse_url(url)
        self.info = info
        self.url = info.url
        self.state = ClusterState(info)

    def connect(self, *, request_timeout_s: float) -> "EtcdSourceConnection":
        """Return a connection for the caller's thread; all connections share the process's cluster state and client."""
        return EtcdSourceConnection(self.state, request_timeout_s)

    def connect_async(self, *, request_timeout_s: float) -> "AsyncEtcdSourceConnection":
        """Return a connection for the running loop."""
        return AsyncEtcdSourceConnection(self.state, request_timeout_s)

    def listen(self, lock: str, claim: str) -> "EtcdWakeup":
        """Open the wakeup of one waiting claim."""
        return EtcdWakeup(self.state, digest_of_claim(claim))

    def install(self) -> None:
        """Make the source's record if there is none; safe when run concurrently."""
        connection = self.connect(request_timeout_s=INSTALL_S)
        run_generator(admin.install(self.state), connection.send)

    def policy(self, *roles: str) -> str:
        """Return the commands that let these roles take locks, and no more."""
        return "\n".join(source_policy(self.state.layout, role) for role in roles)

    def examine(self) -> list[Finding]:
        """Return what in this source's setup breaks its guarantees."""
        return inspection.examine(self.state, self.connect(request_timeout_s=inspection.REQUEST_TIMEOUT_S).send)


class EtcdWakeup(EventWakeup):
    """The wakeup of a claim in a queue; a watch of its predecessor's key notifies it."""

    def __init__(self, state: ClusterState, digest: str) -> None:
        super().__init__()
        self._watcher = state.watcher
        self._entry = state.entries.get(digest)
        if self._entry is not None:
            self._entry.wakeup = self

    def drain(self) -> None:
        """Discard the notifications so far; start the watcher if that failed before."""
        super().drain()
        self._watcher.start()

    def close(self) -> None:
        """Stop listening; never raises."""
        entry = self._entry
        if entry is not None and entry.wakeup is self:
            entry.wakeup = None
            # Once the lease is renewed, the same watch id belongs to the watch of the claim's own key: it stays.
            if not entry.is_watched:
                self._watcher.forget(entry.watch_id)
                entry.watch_id = 0
        super().close()


class _Connection:
    """What both kinds of connection share: the request timeout, and whether the last request failed."""

    def __init__(self, state: ClusterState, request_timeout_s: float) -> None:
        self._state = state
        self._request_timeout_s = request_timeout_s
        self._has_failed = False

    def _operations(self, request: Any) -> Operations:
        return OPERATIONS[type(request)](self._state, hash_claims(request))

    def close(self) -> None:
        """Revoke the sessions without claims; never raises."""
        if not self._has_failed:
            self._state.revoke_unused_sessions()


class EtcdSourceConnection(_Connection):
    """Answers requests in the caller's thread."""

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        self._has_failed = True
        reply = run_generator(self._operations(request), self.send)
        self._has_failed = False
        return restore_claims(request, reply) if isinstance(request, ask.Renew) else reply

    def send(self, operation: EtcdCall | CallPair) -> Any:
        """Say one thing to etcd, or two at once, and return the answer."""
        client = self._state.client
        if isinstance(operation, EtcdCall):
            return client.call(*operation, self._request_timeout_s)
        concurrent = None
        # The keepalive goes along: without a thread for it, the main request is sent all the same.
        with suppress(SourceError):
            concurrent = client.begin(*operation.concurrent, self._request_timeout_s)
        try:
            answer = client.call(*operation.main, self._request_timeout_s)
        except BaseException:
            if concurrent is not None:
                concurrent.cancel()
            raise
        try:
            return answer, None if concurrent is None else concurrent.result()
        except grpc.RpcError:
            return answer, None


class AsyncEtcdSourceConnection(_Connection):
    """Answers requests on the running loop."""

    async def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        self._has_failed = True
        reply = await run_generator_async(self._operations(request), self._send)
        self._has_failed = False
        return restore_claims(request, reply) if isinstance(request, ask.Renew) else reply

    async def _send(self, operation: EtcdCall | CallPair) -> Any:
        client = self._state.client
        if isinstance(operation, EtcdCall):
            return await client.call_async(*operation, self._request_timeout_s)
        concurrent = asyncio.ensure_future(client.call_async(*operation.concurrent, self._request_timeout_s))
        try:
            answer = await client.call_async(*operation.main, self._request_timeout_s)
            try:
                return answer, await concurrent
            except SourceError:
                return answer, None
        finally:
            concurrent.cancel()


atexit.register(revoke_all_at_exit)
