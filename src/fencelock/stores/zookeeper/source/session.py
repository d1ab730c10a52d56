"""One ZooKeeper session of this process, and the queue entries of its claims.

Promise: a claim is entered before the creation of its node is requested, and discarded only when the node is known to
be gone. If a claim ends while nobody knows whether its node was created, the next reply or the next connection removes
the node, in the client's own thread, without anybody's help. The end of the session ends all its claims. Whatever
ZooKeeper tells is noted before the reply that follows it, see `connection/client.py`.
Why the requests of a dead connection cannot come back: once a session is found again, ZooKeeper accepts nothing more
for it from the connection or the server that it had before (SessionMovedException), and what arrived in time is ordered
before everything that is requested from then on; `sync` waits for that.
"""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.states import KazooState

from fencelock.clock import boottime_ms, boottime_us
from fencelock.errors import SchemaError
from fencelock.stores.ended_claims import EndedClaims
from fencelock.stores.errors import SOURCE_PART, not_installed
from fencelock.stores.zookeeper.connection.client import FORKS, ZooKeeperClient, answers, connect
from fencelock.stores.zookeeper.connection.errors import copy_error, mapping_errors
from fencelock.stores.zookeeper.connection.url import ZooKeeperConnectionInfo
from fencelock.stores.zookeeper.source.layout import (
    QUEUE_VALUE,
    SourceRecord,
    ZooKeeperLayout,
    decode_record_node,
    node_prefix,
)
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry

MAX_MS = 2**63
UNREACHABLE_TTLS = 2
"""A session that has had no connection for so many of its timeouts is given up, once no claim is left on it."""
SURELY_ALIVE_SHARE = 0.75
"""With at least this share of the ttl left, a claim whose turn has come is granted without asking the leader."""


class RequestStart(NamedTuple):
    """The moment at which a request is sent: its time, the end of the session's sure life if a reply comes, and the
    number of the connection.
    """

    sent_ms: int
    lives_until_ms: int
    connection: int


