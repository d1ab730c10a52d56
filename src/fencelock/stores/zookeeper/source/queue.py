"""Enter a lock's queue, learn whose turn it is, and leave the queue: Acquire, Poll and Release.

Promise: an uncontended acquire waits for one round trip: it sends the creation of the node and the read of the queue
together, on one connection, whose order ZooKeeper keeps. A waiter watches its predecessor's node, its own node too once
it is second or polls, and no other. The second in the queue is granted the lock by what its watches tell, without a
question, as long as its session surely lives: `docs/decisions/zookeeper-queue.md` says why that suffices. A claim whose
reply was lost finds its own node instead of making another (CURATOR-604); a claim that is over is not granted.
Never: a claim granted under a history that was not the record's at that transaction: ZooKeeper tells the change of the
record before the reply to any later request.
"""

from typing import Any

from kazoo.exceptions import NoNodeError

from fencelock.clock import boottime_ms, boottime_us
from fencelock.errors import SourceError, SourceUnavailableError
from fencelock.protocol import source_requests as ask
from fencelock.stores.source_clock import SourceIdentity
from fencelock.stores.zookeeper.source.layout import (
    SourceRecord,
    ZooKeeperLayout,
    check_numbers,
    encode_node,
    parse_queue,
)
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.session import RequestStart, ZooKeeperSession
from fencelock.stores.zookeeper.source.sessions import ZooKeeperSessions

MAX_TRIES = 20
"""How often a request starts again because others change what it reads, before it gives up."""
MAX_WAITERS = 10_000
POLLS_PER_TTL = 3
"""How often a waiter polls within its ttl, even if nothing notifies it."""
RELEASED = "it was released"


