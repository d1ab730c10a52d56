"""The source of tokens in an etcd cluster: one transaction to acquire, one to release, one keepalive for all leases.

Promise: a token is the revision that created the claim's key, which the cluster has agreed on and flushed before any
answer tells it (T1, T6). One lease of etcd for each ttl of a process keeps all its places; the time left is what the
last confirmed keepalive leaves. `etcdctl lock` and Go's `concurrency.Mutex` exclude ours, and ours exclude theirs.
Never: a record made without `install`; a request repeated here.
"""

import asyncio
import atexit
from collections.abc import Callable
from typing import Any

from fencelock.errors import SourceError
from fencelock.model import Finding
from fencelock.protocol import source_requests as ask
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.protocol.stores import Capabilities
from fencelock.stores.etcd.connection.url import parse_url
from fencelock.stores.etcd.source import admin, codec, inspection
from fencelock.stores.etcd.source.cluster_state import Call, ClusterState, Pair, Talk, leave_all
from fencelock.stores.wakeup import EventWakeup

INSTALL_S = 10.0
TALKS: dict[type, Callable[[ClusterState, Any], Talk]] = {
    ask.Acquire: codec.acquire,
    ask.Poll: codec.poll,
    ask.Release: codec.release,
    ask.Renew: codec.renew,
    ask.ReserveBlock: admin.reserve,
    ask.ReadSource: admin.read_source,
    ask.RaiseEpoch: admin.raise_epoch,
    ask.Break: admin.break_lock,
    ask.Inspect: admin.inspect,
    ask.ListLocks: admin.list_locks,
    ask.Purge: admin.purge,
}


class EtcdSource:
    """A source of tokens below one prefix of a cluster. Making it opens nothing."""

    capabilities = Capabilities(
        ttl_min_ms=1000,
        ttl_max_ms=86_400_000,
        ttl_step_ms=1000,
        notifies=True,
        speaks_asyncio=True,
        max_connections=1000,
    )

    def __init__(self, url: str) -> None:
        place = parse_url(url)
        self.place = place
        self.url = place.url
        self.presence = ClusterState(place)

    def connect(self, *, request_timeout_s: float) -> "EtcdSourceConnection":
        """Return what asks in the caller's thread; all share the process's one way to the cluster."""
        return EtcdSourceConnection(self.presence, request_timeout_s)

    def connect_async(self, *, request_timeout_s: float) -> "AsyncEtcdSourceConnection":
        """Return what asks on the running loop."""
        return AsyncEtcdSourceConnection(self.presence, request_timeout_s)

    def listen(self, lock: str, claim: str) -> "EtcdWakeup":
        """Open the channel of one waiting claim."""
        return EtcdWakeup(self.presence, claim)

    def install(self) -> None:
        """Make the source's record if there is none; safe when run concurrently."""
        connection = self.connect(request_timeout_s=INSTALL_S)
        run_generator(admin.install(self.presence), connection.say)

    def examine(self) -> list[Finding]:
        """Return what in this source's set-up would break the promise."""
        return inspection.examine(self)


class EtcdWakeup(EventWakeup):
    """The ear of a claim that has a place in a queue."""

    def __init__(self, presence: ClusterState, claim: str) -> None:
        super().__init__()
        self._watcher = presence.watcher
        self._standing = presence.standing.get(claim)
        if self._standing is not None:
            self._standing.ear = self

    def close(self) -> None:
        """Stop listening; never raises."""
        standing = self._standing
        if standing is not None and standing.ear is self:
            standing.ear = None
            if not standing.is_watched:
                self._watcher.forget(standing.watch_id)
                standing.watch_id = 0
        super().close()


class _Connection:
    """What both kinds of connection are: a patience, and whether the last request failed."""

    def __init__(self, presence: ClusterState, request_timeout_s: float) -> None:
        self._presence = presence
        self._patience_s = request_timeout_s
        self._has_failed = False

    def close(self) -> None:
        """End the sessions that nobody uses, as the one who closes a source wants; never raises."""
        if not self._has_failed:
            self._presence.retire()


class EtcdSourceConnection(_Connection):
    """Answers requests in the caller's thread."""

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        self._has_failed = True
        reply = run_generator(TALKS[type(request)](self._presence, request), self.say)
        self._has_failed = False
        return reply  # type: ignore[no-any-return]

    def say(self, said: Call | Pair) -> Any:
        """Say one thing to etcd, or two at once, and return the answer."""
        client = self._presence.client
        if isinstance(said, Call):
            return client.call(*said, self._patience_s)
        beside = client.begin(*said.beside, self._patience_s)
        try:
            answer = client.call(*said.main, self._patience_s)
        except BaseException:
            beside.cancel()
            raise
        try:
            return answer, beside.result()
        except Exception:
            return answer, None


class AsyncEtcdSourceConnection(_Connection):
    """Answers requests on the running loop."""

    async def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        self._has_failed = True
        reply = await run_generator_async(TALKS[type(request)](self._presence, request), self._say)
        self._has_failed = False
        return reply  # type: ignore[no-any-return]

    async def _say(self, said: Call | Pair) -> Any:
        client = self._presence.client
        if isinstance(said, Call):
            return await client.call_async(*said, self._patience_s)
        beside = asyncio.ensure_future(client.call_async(*said.beside, self._patience_s))
        try:
            answer = await client.call_async(*said.main, self._patience_s)
            try:
                return answer, await beside
            except SourceError:
                return answer, None
        finally:
            beside.cancel()


atexit.register(leave_all)