class ZooKeeperSession:
    """A client with the queue entries of its claims. Any thread may use it."""

    def __init__(
        self, info: ZooKeeperConnectionInfo, ended: EndedClaims, ttl_ms: int, request_timeout_s: float
    ) -> None:
        self.info = info
        self.layout = ZooKeeperLayout(info.base)
        self.ttl_ms = ttl_ms
        # Guards `entries` and the end of a claim. Reentrant: the client's thread may end claims inside a callback. No
        # thread waits for an answer while it holds this, so a caller never blocks the client's thread.
        self.mutex = threading.RLock()
        self.entries: dict[str, ZooKeeperQueueEntry] = {}
        self.record: SourceRecord | None = None
        """The source's record as of the last reply; None when it has to be read (again)."""
        self._ended = ended
        self._mapping_errors = mapping_errors(info)
        self.lives_until_ms = 0
        """Until when the session surely lives, by what the leader has confirmed."""
        self._earliest_ms = MAX_MS
        """No claim is overdue before this time: a request need not search the entries."""
        self._suspended_ms: int | None = None
        self._connection = 0
        """Counts the changes of the connection's state: a watch is told only over the connection that set it."""
        self.client = ZooKeeperClient(info, ttl_ms)
        # Before it connects: `_on_state` counts every connection, the first one included.
        self.client.add_listener(self._on_state)
        connect(self.client, request_timeout_s)

    # --- requests and replies -----------------------------------------------------------------------------------------
    def answers(self, results: Sequence[Any], request_timeout_s: float) -> list[Any]:
        """Return the answers of requests that were sent together; a FencelockError if the outcome is unknown."""
        with self._mapping_errors:
            return answers(list(results), request_timeout_s)

    def values_of(self, results: Sequence[Any], request_timeout_s: float) -> list[Any]:
        """Return the answers of requests none of which may be refused."""
        found = self.answers(results, request_timeout_s)
        with self._mapping_errors:
            for one in found:
                if isinstance(one, Exception):
                    raise copy_error(one)
        return found

    def value_of(self, found: Any) -> Any:
        """Return one answer; raise the matching FencelockError if it is an error."""
        with self._mapping_errors:
            if isinstance(found, Exception):
                raise copy_error(found)
        return found

    def wait_connected(self, request_timeout_s: float) -> None:
        """Wait for a connection, so that a request that cannot be sent certainly did not happen."""
        self.client.wait_connected(request_timeout_s)

    def request_start(self) -> RequestStart:
        """Return the present moment; call it before the request is sent."""
        # The connection first: if it changes now, the number is the old one and proves nothing about the new.
        connection, now_ms = self._connection, boottime_ms()
        return RequestStart(now_ms, self.client.touched_ms(now_ms) + self.ttl_ms, connection)

    def confirm(self, start: RequestStart) -> None:
        """Note a reply that came from the leader, to `sync` or to a write."""
        self.lives_until_ms = max(self.lives_until_ms, start.lives_until_ms)

    def is_surely_alive(self, start: RequestStart) -> bool:
        """Return whether the session surely lives so much longer that a grant need not ask the leader."""
        return self.lives_until_ms - start.sent_ms >= self.ttl_ms * SURELY_ALIVE_SHARE

    def ensure_path(self, path: str, request_timeout_s: float) -> None:
        """Create a node and all above it, where they are missing."""
        self.values_of([self.client.ensure_path_async(path)], request_timeout_s)

    def ensure_queue(self, path: str, request_timeout_s: float) -> None:
        """Create the parent of a lock's contenders, if it is missing."""
        (made,) = self.answers([self.client.create_async(path, QUEUE_VALUE)], request_timeout_s)
        if not isinstance(made, NodeExistsError):
            self.value_of(made)

    # --- the source's record ------------------------------------------------------------------------------------------
    def request_missing_record(self) -> list[Any]:
        """Request the record, if it is not known."""
        return [] if self.record is not None else [self.request_record()]

    def request_record(self) -> Any:
        """Request the record, and watch it from then on; `decode_record` takes the answer."""
        result = self.client.get_async(self.layout.source, watch=self.on_record_event)
        # Noted in the client's thread, which keeps ZooKeeper's order. Another thread might store the record after the
        # watch has already told that it changed, and the old record would stay.
        result.rawlink(self._on_record_read)
        return result

    def last_token(self) -> int:
        """Return the last token that the source can have issued, as far as ZooKeeper has told; 0 if that is unknown."""
        record = self.record  # Before the zxid: an older record has a lower offset.
        return 0 if record is None else record.offset + self.client.last_zxid

    def decode_record(self, found: Any) -> SourceRecord:
        """Return the record in an answer; SchemaError if the node does not exist."""
        if isinstance(found, NoNodeError):
            raise not_installed(self.info.url, SOURCE_PART)
        value, stat = self.value_of(found)
        return decode_record_node(value, stat, self.info.url)

    def _on_record_read(self, done: Any) -> None:
        if done.successful():
            value, stat = done.value
            with suppress(SchemaError):
                self.record = decode_record_node(value, stat, self.info.url)

    def on_record_event(self, _: Any) -> None:
        """Forget the record: it, or the connection, has changed; called in the client's thread."""
        self.record = None

    # --- claims -------------------------------------------------------------------------------------------------------
    def enter(self, entry: ZooKeeperQueueEntry) -> None:
        """Add the entry of a claim whose node is about to be requested."""
        with self.mutex:
            self.entries[entry.digest] = entry
            self._earliest_ms = min(self._earliest_ms, entry.deadline_ms)

    def extend(self, entry: ZooKeeperQueueEntry, start: RequestStart) -> None:
        """Keep a claim for its ttl, counted from the start of a request that was confirmed."""
        entry.deadline_ms = start.sent_ms + entry.ttl_ms

    def create(self, entry: ZooKeeperQueueEntry, value: bytes) -> Any:
        """Request a claim's node; its reply, whenever it comes, is noted before anybody else sees it."""
        entry.was_requested = True
        path = f"{entry.queue_path}/{node_prefix(entry.digest)}"
        result = self.client.create_async(path, value, ephemeral=True, sequence=True, include_data=True)
        result.rawlink(lambda done: self._on_created(entry, done))
        return result

    def _on_created(self, entry: ZooKeeperQueueEntry, done: Any) -> None:
        if not done.successful():
            return
        path, stat = done.value
        # Under the lock that `end` takes: either `end` comes first and its reason is seen here, or the path comes first
        # and the code that ended the claim removes the node by it.
        with self.mutex:
            entry.path, entry.zxid = path, stat.czxid
            is_ended = entry.end_reason is not None
        if is_ended:
            self.remove_later(entry)

    def watch(self, entry: ZooKeeperQueueEntry) -> Any:
        """Request a claim's node, and watch it from then on; call it where the client holds requests back."""
        result = self.client.exists_async(entry.path, watch=entry.on_event)
        # Noted in the client's thread: another thread might note it after a change was told.
        result.rawlink(lambda done: self._on_watched(entry, done))
        return result

    def _on_watched(self, entry: ZooKeeperQueueEntry, done: Any) -> None:
        if done.successful():
            entry.is_gone = entry.is_gone or done.value is None
            entry.watched_connection = self._connection

    def end_overdue(self) -> list[ZooKeeperQueueEntry]:
        """End the claims that nobody has renewed for their ttl, and return them, with those that should be gone."""
        now_ms = boottime_ms()
        if now_ms < self._earliest_ms:
            return []
        with self.mutex:
            overdue = [one for one in self.entries.values() if one.deadline_ms <= now_ms]
            for one in overdue:
                self.end(one, "it expired before it was renewed")
                # The next try, if the servers refuse to remove its node now.
                one.deadline_ms = now_ms + one.ttl_ms
            self._earliest_ms = min((one.deadline_ms for one in self.entries.values()), default=MAX_MS)
        return overdue

    def end(self, entry: ZooKeeperQueueEntry, reason: str) -> None:
        """Note that a claim has ended; its node still has to be removed."""
        with self.mutex:
            entry.end_reason = entry.end_reason or reason
            self._ended.remember(entry.digest, boottime_us(), reason)
        self.client.forget_watcher(entry.predecessor, entry.on_event)
        entry.wake()

    def remove(self, ended: Iterable[ZooKeeperQueueEntry], request_timeout_s: float) -> bool:
        """Remove the nodes of ended claims, and return whether one existed; an error if the outcome is unknown."""
        self.wait_connected(request_timeout_s)
        entries = list(ended)
        for entry in entries:
            if entry.path is None:
                self.find(entry, request_timeout_s)
        with_nodes = [entry for entry in entries if entry.path is not None]
        with self.client:
            requests = [self.client.delete_async(entry.path) for entry in with_nodes]
        found = self.answers(requests, request_timeout_s)
        refused = {
            id(entry): one
            for entry, one in zip(with_nodes, found, strict=True)
            if isinstance(one, Exception) and not isinstance(one, NoNodeError)
        }
        for entry in entries:
            if id(entry) not in refused:
                self.discard(entry)
        for one in refused.values():
            self.value_of(one)
        return any(one is True for one in found)

    def find(self, entry: ZooKeeperQueueEntry, request_timeout_s: float) -> None:
        """Learn whether a request whose reply never came has created a claim's node."""
        client = self.client
        # `sync` waits for what arrived before: behind it the read tells for certain whether the node was made.
        requests = [client.sync_async(entry.queue_path), client.get_children_async(entry.queue_path)]
        _, children = self.answers(requests, request_timeout_s)
        if isinstance(children, NoNodeError):
            return
        name = _find_name(self.value_of(children), entry)
        if name is None:
            return
        path = f"{entry.queue_path}/{name}"
        (stat,) = self.values_of([client.exists_async(path)], request_timeout_s)
        if stat is not None:
            entry.path, entry.zxid = path, stat.czxid

    def discard(self, entry: ZooKeeperQueueEntry) -> None:
        """Forget a claim whose node is known to be gone."""
        with self.mutex:
            self.entries.pop(entry.digest, None)

    # --- in the client's own thread -----------------------------------------------------------------------------------
    def _on_state(self, state: str) -> None:
        self._connection += 1
        if state == KazooState.CONNECTED:
            self._suspended_ms = None
            # Held back, because this is the thread that takes each request from a pipe of limited size: it would wait
            # for itself.
            with self.client:
                for entry in self._ended_entries():
                    self._find_later(entry)
        else:
            self.record = None
            self._suspended_ms = self._suspended_ms or boottime_ms()
            if state == KazooState.LOST:
                self._on_lost()

    def _ended_entries(self) -> list[ZooKeeperQueueEntry]:
        with self.mutex:
            return [entry for entry in self.entries.values() if entry.end_reason is not None]

    def _on_lost(self) -> None:
        with self.mutex:
            lost = list(self.entries.values())
            self.entries.clear()
        for entry in lost:
            self.end(entry, "its ZooKeeper session ended")

    def _find_later(self, entry: ZooKeeperQueueEntry) -> None:
        """Search for the node of an ended claim, and remove it, without waiting for either."""
        if entry.path is not None:
            self.remove_later(entry)
            return
        self.client.sync_async(entry.queue_path)
        self.client.get_children_async(entry.queue_path).rawlink(lambda done: self._on_children(entry, done))

    def _on_children(self, entry: ZooKeeperQueueEntry, done: Any) -> None:
        # After any other error nothing is known: the entry stays, and the next connection searches again.
        if isinstance(done.exception, NoNodeError):
            self.discard(entry)
        elif done.successful():
            name = _find_name(done.value, entry)
            if name is None:
                self.discard(entry)
            else:
                entry.path = f"{entry.queue_path}/{name}"
                self.remove_later(entry)

    def remove_later(self, entry: ZooKeeperQueueEntry) -> None:
        """Remove the node of an ended claim, without waiting for it."""
        self.client.delete_async(entry.path).rawlink(lambda done: self._on_removed(entry, done))

    def _on_removed(self, entry: ZooKeeperQueueEntry, done: Any) -> None:
        if done.successful() or isinstance(done.exception, NoNodeError):
            self.discard(entry)

    # --- the end of the session ---------------------------------------------------------------------------------------
    def is_usable(self) -> bool:
        """Return whether the session has, or may get, a connection."""
        if not self.client.is_running():
            return False
        since_ms = self._suspended_ms
        if since_ms is None or len(self._ended_entries()) < len(self.entries):
            return True
        return boottime_ms() - since_ms < UNREACHABLE_TTLS * self.ttl_ms

    def close(self) -> None:
        """End the session at once, and with it every claim; never raises."""
        FORKS.close(self.client)


def _find_name(children: Iterable[str], entry: ZooKeeperQueueEntry) -> str | None:
    prefix = node_prefix(entry.digest)
    return next((name for name in children if name.startswith(prefix)), None)
