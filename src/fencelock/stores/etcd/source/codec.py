"""Acquire, Poll and Release in etcd: the operations of each request, for threads and loops alike.

A queue entry is a key. The entry that was created first holds the lock, and the revision of its creation is the token
(T1: minted at enqueue, which is right because the queue is strictly first in, first out).

Promise: an acquire is one transaction. It checks that the history is unchanged and that the claim is not refused,
creates the queue entry, and tells whether the entry is alone. A repeated request finds what it did before. A release is
one transaction too, and records for the next waiter that its predecessor held the lock, so a hand-over costs the same
however many wait. A claim that a request under way may still enqueue is refused by name when it ends (H4).
Never: a token taken from the revision of an answer whose transaction did not create the entry.
"""

from typing import Any

from fencelock.clock import boottime_ms, boottime_us
from fencelock.errors import SourceError, SourceUnavailableError
from fencelock.model import MAX_TOKEN
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import TXN
from fencelock.stores.etcd.connection.errors import LeaseGoneError, was_answered
from fencelock.stores.etcd.source.cluster_state import ClusterState, EtcdCall, Operations
from fencelock.stores.etcd.source.layout import EtcdLayout, EtcdRecord, decode_break_reason
from fencelock.stores.etcd.source.session import (
    BEATS_PER_TTL,
    DELETED,
    EXPIRED,
    LOST_SESSION,
    NEW_EPOCH,
    RELEASED,
    EtcdQueueEntry,
    EtcdSession,
)

MAX_ROUNDS = 5
"""How often an acquire starts again because the source's history or its own session has ended meanwhile."""
MAX_WAIT_MS = 10_000
UNWATCHED_WAIT_MS = 250
"""How often a waiter polls while no watch tells it of its turn, because the watcher does not run."""


# --- acquire ----------------------------------------------------------------------------------------------------------
def acquire(state: ClusterState, request: ask.Acquire) -> Operations:
    """Grant or queue a claim, which may have been requested before."""
    entry = state.entries.get(request.claim)
    if entry is None:
        if state.ended.is_over(request.claim, request.born_us):
            return ask.ClaimEnded()
        entry = state.entries[request.claim] = EtcdQueueEntry(request.lock, request.claim, request.ttl_ms)
    for _ in range(MAX_ROUNDS):
        if entry.is_over:
            return ask.ClaimEnded()
        if entry.revision:
            return (yield from _check_position(state, entry))
        record = yield from state.known_record()
        session = yield from state.open_session(request.ttl_ms)
        if session.is_lost:
            continue
        if entry.session not in (None, session) and entry.is_in_doubt:
            state.end(entry, LOST_SESSION)
            return ask.ClaimEnded()
        reply = yield from _enqueue(state, entry, session, request, record)
        if reply is not None:
            return reply
    raise SourceUnavailableError(f"{state.url}: the source or the session changed {MAX_ROUNDS} times: try again")


def _enqueue(
    state: ClusterState, entry: EtcdQueueEntry, session: EtcdSession, request: ask.Acquire, record: EtcdRecord
) -> Operations:
    """Create the claim's queue entry; return the reply, or None if the caller has to try again."""
    # Before the entry gets a session: `end_overdue`, in another thread, ends entries that have a session and an old
    # deadline.
    entry.extend(boottime_ms())
    state.assign_key(entry, session, request.holder)
    # Counted before `is_over` is read. A release sets `is_over` first and reads the count afterwards: so either the
    # release is seen here, or the release sees this request and refuses the claim by name.
    entry.sent += 1
    if entry.is_over:
        entry.answered += 1
        return ask.ClaimEnded()
    before = state.highest
    try:
        answer = yield from state.execute_with_keepalive(_enqueue_txn(state.layout, entry, request, record), session)
    except LeaseGoneError:
        entry.answered += 1
        session.is_lost = True
        return None
    except SourceError as error:
        # Any other error leaves the request in doubt: it may create the entry after the claim has ended.
        entry.answered += error.definite or was_answered(error)
        raise
    entry.answered += 1
    if not answer.succeeded:
        return _decode_refusal(state, entry, record, answer)
    state.check_minted(answer.header, before)
    if session.is_lost:
        return None
    entry.revision = answer.header.revision
    # Counted in the transaction that created the entry: no other claim was queued before it.
    is_alone = answer.responses[2].response_range.count == 1
    return _granted(entry, record) if is_alone else _queued(state, entry)


