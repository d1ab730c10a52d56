"""Take a place in a lock's queue, and learn whose turn it is.

Promise: an uncontended acquire waits for one round trip: the node is made and the queue is read behind it, on one
connection, whose order ZooKeeper keeps. A waiter watches its predecessor's node, its own too once it is next, and no
other. Whoever is next is granted the lock by what it is told, without a question, as long as its session surely lives:
`docs/decisions/zookeeper-queue.md` says why that suffices. A claim whose reply was lost finds its own node instead of
making another (CURATOR-604); one that is over is not granted.
Never: a claim granted under a history that is not the record's at that transaction: the change of the record is told
before the reply to whatever came after it.
"""

from typing import Any

from kazoo.exceptions import NoNodeError

from fencelock.clock import boottime_ms
from fencelock.errors import SourceError, SourceUnavailableError
from fencelock.protocol import source_requests as ask
from fencelock.stores.source_clock import SourceIdentity
from fencelock.stores.zookeeper.source.layout import ZooKeeperLayout, check_numbers, contenders, node_value
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.record import SourceRecord
from fencelock.stores.zookeeper.source.session import Sending, ZooKeeperSession
from fencelock.stores.zookeeper.source.sessions import ZooKeeperSessions

MAX_TRIES = 20
"""How often a request begins anew because others change what it looks at, before it gives up."""
MAX_WAITERS = 10_000
LOOKS_PER_TTL = 3
"""A waiter looks so often within its ttl, even when it is told nothing."""


