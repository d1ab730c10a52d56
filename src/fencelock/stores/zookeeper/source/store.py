"""The source of tokens in a ZooKeeper ensemble, in the layout of kazoo's `Lock`: a token is the czxid of its node.

Promise: the transaction that takes the place in the queue mints the token, and the queue is first in, first out. A
claim whose turn comes is granted only in a session that the leader confirmed so recently that it surely lives. One
session holds all locks of one ttl in a process; one beat (`sync` and a read of the source's record) renews them, and
each held node is watched. The time left is counted from what the leader surely knew of the session, not from the last
reply.
A request runs in a helper thread, because an exception from outside would leave kazoo's locks taken.
Never: a schema made without `install`; an ended claim forgotten while its node may still be created; a claim or a proof
beyond this module: what is below knows digests only.
"""

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from fencelock.model import Finding, digest_of_claim
from fencelock.protocol import source_requests as ask
from fencelock.protocol.stores import Capabilities
from fencelock.stores.errors import unsupported
from fencelock.stores.hashed_claims import hash_claims, restore_claims
from fencelock.stores.helper_threads import in_helper_thread
from fencelock.stores.source_clock import SourceIdentity
from fencelock.stores.wakeup import EventWakeup
from fencelock.stores.zookeeper.connection.url import parse_url
from fencelock.stores.zookeeper.policy import source_policy
from fencelock.stores.zookeeper.source import admin, inspection
from fencelock.stores.zookeeper.source.inspection import OperatorContext
from fencelock.stores.zookeeper.source.layout import ZooKeeperLayout
from fencelock.stores.zookeeper.source.queue import ZooKeeperQueue
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.renewal import remove_overdue, renew
from fencelock.stores.zookeeper.source.sessions import ZooKeeperSessions

if TYPE_CHECKING:
    from collections.abc import Callable

MIN_TICKS = 4
MIN_TTL_MS = 1000
MAX_TTL_MS = 86_400_000
MAX_TIMEOUTS = 10
"""So many times its timeout a request is awaited: it has several parts, each with a timeout of its own."""


class ZooKeeperSource:
    """A source of tokens under one base. The constructor opens nothing."""

    def __init__(self, url: str) -> None:
        self.info = parse_url(url)
        self.url = self.info.url
        self.capabilities = Capabilities(
            ttl_min_ms=max(MIN_TICKS * self.info.tick_ms, MIN_TTL_MS),
            ttl_max_ms=MAX_TTL_MS,
            ttl_step_ms=1,
            notifies=True,
        )
        self.identity = SourceIdentity(self.url)
        self.layout = ZooKeeperLayout(self.info.base)
        self.sessions = ZooKeeperSessions(self.info)

    def connect(self, *, request_timeout_s: float) -> "ZooKeeperConnection":
        """Return a connection; all connections of a process share its sessions."""
        return ZooKeeperConnection(self, request_timeout_s)

    def listen(self, lock: str, claim: str) -> "ZooKeeperWakeup":
        """Open the wakeup of one waiting claim; the claim's next poll sets the watches that notify it."""
        found = self.sessions.find_claim(digest_of_claim(claim))
        return ZooKeeperWakeup(found[1] if found is not None else None)

    def install(self) -> None:
        """Make the source's record if there is none; safe when run concurrently."""
        admin.install(self.sessions)

    def policy(self, *roles: str) -> str:
        """Return the commands that let these users take locks, and no more."""
        return source_policy(self.info.hosts, self.layout, roles)

    def examine(self) -> list[Finding]:
        """Return what in this source's setup breaks its guarantees."""
        return inspection.examine(self.sessions, self.identity)


class ZooKeeperWakeup(EventWakeup):
    """A wakeup that its claim's watches notify."""

    def __init__(self, entry: ZooKeeperQueueEntry | None) -> None:
        super().__init__()
        self._entry = entry
        if entry is not None:
            entry.wakeup = self

    def close(self) -> None:
        """Stop listening; never raises."""
        # A later wakeup of the same claim may have replaced this one: that one stays.
        if self._entry is not None and self._entry.wakeup is self:
            self._entry.wakeup = None
        super().close()


class ZooKeeperConnection:
    """Answers requests in the caller's thread, over the sessions of its source."""

    def __init__(self, store: ZooKeeperSource, request_timeout_s: float) -> None:
        self._identity = store.identity
        self._sessions = store.sessions
        self._request_timeout_s = request_timeout_s
        self._queue = ZooKeeperQueue(store.sessions, store.identity, store.layout, request_timeout_s)
        # The sessions live as long as the store: a connection keeps it alive.
        self._store = store
        self._remove_user: Callable[[], None] | None = None
        self._process_id = 0
        self._is_closed = False

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        return in_helper_thread(partial(self._perform_here, request), MAX_TIMEOUTS * self._request_timeout_s)

    def _perform_here(self, request: Any) -> ask.SourceReply:
        try:
            return self._perform(request)
        finally:
            if self._is_closed:  # By a caller who was interrupted, and did not wait for the end.
                self.close()

    def _perform(self, request: Any) -> ask.SourceReply:
        # First, so that no decision below counts a claim of this process that has expired.
        remove_overdue(self._sessions, self._request_timeout_s)
        if isinstance(request, ask.Renew):
            renewed = renew(self._sessions, self._identity, hash_claims(request), self._request_timeout_s)
            return restore_claims(request, renewed)
        request, kind = hash_claims(request), type(request)
        if kind is ask.Release:
            return self._queue.release(request)
        if kind in (ask.AddKey, ask.RetireKey, ask.ReadKeys):
            raise unsupported(request, self._store.url)
        self._use_sessions()
        if kind is ask.Acquire:
            return self._queue.acquire(request)
        if kind is ask.Poll:
            return self._queue.poll(request)
        if kind is ask.ReserveBlock:
            return None  # ZooKeeper flushes its log before it answers: every zxid is durable.
        session = self._sessions.any_session(self._request_timeout_s)
        return admin.ANSWERS[kind](
            OperatorContext(self._sessions, self._identity, session, self._request_timeout_s), request
        )

    def _use_sessions(self) -> None:
        """Keep the process's sessions open while this connection is."""
        if self._remove_user is None or self._process_id != os.getpid():
            self._process_id = os.getpid()  # A forked child has sessions of its own.
            self._remove_user = self._sessions.add_user()

    def close(self) -> None:
        """End this connection's use of the sessions; the last user closes them, once no claim is left on them."""
        self._is_closed = True
        remove_user, self._remove_user = self._remove_user, None
        if remove_user is not None:
            remove_user()