def _enqueue_txn(layout: EtcdLayout, entry: EtcdQueueEntry, request: ask.Acquire, record: EtcdRecord) -> Any:
    """Return the transaction that creates the queue entry if nothing speaks against it."""
    assert entry.session is not None
    queue, refusal = layout.queue(request.lock), layout.refusal(request.claim)
    conditions = [
        wire.was_modified(layout.record, record.revision),
        wire.is_absent(refusal),
        wire.is_absent(entry.key),
    ]
    if not request.may_wait:
        conditions.append(wire.is_empty(queue))
    creation = [
        wire.put(entry.key, entry.value, entry.session.lease),
        wire.put(layout.lock(request.lock), b""),
        wire.count_prefix(queue),
    ]
    return wire.txn(conditions, creation, [wire.get(layout.record), wire.get(entry.key), wire.get(refusal)])


def _decode_refusal(state: ClusterState, entry: EtcdQueueEntry, record: EtcdRecord, answer: Any) -> ask.SourceReply:
    """Return why no queue entry was created; None if it exists already, or the caller has to try again."""
    known, own, refusal = (response.response_range.kvs for response in answer.responses)
    if refusal:
        state.end(entry, RELEASED)
        return ask.ClaimEnded()
    # An earlier request created the entry, and its reply was lost: the token is the revision of that request.
    if own and own[0].value == entry.value:
        entry.revision = own[0].create_revision
        return None
    if not known or known[0].mod_revision != record.revision:
        state.record = None
        return None
    # A request in doubt may still create the entry, so it stays known: its release then refuses the claim by name.
    if not entry.is_in_doubt:
        state.discard(entry)
    return ask.Busy()


def _granted(entry: EtcdQueueEntry, record: EtcdRecord) -> ask.Granted:
    """Return the grant of a claim that is first in its queue."""
    token = record.token(entry.revision)
    if token > MAX_TOKEN:
        raise SourceError(f"lock {entry.lock!r}: no token is left in this source: make a new one")
    entry.is_granted = True
    return ask.Granted(token, entry.remaining_ms(), record.source_id, record.history_id)


