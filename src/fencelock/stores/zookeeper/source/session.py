"""One ZooKeeper session of this process, and the claims that stand on it.

Promise: a claim is entered before its node is asked for, and struck out only when the node is known to be gone; one
that is over while nobody knows whether its node was made has it removed by whatever reply or connection comes next, in
the client's own thread, without anybody's help. The end of the session is the end of all its claims. What ZooKeeper
tells is taken in before the reply that follows it, see `client.py`.
Why a dead connection's requests cannot come back: once a session is found again, ZooKeeper takes nothing more for it
from the connection or the server that it had before (SessionMovedException), and what came in time has its place in the
order before everything that is asked from then on; `sync` waits for that.
"""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.states import KazooState

from fencelock.clock import boottime_ms, boottime_us
from fencelock.errors import SchemaError
from fencelock.stores.quorum.tombstones import EndedClaims
from fencelock.stores.zookeeper.connection.client import ZooKeeperClient, anew, answers, connect, mapping_errors
from fencelock.stores.zookeeper.connection.forks import FORKS
from fencelock.stores.zookeeper.connection.url import ZooKeeperConnectionInfo
from fencelock.stores.zookeeper.source.layout import QUEUE_VALUE, ZooKeeperLayout, node_prefix
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.record import SourceRecord, not_installed, record_in

MAX_MS = 2**63
UNREACHABLE_TTLS = 2
"""A session that has had no connection for so many of its timeouts is given up, once no claim stands on it."""


SURE_SHARE = 0.75
"""With so much of its ttl left at least, a claim whose turn has come is granted without the leader's word."""


class Sending(NamedTuple):
    """The moment at which something is sent: over which connection, and until when the session surely lives if there
    is a reply.
    """

    sent_ms: int
    lives_until_ms: int
    connection: int


