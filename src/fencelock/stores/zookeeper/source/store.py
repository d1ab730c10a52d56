"""The source of tokens in a ZooKeeper ensemble, in the layout of kazoo's `Lock`: a token is the czxid of its node.

Promise: a token is minted by the transaction that takes the place in the queue, which is first in, first out; a claim
whose turn comes is granted only in a session of which the leader was heard so lately that it surely lives. One session
holds all locks of one ttl in a process, and one beat keeps them, `sync` and a read of the source's record; each node
that is held is watched. The time left is counted from what the leader surely knew of the session, not from the last
reply.
Never: a schema made without `install`; an end of a claim forgotten while its node may still come.
"""

import os
from contextlib import suppress
from typing import Any

from fencelock.clock import boottime_us
from fencelock.errors import SourceError
from fencelock.model import Finding
from fencelock.protocol import source_requests as ask
from fencelock.protocol.stores import Capabilities
from fencelock.stores.source_clock import SourceIdentity
from fencelock.stores.wakeup import EventWakeup
from fencelock.stores.zookeeper.connection.url import parse_url
from fencelock.stores.zookeeper.source import admin, inspection, install
from fencelock.stores.zookeeper.source.layout import ZooKeeperLayout
from fencelock.stores.zookeeper.source.queue import ZooKeeperQueue
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.renewal import renew
from fencelock.stores.zookeeper.source.sessions import ZooKeeperSessions

MIN_TICKS = 4
MIN_TTL_MS = 1000
MAX_TTL_MS = 86_400_000
RELEASED = "it was released"


class ZooKeeperSource:
    """A source of tokens under one base. Making it opens nothing."""

    def __init__(self, url: str) -> None:
        self.place = parse_url(url)
        self.url = self.place.url
        self.capabilities = Capabilities(
            ttl_min_ms=max(MIN_TICKS * self.place.tick_ms, MIN_TTL_MS),
            ttl_max_ms=MAX_TTL_MS,
            ttl_step_ms=1,
            notifies=True,
        )
        self.identity = SourceIdentity(self.url)
        self.layout = ZooKeeperLayout(self.place.base)
        self.sessions = ZooKeeperSessions(self.place)

    def connect(self, *, request_timeout_s: float) -> "ZooKeeperConnection":
        """Return a connection; all of a process's share its sessions."""
        return ZooKeeperConnection(self, request_timeout_s)

    def listen(self, lock: str, claim: str) -> "ZooKeeperWakeup":
        """Open the channel of one waiting claim, which its next look connects to what it waits for."""
        found = self.sessions.of_claim(claim)
        return ZooKeeperWakeup(found[1] if found is not None else None)

    def install(self) -> None:
        """Make the source's record if there is none; safe when run concurrently."""
        install.install(self)

    def examine(self) -> list[Finding]:
        """Return what in this source's set-up would break the promise."""
        return inspection.examine(self)


class ZooKeeperWakeup(EventWakeup):
    """An ear that its claim's watches wake."""

    def __init__(self, standing: ZooKeeperQueueEntry | None) -> None:
        super().__init__()
        self._standing = standing
        if standing is not None:
            standing.ear = self

    def close(self) -> None:
        """Stop listening; never raises."""
        if self._standing is not None and self._standing.ear is self:
            self._standing.ear = None
        super().close()


class ZooKeeperConnection:
    """Answers requests in the caller's thread, over the sessions of its source."""

    def __init__(self, store: ZooKeeperSource, request_timeout_s: float) -> None:
        self._store = store
        self._sessions = store.sessions
        self._patience_s = request_timeout_s
        self._queueing = ZooKeeperQueue(store.sessions, store.identity, store.layout, request_timeout_s)
        self._leave: Any = None
        self._process_id = 0

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        self._end_overdue()
        kind = type(request)
        if kind is ask.Renew:
            return renew(self._sessions, self._store.identity, request, self._patience_s)
        if kind is ask.Release:
            return self._release(request)
        if self._leave is None or self._process_id != os.getpid():
            self._process_id = os.getpid()  # A forked child has sessions of its own.
            self._leave = self._sessions.use()
        if kind is ask.Acquire:
            return self._queueing.acquire(request)
        if kind is ask.Poll:
            return self._queueing.poll(request)
        if kind is ask.ReserveBlock:
            return None  # ZooKeeper's own log is flushed before it answers: every zxid is durable.
        return admin.ANSWERS[kind](self._store, self._sessions.any(self._patience_s), request, self._patience_s)

    def _end_overdue(self) -> None:
        """Remove what this process has not renewed in time, before anything is decided beside it."""
        for session in self._sessions.all():
            if late := session.overdue():
                with suppress(SourceError):  # Whatever connection comes next removes them.
                    session.remove(late, self._patience_s)

    def _release(self, request: ask.Release) -> ask.Released:
        # Remembered before it is looked for, as an acquire is entered before it looks here: one sees the other.
        self._sessions.ended.remember(request.claim, boottime_us(), RELEASED)
        found = self._sessions.of_claim(request.claim)
        if found is None:
            return ask.Released(was_held=False)
        session, standing = found
        was_held = standing.is_granted and standing.over is None
        session.end(standing, RELEASED)
        was_there = session.remove([standing], self._patience_s)
        self._sessions.close_if_idle()
        return ask.Released(was_held and was_there)

    def close(self) -> None:
        """Take note that it is not used any more; the last one closes the sessions, once no claim stands on them."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()