def _queued(state: ClusterState, entry: EtcdQueueEntry) -> ask.Queued:
    longest_ms = MAX_WAIT_MS if state.watcher.is_running else UNWATCHED_WAIT_MS
    return ask.Queued(min(entry.ttl_ms // BEATS_PER_TTL, longest_ms))


# --- wait -------------------------------------------------------------------------------------------------------------
def poll(state: ClusterState, request: ask.Poll) -> Operations:
    """Grant a claim that is in a queue, if it is the first; its entry stays either way."""
    entry = state.entries.get(request.claim)
    if entry is None or not entry.revision or entry.is_over:
        return ask.ClaimEnded()
    return (yield from _check_position(state, entry))


def _check_position(state: ClusterState, entry: EtcdQueueEntry) -> Operations:
    """Read the position of a claim in its queue."""
    sent_ms = boottime_ms()
    if entry.session is None or entry.session.is_lost or entry.deadline_ms < sent_ms:
        return (yield from _end_claim(state, entry, EXPIRED))
    is_notified = entry.wakeup is None or state.watcher.is_watching(entry.watch_id)
    # As long as the known predecessor exists, this claim is not the first: one comparison suffices, and no range is
    # read.
    if entry.predecessor is not None and is_notified:
        answer = yield from state.execute_with_keepalive(_unchanged_txn(state, entry), entry.session)
        if answer.succeeded:
            return (yield from _decode_position(state, entry, answer, is_first=False, sent_ms=sent_ms))
    answer = yield from state.execute_with_keepalive(_predecessor_txn(state, entry), entry.session)
    # The first range is there only if the predecessor was not known to have held the lock.
    predecessor = [] if answer.succeeded else answer.responses[3].response_range.kvs
    if predecessor:
        _watch_predecessor(state, entry, predecessor[0], answer.header.revision)
    return (yield from _decode_position(state, entry, answer, is_first=not predecessor, sent_ms=sent_ms))


def _common_reads(state: ClusterState, entry: EtcdQueueEntry) -> list[Any]:
    """Return the reads that every check of a position needs: the record, the last break, the claim's own key."""
    return [wire.get(state.layout.record), wire.get(state.layout.last_break(entry.lock)), wire.get(entry.key)]


def _unchanged_txn(state: ClusterState, entry: EtcdQueueEntry) -> Any:
    """Return the transaction that succeeds if the predecessor still exists."""
    assert entry.predecessor is not None
    reads = _common_reads(state, entry)
    return wire.txn([wire.was_created(*entry.predecessor)], reads, reads)


def _predecessor_txn(state: ClusterState, entry: EtcdQueueEntry) -> Any:
    """Return the transaction that reads the queue entry directly before the claim's.

    etcd reads the whole queue for that. So the transaction does not ask if the former predecessor has recorded that it
    held the lock: then this claim is the first.
    """
    reads = _common_reads(state, entry)
    newest = wire.get_newest(state.layout.queue(entry.lock), created_by=entry.revision - 1)
    if entry.predecessor is None:
        # This comparison never holds, because every source has a record: the second branch always runs.
        return wire.txn([wire.is_absent(state.layout.record)], reads, [*reads, newest])
    _, revision = entry.predecessor
    return wire.txn([wire.has_value(state.layout.last_release(entry.lock), b"%d" % revision)], reads, [*reads, newest])


def _watch_predecessor(state: ClusterState, entry: EtcdQueueEntry, predecessor: Any, revision: int) -> None:
    """Watch the queue entry directly before a waiter's, if the waiter sleeps."""
    was_predecessor, entry.predecessor = entry.predecessor, (predecessor.key, predecessor.create_revision)
    if entry.wakeup is None or (
        was_predecessor == entry.predecessor and state.watcher.has_seen(entry.watch_id, revision)
    ):
        return
    state.watch(entry, predecessor.key, revision + 1, entry.wake_waiter, is_urgent=True)


def _decode_position(
    state: ClusterState, entry: EtcdQueueEntry, answer: Any, *, is_first: bool, sent_ms: int
) -> Operations:
    """Return the reply for a claim whose position was read."""
    known, last_break, own = (response.response_range.kvs for response in answer.responses[:3])
    record = state.record
    if not own or own[0].create_revision != entry.revision:
        return (yield from _end_claim(state, entry, DELETED))
    if record is None or not known or known[0].mod_revision != record.revision:
        record, _ = yield from state.read_record()
    if entry.revision < record.revision:
        return (yield from _end_claim(state, entry, NEW_EPOCH))
    if last_break and entry.revision < last_break[0].mod_revision:
        return (yield from _end_claim(state, entry, decode_break_reason(last_break[0])))
    assert entry.session is not None
    # Checked after the answers: the keepalive that was sent along may have lost the session.
    if entry.session.is_lost:
        return (yield from _end_claim(state, entry, LOST_SESSION))
    if not entry.is_granted:
        entry.extend(sent_ms)
    return _granted(entry, record) if is_first else _queued(state, entry)


def _end_claim(state: ClusterState, entry: EtcdQueueEntry, reason: str) -> Operations:
    """End a claim, and delete its queue entry if it still exists."""
    yield from state.delete_entries([entry])
    state.end(entry, reason)
    return ask.ClaimEnded()


# --- release ----------------------------------------------------------------------------------------------------------
def release(state: ClusterState, request: ask.Release) -> Operations:
    """End a claim for good. A claim that this process never requested has no queue entry."""
    entry = state.entries.get(request.claim)
    if entry is None or entry.lock != request.lock:
        state.ended.remember(request.claim, boottime_us(), RELEASED)
        return ask.Released(was_held=False)
    is_repeated = entry.is_over
    # First, for the same reason as in `_enqueue`: a request to enqueue that starts now sees it.
    entry.is_over = True
    was_held = False
    if entry.session is not None and not entry.session.is_lost:
        more = []
        if entry.is_granted:
            more = [wire.get(state.layout.record)]
            # Not in a repetition: etcd may have refused the first try for lack of room, and a deletion needs none. The
            # next waiter then reads the queue.
            if not is_repeated:
                more.append(wire.put(state.layout.last_release(entry.lock), b"%d" % entry.revision))
        try:
            # Not by `state.execute`: whatever has become of the source, a claim may delete its own entry.
            answer = yield EtcdCall(TXN, state.delete_entry(entry, *more))
        except LeaseGoneError:
            entry.session.is_lost = True
        else:
            was_held = entry.is_granted and answer.succeeded and not _is_of_older_epoch(entry, answer)
            state.highest = max(state.highest, answer.header.revision)
    state.end(entry, RELEASED)
    return ask.Released(was_held)


def _is_of_older_epoch(entry: EtcdQueueEntry, answer: Any) -> bool:
    """Return whether the epoch was raised over an entry that a release found, before its raiser deleted it."""
    _, record, *_ = answer.responses
    return any(entry.revision < kv.mod_revision for kv in record.response_range.kvs)