class ZooKeeperQueue:
    """Answers Acquire and Poll for one connection."""

    def __init__(
        self, sessions: ZooKeeperSessions, identity: SourceIdentity, layout: ZooKeeperLayout, request_timeout_s: float
    ) -> None:
        self._sessions = sessions
        self._identity = identity
        self._layout = layout
        self._patience_s = request_timeout_s

    # --- requests -----------------------------------------------------------------------------------------------------
    def acquire(self, request: ask.Acquire) -> ask.SourceReply:
        """Grant the lock to a claim, or queue it if it may wait."""
        found = self._sessions.of_claim(request.claim)
        if found is not None:
            session, standing = found
            session.wait_connected(self._patience_s)
        else:
            session = self._sessions.for_ttl(request.ttl_ms, self._patience_s)
            path = self._layout.lock(request.lock)
            standing = ZooKeeperQueueEntry(
                request.lock, request.claim, path, request.ttl_ms, boottime_ms() + request.ttl_ms
            )
            session.enter(standing)
            if self._sessions.ended.is_over(request.claim, request.born_us):
                session.end(standing, "it was over before it arrived")
                return self._ended(session, standing)
        reply = self._take_place(session, standing, request)
        if isinstance(reply, ask.Queued) and not request.may_wait:
            session.end(standing, "the lock was busy")
            session.remove([standing], self._patience_s)
            return ask.Busy()
        return reply

    def poll(self, request: ask.Poll) -> ask.SourceReply:
        """Grant the lock to a claim that is in the queue, if its turn has come."""
        found = self._sessions.of_claim(request.claim)
        if found is None:
            return ask.ClaimEnded()
        session, standing = found
        session.wait_connected(self._patience_s)
        return self._look(session, standing)

    # --- a place ------------------------------------------------------------------------------------------------------
    def _take_place(
        self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry, request: ask.Acquire
    ) -> ask.SourceReply:
        """Make the claim's node unless it is there already, and tell whose turn it is."""
        if standing.path is None and standing.was_asked_for:
            session.find(standing, self._patience_s)
        if standing.path is not None:
            return self._look(session, standing)
        value = node_value(request.holder, request.ttl_ms)
        for _ in range(MAX_TRIES):
            if standing.over is not None:
                return self._ended(session, standing)
            reply = self._make(session, standing, value)
            if reply is not None:
                return reply
            session.make_queue(standing.queue_path, self._patience_s)
        raise SourceUnavailableError(f"lock {standing.lock!r}: its queue was removed {MAX_TRIES} times: try again")

    def _make(self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry, value: bytes) -> ask.SourceReply | None:
        """Make the node and read the queue in one go; None if the queue itself is not there."""
        highest, sending = self._identity.highest_token, session.sending()
        client = session.client
        with client:
            asked = [*session.missing_record(), session.create(standing, value)]
            asked.append(client.get_children_async(standing.queue_path))
        *record, made, children = session.answers(asked, self._patience_s)
        if record:
            self._check_record(session, record[0])
        if isinstance(made, NoNodeError):
            return None
        session.expect_value(made)
        session.confirm(sending)
        if standing.over is not None:
            return self._ended(session, standing)
        session.extend(standing, sending)
        if isinstance(children, NoNodeError):
            return self._vanished(session, standing)
        self._check_token(session, standing, highest)
        return self._turn(session, standing, session.expect_value(children), sending)

    def _check_record(self, session: ZooKeeperSession, found: object) -> SourceRecord:
        before = self._identity.seen
        record = session.heard_record(found)
        self._identity.check(record.seen, before)
        return record

    def _check_token(self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry, highest: int) -> None:
        """Refuse a node that is older than one that was made before it was asked for."""
        record = session.record
        if record is None or standing.zxid < record.zxid:
            return  # It has just changed: `_turn` sees to that.
        try:
            self._identity.check_token(record.token(standing.zxid), highest)
        except SourceError:
            self._leave(session, standing, "the source went back")
            raise

    # --- whose turn it is ---------------------------------------------------------------------------------------------
    def _look(self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry) -> ask.SourceReply:
        """Tell whether the turn of a claim whose node was made has come; what it waits for is watched from now on."""
        for _ in range(MAX_TRIES):
            if standing.over is not None or standing.path is None:
                return self._ended(session, standing)
            sending = session.sending()
            reply = self._told(session, standing, sending) or self._ask(session, standing, sending)
            if reply is not None:
                return reply
        raise SourceUnavailableError(f"lock {standing.lock!r}: its queue changed {MAX_TRIES} times: try again")

    def _told(
        self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry, sending: Sending
    ) -> ask.SourceReply | None:
        """Decide by what ZooKeeper has told, without asking; None if that does not suffice."""
        # Looked at first: what befell its own node or the record before its turn came has been noted by then.
        is_first = standing.is_next and standing.predecessor is None
        if standing.is_gone:
            return self._vanished(session, standing)
        record = session.record
        is_told = is_first and standing.watched_over == sending.connection and session.is_sure(sending)
        return self._granted(session, standing, record, sending) if is_told and record is not None else None

    def _ask(
        self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry, sending: Sending
    ) -> ask.SourceReply | None:
        """Look at the predecessor's node or at the queue; None if there is more to be looked at."""
        asked = self._questions(session, standing, sending)
        found = dict(zip(asked, session.answers(list(asked.values()), self._patience_s), strict=True))
        if "sync" in found:
            session.expect_value(found["sync"])
            session.confirm(sending)
        if "record" in found:
            self._check_record(session, found["record"])
        if "queue" in found:
            return self._read(session, standing, found["queue"], sending)
        return self._heard(session, standing, found, sending)

    def _questions(self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry, sending: Sending) -> dict[str, Any]:
        client, asked = session.client, dict[str, Any]()
        with client:
            if not session.is_sure(sending):
                asked["sync"] = client.sync_async(standing.queue_path)
            if session.record is None:
                asked["record"] = session.ask_record()
            if standing.predecessor is None:
                asked["queue"] = client.get_children_async(standing.queue_path)
                return asked
            if standing.is_next or not standing.was_seen:
                asked["own"] = session.watch(standing)
            standing.was_seen = False
            asked["predecessor"] = client.exists_async(standing.predecessor, watch=standing.on_event)
        return asked

    def _read(
        self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry, queue: object, sending: Sending
    ) -> ask.SourceReply | None:
        if isinstance(queue, NoNodeError):
            return self._vanished(session, standing)
        reply = self._turn(session, standing, session.expect_value(queue), sending)
        # Its predecessor is to be watched before the claim may sleep.
        return None if isinstance(reply, ask.Queued) else reply

    def _heard(
        self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry, found: dict[str, Any], sending: Sending
    ) -> ask.SourceReply | None:
        """Take in what was found of its own node and of its predecessor's."""
        own, other = session.expect_value(found.get("own")), session.expect_value(found["predecessor"])
        if standing.is_gone:
            return self._vanished(session, standing)
        if other is None:
            standing.predecessor = None
            return None
        if standing.is_next and own.ephemeralOwner == other.ephemeralOwner:
            # The end of their session would remove both in one step, in whichever order it tells that.
            standing.is_next = False
        session.extend(standing, sending)
        return self._queued(standing)

    def _turn(
        self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry, children: list[str], sending: Sending
    ) -> ask.SourceReply:
        """Decide by the queue as it is read: the first one holds the lock."""
        record = session.record
        if record is None:
            record = self._check_record(session, *session.answers([session.ask_record()], self._patience_s))
        if standing.zxid < record.zxid:
            return self._leave(session, standing, record.why_ended())
        queue = contenders(children)
        own = (standing.path or "").rpartition("/")[2]
        place = next((number for number, one in enumerate(queue) if one.name == own), None)
        if place is None:
            return self._vanished(session, standing)
        try:
            check_numbers(standing.lock, queue)
            _check_length(standing.lock, place)
        except SourceError:
            self._leave(session, standing, "it was refused a place")
            raise
        if place:
            standing.was_seen, standing.is_next = True, place == 1
            standing.predecessor = f"{standing.queue_path}/{queue[place - 1].name}"
            return self._queued(standing)
        return self._granted(session, standing, record, sending)

    def _granted(
        self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry, record: SourceRecord, sending: Sending
    ) -> ask.SourceReply:
        if standing.zxid < record.zxid:
            return self._leave(session, standing, record.why_ended())
        if not standing.is_granted:
            session.extend(standing, sending)
            standing.is_granted = True
        remaining_ms = max(0, min(session.lives_until_ms, standing.deadline_ms) - sending.sent_ms)
        return ask.Granted(record.token(standing.zxid), remaining_ms, record.source_id, record.history_id)

    def _queued(self, standing: ZooKeeperQueueEntry) -> ask.Queued:
        return ask.Queued(standing.ttl_ms // LOOKS_PER_TTL)

    # --- ends ---------------------------------------------------------------------------------------------------------
    def _vanished(self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry) -> ask.ClaimEnded:
        """End a claim whose node somebody has removed, or whose session has ended."""
        session.end(standing, "its node was removed")
        session.strike_out(standing)
        return ask.ClaimEnded()

    def _leave(self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry, reason: str) -> ask.ClaimEnded:
        session.end(standing, reason)
        return self._ended(session, standing)

    def _ended(self, session: ZooKeeperSession, standing: ZooKeeperQueueEntry) -> ask.ClaimEnded:
        """Remove what a claim that is over may have left."""
        session.remove([standing], self._patience_s)
        return ask.ClaimEnded()


def _check_length(lock: str, place: int) -> None:
    if place > MAX_WAITERS:
        raise SourceError(f"lock {lock!r} has {MAX_WAITERS} waiters, the most that it may have: try again later")