class ZooKeeperSession:
    """A client with its claims. Any thread may use it."""

    def __init__(
        self, place: ZooKeeperConnectionInfo, ended: EndedClaims, ttl_ms: int, request_timeout_s: float
    ) -> None:
        self.place = place
        self.layout = ZooKeeperLayout(place.base)
        self.ttl_ms = ttl_ms
        self.mutex = threading.RLock()
        self.standing: dict[str, ZooKeeperQueueEntry] = {}
        self.record: SourceRecord | None = None
        """The source's record as of the last reply; None when it is to be read (again)."""
        self._ended = ended
        self._naming_errors = mapping_errors(place)
        self.lives_until_ms = 0
        """Until when the session surely lives, by what the leader has confirmed."""
        self._earliest_ms = MAX_MS
        self._suspended_ms: int | None = None
        self._connection = 0
        self.client = ZooKeeperClient(place, ttl_ms)
        self.client.add_listener(self._on_state)
        connect(self.client, request_timeout_s)

    # --- asking -------------------------------------------------------------------------------------------------------
    def answers(self, results: Sequence[Any], request_timeout_s: float) -> list[Any]:
        """Return what came of requests that were sent together; an error of the tree if that is unknown."""
        with self._naming_errors:
            return answers(list(results), request_timeout_s)

    def expect(self, results: Sequence[Any], request_timeout_s: float) -> list[Any]:
        """Return what came of requests, none of which may be refused."""
        found = self.answers(results, request_timeout_s)
        with self._naming_errors:
            for one in found:
                if isinstance(one, Exception):
                    raise anew(one)
        return found

    def wait_connected(self, request_timeout_s: float) -> None:
        """Wait for a connection, so that what cannot be sent is known not to have happened."""
        self.client.wait_connected(request_timeout_s)

    def sending(self) -> Sending:
        """Return this moment; to be asked for before the request is sent."""
        connection, now_ms = self._connection, boottime_ms()
        return Sending(now_ms, self.client.touched_ms(now_ms) + self.ttl_ms, connection)

    def confirm(self, sending: Sending) -> None:
        """Take note of a reply that came from the leader, to `sync` or to a write."""
        self.lives_until_ms = max(self.lives_until_ms, sending.lives_until_ms)

    def is_sure(self, sending: Sending) -> bool:
        """Tell whether so much time is surely left that the leader need not be asked before a grant."""
        return self.lives_until_ms - sending.sent_ms >= self.ttl_ms * SURE_SHARE

    def make_path(self, path: str, request_timeout_s: float) -> None:
        """Make a node and all above it, where they are missing."""
        self.expect([self.client.ensure_path_async(path)], request_timeout_s)

    def make_queue(self, path: str, request_timeout_s: float) -> None:
        """Make the parent of a lock's contenders, if it is missing."""
        (made,) = self.answers([self.client.create_async(path, QUEUE_VALUE)], request_timeout_s)
        if not isinstance(made, NodeExistsError):
            self.expect_value(made)

    def missing_record(self) -> list[Any]:
        """Ask for the record, if it is not known."""
        return [] if self.record is not None else [self.ask_record()]

    def ask_record(self) -> Any:
        """Ask for the record, whose change is told from then on; what comes of it is for `heard_record`."""
        asked = self.client.get_async(self.layout.source, watch=self.on_record)
        # Taken in by the client's thread: in any other, it might be taken in after its change was told.
        asked.rawlink(self._on_record_read)
        return asked

    def heard_record(self, found: Any) -> SourceRecord:
        """Return the record that was read; SchemaError if there is none."""
        if isinstance(found, NoNodeError):
            raise not_installed(self.place.url)
        value, stat = self.expect_value(found)
        return record_in(value, stat, self.place.url)

    def _on_record_read(self, done: Any) -> None:
        if done.successful():
            value, stat = done.value
            with suppress(SchemaError):
                self.record = record_in(value, stat, self.place.url)

    def expect_value(self, found: Any) -> Any:
        """Return one answer; raise it as what it means if it is an error."""
        with self._naming_errors:
            if isinstance(found, Exception):
                raise anew(found)
        return found

    def on_record(self, _: Any) -> None:
        """Hear that the record has changed, or that the connection has; called in the client's thread."""
        self.record = None

    # --- claims -------------------------------------------------------------------------------------------------------
    def enter(self, standing: ZooKeeperQueueEntry) -> None:
        """Take note of a claim whose node is about to be asked for."""
        with self.mutex:
            self.standing[standing.claim] = standing
            self._earliest_ms = min(self._earliest_ms, standing.deadline_ms)

    def extend(self, standing: ZooKeeperQueueEntry, sending: Sending) -> None:
        """Keep a claim for its ttl from a request that was confirmed."""
        standing.deadline_ms = sending.sent_ms + standing.ttl_ms

    def create(self, standing: ZooKeeperQueueEntry, value: bytes) -> Any:
        """Ask for a claim's node; its reply, whenever it comes, is taken in before anybody else sees it."""
        standing.was_asked_for = True
        path = f"{standing.queue_path}/{node_prefix(standing.claim)}"
        result = self.client.create_async(path, value, ephemeral=True, sequence=True, include_data=True)
        result.rawlink(lambda done: self._on_created(standing, done))
        return result

    def _on_created(self, standing: ZooKeeperQueueEntry, done: Any) -> None:
        if not done.successful():
            return
        path, stat = done.value
        with self.mutex:
            standing.path, standing.zxid = path, stat.czxid
            is_forgotten = standing.over is not None
        if is_forgotten:
            self.remove_later(standing)

    def watch(self, standing: ZooKeeperQueueEntry) -> Any:
        """Ask for a claim's node, whose deletion is told from then on; to be used where requests are held back."""
        asked = self.client.exists_async(standing.path, watch=standing.on_event)
        # Taken in by the client's thread: in any other, it might be taken in after a change was told.
        asked.rawlink(lambda done: self._on_watched(standing, done))
        return asked

    def _on_watched(self, standing: ZooKeeperQueueEntry, done: Any) -> None:
        if done.successful():
            standing.is_gone = standing.is_gone or done.value is None
            standing.watched_over = self._connection

    def overdue(self) -> list[ZooKeeperQueueEntry]:
        """Return the claims that nobody has renewed for their ttl; they are over from now on."""
        now_ms = boottime_ms()
        if now_ms < self._earliest_ms:
            return []
        with self.mutex:
            late = [one for one in self.standing.values() if one.over is None and one.deadline_ms <= now_ms]
            running = (one.deadline_ms for one in self.standing.values() if one.deadline_ms > now_ms)
            self._earliest_ms = min(running, default=MAX_MS)
        for one in late:
            self.end(one, "it expired before it was renewed")
        return late

    def end(self, standing: ZooKeeperQueueEntry, reason: str) -> None:
        """Take note that a claim is over; its node is still to be removed."""
        with self.mutex:
            standing.over = standing.over or reason
            self._ended.remember(standing.claim, boottime_us(), reason)
        self.client.forget_watcher(standing.predecessor, standing.on_event)
        standing.wake()

    def remove(self, ended: Iterable[ZooKeeperQueueEntry], request_timeout_s: float) -> bool:
        """Remove the nodes of claims that are over; return whether one was there. Raises if that is unknown."""
        self.wait_connected(request_timeout_s)
        gone = list(ended)
        for standing in gone:
            if standing.path is None:
                self.find(standing, request_timeout_s)
        with_nodes = [standing for standing in gone if standing.path is not None]
        with self.client:
            asked = [self.client.delete_async(standing.path) for standing in with_nodes]
        found = self.answers(asked, request_timeout_s)
        for one in found:
            if not isinstance(one, NoNodeError):
                self.expect_value(one)
        for standing in gone:
            self.strike_out(standing)
        return any(one is True for one in found)

    def find(self, standing: ZooKeeperQueueEntry, request_timeout_s: float) -> None:
        """Learn whether a claim's node was made by a request whose reply never came."""
        client = self.client
        asked = [client.sync_async(standing.queue_path), client.get_children_async(standing.queue_path)]
        _, children = self.answers(asked, request_timeout_s)
        if isinstance(children, NoNodeError):
            return
        name = _named(self.expect_value(children), standing)
        if name is None:
            return
        path = f"{standing.queue_path}/{name}"
        (stat,) = self.expect([client.exists_async(path)], request_timeout_s)
        if stat is not None:
            standing.path, standing.zxid = path, stat.czxid

    def strike_out(self, standing: ZooKeeperQueueEntry) -> None:
        """Forget a claim whose node is known to be gone."""
        with self.mutex:
            self.standing.pop(standing.claim, None)

    # --- the client's own thread --------------------------------------------------------------------------------------
    def _on_state(self, state: str) -> None:
        self._connection += 1
        if state == KazooState.CONNECTED:
            self._suspended_ms = None
            # Held back, since this is the thread that would have to take each, and the pipe to it is short.
            with self.client:
                for standing in self._over():
                    self._find_later(standing)
        else:
            self.record = None
            self._suspended_ms = self._suspended_ms or boottime_ms()
            if state == KazooState.LOST:
                self._on_lost()

    def _over(self) -> list[ZooKeeperQueueEntry]:
        with self.mutex:
            return [standing for standing in self.standing.values() if standing.over is not None]

    def _on_lost(self) -> None:
        with self.mutex:
            lost = list(self.standing.values())
            self.standing.clear()
        for standing in lost:
            self.end(standing, "its ZooKeeper session ended")

    def _find_later(self, standing: ZooKeeperQueueEntry) -> None:
        """Look for the node of a claim that is over, and remove it, without waiting for either."""
        if standing.path is not None:
            self.remove_later(standing)
            return
        self.client.sync_async(standing.queue_path)
        self.client.get_children_async(standing.queue_path).rawlink(lambda done: self._on_found(standing, done))

    def _on_found(self, standing: ZooKeeperQueueEntry, done: Any) -> None:
        if isinstance(done.exception, NoNodeError):
            self.strike_out(standing)
        elif done.successful():
            name = _named(done.value, standing)
            if name is None:
                self.strike_out(standing)
            else:
                standing.path = f"{standing.queue_path}/{name}"
                self.remove_later(standing)

    def remove_later(self, standing: ZooKeeperQueueEntry) -> None:
        """Remove the node of a claim that is over, without waiting for it."""
        self.client.delete_async(standing.path).rawlink(lambda done: self._on_removed(standing, done))

    def _on_removed(self, standing: ZooKeeperQueueEntry, done: Any) -> None:
        if done.successful() or isinstance(done.exception, NoNodeError):
            self.strike_out(standing)

    # --- its end ------------------------------------------------------------------------------------------------------
    def is_usable(self) -> bool:
        """Tell whether it has, or may get, a connection again."""
        if not self.client.is_running():
            return False
        since_ms = self._suspended_ms
        if since_ms is None or len(self._over()) < len(self.standing):
            return True
        return boottime_ms() - since_ms < UNREACHABLE_TTLS * self.ttl_ms

    def close(self) -> None:
        """End the session at once, and with it every claim; never raises."""
        FORKS.close(self.client)


def _named(children: Iterable[str], standing: ZooKeeperQueueEntry) -> str | None:
    prefix = node_prefix(standing.claim)
    return next((name for name in children if name.startswith(prefix)), None)