class ZooKeeperQueue:
    """Answers Acquire, Poll and Release for one connection."""

    def __init__(
        self, sessions: ZooKeeperSessions, identity: SourceIdentity, layout: ZooKeeperLayout, request_timeout_s: float
    ) -> None:
        self._sessions = sessions
        self._identity = identity
        self._layout = layout
        self._request_timeout_s = request_timeout_s

    # --- requests -----------------------------------------------------------------------------------------------------
    def acquire(self, request: ask.Acquire) -> ask.SourceReply:
        """Grant the lock to a claim, or queue it if it may wait."""
        found = self._sessions.find_claim(request.claim)
        if found is not None:
            session, entry = found
            session.wait_connected(self._request_timeout_s)
        else:
            session = self._sessions.for_ttl(request.ttl_ms, self._request_timeout_s, may_wait=request.may_wait)
            path = self._layout.lock(request.lock)
            entry = ZooKeeperQueueEntry(
                request.lock, request.claim, path, request.ttl_ms, boottime_ms() + request.ttl_ms
            )
            # Entered before `ended` is read, as `release` writes `ended` before it searches: one of the two threads
            # sees the other, so a claim that is released at this moment leaves no node behind (H4).
            session.enter(entry)
            if self._sessions.ended.is_over(request.claim, request.born_us):
                session.end(entry, "it was over before it arrived")
                return self._remove_ended(session, entry)
        reply = self._enqueue(session, entry, request)
        if isinstance(reply, ask.Queued) and not request.may_wait:
            session.end(entry, "the lock was busy")
            session.remove([entry], self._request_timeout_s)
            return ask.Busy()
        return reply

    def poll(self, request: ask.Poll) -> ask.SourceReply:
        """Grant the lock to a claim in the queue, if its turn has come."""
        found = self._sessions.find_claim(request.claim)
        if found is None:
            return ask.ClaimEnded()
        session, entry = found
        session.wait_connected(self._request_timeout_s)
        return self._check_position(session, entry)

    def release(self, request: ask.Release) -> ask.Released:
        """End a claim for good, and remove its node, which notifies the next waiter."""
        # Before the search: see `acquire`.
        self._sessions.ended.remember(request.claim, boottime_us(), RELEASED)
        found = self._sessions.find_claim(request.claim)
        if found is None:
            return ask.Released(was_held=False)
        session, entry = found
        was_held = entry.is_granted and entry.end_reason is None
        session.end(entry, RELEASED)
        was_there = session.remove([entry], self._request_timeout_s)
        # A node may outlive its epoch for a moment, until the raiser removes it.
        was_held = was_held and was_there and not self._is_of_older_epoch(session, entry)
        self._sessions.close_if_idle()
        return ask.Released(was_held)

    def _is_of_older_epoch(self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry) -> bool:
        # The watch of the record was told of a change before the reply to the removal, which came later.
        record = session.record
        if record is None:
            (found,) = session.answers([session.request_record()], self._request_timeout_s)
            record = session.decode_record(found)
        return entry.zxid < record.zxid

    # --- enter the queue ----------------------------------------------------------------------------------------------
    def _enqueue(self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry, request: ask.Acquire) -> ask.SourceReply:
        """Create the claim's node unless it exists, and decide whose turn it is."""
        if entry.path is None and entry.was_requested:
            # An earlier request may have created the node without its reply arriving.
            session.find(entry, self._request_timeout_s)
        if entry.path is not None:
            return self._check_position(session, entry)
        value = encode_node(request.holder, request.ttl_ms)
        for _ in range(MAX_TRIES):
            if entry.end_reason is not None:
                return self._remove_ended(session, entry)
            reply = self._create_entry(session, entry, value)
            if reply is not None:
                return reply
            # Only once it is missed: to look for it first would cost each acquire a round trip.
            session.ensure_queue(entry.queue_path, self._request_timeout_s)
        raise SourceUnavailableError(f"lock {entry.lock!r}: its queue was removed {MAX_TRIES} times: try again")

    def _create_entry(
        self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry, value: bytes
    ) -> ask.SourceReply | None:
        """Create the node and read the queue in one round trip; None if the queue's own node does not exist."""
        self._identity.note_token(session.last_token())
        # Both before the requests are sent: the reply is compared with what was known then.
        highest, start = self._identity.highest_token, session.request_start()
        client = session.client
        with client:
            # In one piece: ZooKeeper executes a connection's requests in order, so that the read contains the new node.
            requests = [*session.request_missing_record(), session.create(entry, value)]
            requests.append(client.get_children_async(entry.queue_path))
        *record, made, children = session.answers(requests, self._request_timeout_s)
        if record:
            self._check_record(session, record[0])
        if isinstance(made, NoNodeError):
            return None
        session.value_of(made)
        session.confirm(start)
        if entry.end_reason is not None:
            return self._remove_ended(session, entry)
        session.extend(entry, start)
        if isinstance(children, NoNodeError):
            return self._end_removed(session, entry)
        self._check_token(session, entry, highest)
        return self._decide(session, entry, session.value_of(children), start)

    def _check_record(self, session: ZooKeeperSession, found: object) -> SourceRecord:
        before = self._identity.seen
        record = session.decode_record(found)
        self._identity.check(record.seen, before)
        return record

    def _check_token(self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry, highest: int) -> None:
        """Raise SourceError if the node's token is not above all tokens known before it was requested."""
        record = session.record
        if record is None or entry.zxid < record.zxid:
            return  # The record has just changed: `_decide` handles that.
        try:
            self._identity.check_token(record.token(entry.zxid), highest)
        except SourceError:
            self._end_with(session, entry, "the source went back")
            raise

    # --- whose turn it is ---------------------------------------------------------------------------------------------
    def _check_position(self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry) -> ask.SourceReply:
        """Decide whether the turn of a claim in the queue has come, and watch what it waits for."""
        for _ in range(MAX_TRIES):
            if entry.end_reason is not None or entry.path is None:
                return self._remove_ended(session, entry)
            start = session.request_start()
            reply = self._decide_from_watches(session, entry, start) or self._query(session, entry, start)
            if reply is not None:
                return reply
        raise SourceUnavailableError(f"lock {entry.lock!r}: its queue changed {MAX_TRIES} times: try again")

    def _decide_from_watches(
        self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry, start: RequestStart
    ) -> ask.SourceReply | None:
        """Decide by what the watches have told, without a question; None if that does not suffice."""
        # The order of these reads matters. The client's thread notes events in ZooKeeper's order, so whatever happened
        # to the own node or to the record before the predecessor's deletion is noted by the time that this is read.
        is_first = entry.is_second and entry.predecessor is None
        if entry.is_gone:
            return self._end_removed(session, entry)
        record = session.record
        # The watch of the own node counts only over the present connection: a reconnection may have lost an event.
        is_watched = entry.watched_connection == start.connection
        if not (is_first and is_watched and session.is_surely_alive(start)) or record is None:
            return None
        return self._granted(session, entry, record, start)

    def _query(
        self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry, start: RequestStart
    ) -> ask.SourceReply | None:
        """Read the predecessor's node, or the queue; None if more has to be read."""
        requests = self._send_queries(session, entry, start)
        answers = session.answers(list(requests.values()), self._request_timeout_s)
        found = dict(zip(requests, answers, strict=True))
        if "sync" in found:
            session.value_of(found["sync"])
            session.confirm(start)
        self._identity.note_token(session.last_token())
        if "record" in found:
            self._check_record(session, found["record"])
        if "queue" in found:
            return self._decide_from_queue(session, entry, found["queue"], start)
        return self._decide_from_nodes(session, entry, found, start)

    def _send_queries(
        self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry, start: RequestStart
    ) -> dict[str, Any]:
        client, requests = session.client, dict[str, Any]()
        with client:
            # First, so that the reads behind it are as new as the leader's state.
            if not session.is_surely_alive(start):
                requests["sync"] = client.sync_async(entry.queue_path)
            if session.record is None:
                requests["record"] = session.request_record()
            if entry.predecessor is None:
                requests["queue"] = client.get_children_async(entry.queue_path)
                return requests
            # A read of the queue has just shown the own node; otherwise it may be gone, so it is read and watched.
            if entry.is_second or not entry.is_in_last_queue:
                requests["own"] = session.watch(entry)
            entry.is_in_last_queue = False
            requests["predecessor"] = client.exists_async(entry.predecessor, watch=entry.on_event)
        return requests

    def _decide_from_queue(
        self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry, queue: object, start: RequestStart
    ) -> ask.SourceReply | None:
        if isinstance(queue, NoNodeError):
            return self._end_removed(session, entry)
        reply = self._decide(session, entry, session.value_of(queue), start)
        # The predecessor has to be watched before the claim may sleep: the caller asks again.
        return None if isinstance(reply, ask.Queued) else reply

    def _decide_from_nodes(
        self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry, found: dict[str, Any], start: RequestStart
    ) -> ask.SourceReply | None:
        """Decide by the claim's own node and its predecessor's."""
        own, other = session.value_of(found.get("own")), session.value_of(found["predecessor"])
        if entry.is_gone:
            return self._end_removed(session, entry)
        if other is None:
            entry.predecessor = None
            return None
        if entry.is_second and own.ephemeralOwner == other.ephemeralOwner:
            # The end of their common session would remove both nodes in one step and tell it in any order.
            entry.is_second = False
        session.extend(entry, start)
        return self._queued(entry)

    def _decide(
        self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry, children: list[str], start: RequestStart
    ) -> ask.SourceReply:
        """Decide by the queue as it was read: the first contender holds the lock."""
        record = session.record
        if record is None:
            record = self._check_record(session, *session.answers([session.request_record()], self._request_timeout_s))
        if entry.zxid < record.zxid:
            return self._end_with(session, entry, record.why_ended())
        queue = parse_queue(children)
        own = (entry.path or "").rpartition("/")[2]
        position = next((number for number, one in enumerate(queue) if one.name == own), None)
        if position is None:
            return self._end_removed(session, entry)
        try:
            check_numbers(entry.lock, queue)
            _check_length(entry.lock, position)
        except SourceError:
            self._end_with(session, entry, "it was refused a place")
            raise
        if position:
            entry.is_in_last_queue, entry.is_second = True, position == 1
            entry.predecessor = f"{entry.queue_path}/{queue[position - 1].name}"
            return self._queued(entry)
        return self._granted(session, entry, record, start)

    def _granted(
        self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry, record: SourceRecord, start: RequestStart
    ) -> ask.SourceReply:
        if entry.zxid < record.zxid:
            return self._end_with(session, entry, record.why_ended())
        if not entry.is_granted:
            session.extend(entry, start)
            entry.is_granted = True
        # Counted from when the request was sent, not from now: the flow adds it to the time at which it asked (H1).
        remaining_ms = max(0, min(session.lives_until_ms, entry.deadline_ms) - start.sent_ms)
        return ask.Granted(record.token(entry.zxid), remaining_ms, record.source_id, record.history_id)

    def _queued(self, entry: ZooKeeperQueueEntry) -> ask.Queued:
        return ask.Queued(entry.ttl_ms // POLLS_PER_TTL)

    # --- ends ---------------------------------------------------------------------------------------------------------
    def _end_removed(self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry) -> ask.ClaimEnded:
        """End a claim whose node somebody has removed, or whose session has ended."""
        session.end(entry, "its node was removed")
        session.discard(entry)
        return ask.ClaimEnded()

    def _end_with(self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry, reason: str) -> ask.ClaimEnded:
        session.end(entry, reason)
        return self._remove_ended(session, entry)

    def _remove_ended(self, session: ZooKeeperSession, entry: ZooKeeperQueueEntry) -> ask.ClaimEnded:
        """Remove what an ended claim may have left."""
        session.remove([entry], self._request_timeout_s)
        return ask.ClaimEnded()


def _check_length(lock: str, position: int) -> None:
    if position > MAX_WAITERS:
        raise SourceError(f"lock {lock!r} has {MAX_WAITERS} waiters, the most that it may have: try again later")
