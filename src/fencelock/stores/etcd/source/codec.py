"""How locks are acquired, waited for, kept and released in etcd: a talk for each request, for threads and loops alike.

A place in the queue is a key; who was created first holds the lock, and the revision of the creation is the token (T1:
minted with the place, and right because the queue is strictly first in, first out).

Promise: an acquire is one transaction: the history unchanged, the claim not refused, the place made, and whether it is
alone. A repeated request finds what it did before. A release is one transaction too, and leaves word for the next in
line that its predecessor held the lock, so that handing over costs the same however many wait. A claim that may still
be placed by a request under way is refused by name when it ends (H4).
Never: a token taken from the revision of an answer that did not make the place.
"""

from typing import Any

from fencelock.clock import boottime_ms, boottime_us
from fencelock.errors import SourceError, SourceUnavailableError
from fencelock.model import MAX_TOKEN
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.connection import operations as op
from fencelock.stores.etcd.connection.client import TXN
from fencelock.stores.etcd.connection.errors import LeaseGoneError
from fencelock.stores.etcd.source.cluster_state import EXPIRED, Call, ClusterState, Talk, batches
from fencelock.stores.etcd.source.layout import EtcdLayout, EtcdRecord, holder_of
from fencelock.stores.etcd.source.queue_entry import EtcdQueueEntry
from fencelock.stores.etcd.source.session import BEATS_PER_TTL, EtcdSession
from fencelock.stores.quorum.encoding import decode_object, shorten

MAX_ROUNDS = 5
"""How often an acquire begins anew because the source's history or its own session has ended meanwhile."""
MAX_WAIT_MS = 10_000
MAX_EXPLAINED = 50
"""Lost leases of one beat whose reasons are looked up; the others are told no more than that they are lost."""
RELEASED = "it was released"
_LOST_SESSION = "its session with etcd has ended"
_NEW_EPOCH = "the source's epoch was raised"
_DELETED = "its place in etcd was deleted"


# --- acquire ----------------------------------------------------------------------------------------------------------
def acquire(here: ClusterState, request: ask.Acquire) -> Talk:
    """Grant or queue a claim, which may have been asked for before."""
    standing = here.standing.get(request.claim)
    if standing is None:
        if here.ended.is_over(request.claim, request.born_us):
            return ask.ClaimEnded()
        standing = here.standing[request.claim] = EtcdQueueEntry(request.lock, request.claim, request.ttl_ms)
    for _ in range(MAX_ROUNDS):
        if standing.is_over:
            return ask.ClaimEnded()
        if standing.revision:
            return (yield from _look(here, standing))
        record = yield from here.known_record()
        session = yield from here.open_session(request.ttl_ms)
        if session.is_lost:
            continue
        if standing.session not in (None, session) and standing.is_in_doubt:
            here.end(standing, _LOST_SESSION)
            return ask.ClaimEnded()
        reply = yield from _place(here, standing, session, request, record)
        if reply is not None:
            return reply
    raise SourceUnavailableError(f"{here.url}: the source or the session changed {MAX_ROUNDS} times: try again")


def _place(
    here: ClusterState, standing: EtcdQueueEntry, session: EtcdSession, request: ask.Acquire, record: EtcdRecord
) -> Talk:
    """Make the claim's place in the queue; return the reply, or None if that is to be tried anew."""
    # Before it has a session: whoever ends the claims that nobody asks for looks at both.
    standing.keep(boottime_ms())
    here.settle(standing, session, request.holder)
    standing.sent += 1
    if standing.is_over:
        standing.answered += 1
        return ask.ClaimEnded()
    before = here.highest
    try:
        answer = yield from here.ask_and_keep(_placing(here.layout, standing, request, record), session)
    except LeaseGoneError:
        standing.answered += 1
        session.is_lost = True
        return None
    except SourceError as error:
        standing.answered += error.definite
        raise
    standing.answered += 1
    if not answer.succeeded:
        return _hear_refusal(here, standing, record, answer)
    here.note_minted(answer.header, before)
    if session.is_lost:
        return None
    standing.revision = answer.header.revision
    is_alone = answer.responses[2].response_range.count == 1
    return _granted(standing, record) if is_alone else _queued(standing)


def _placing(layout: EtcdLayout, standing: EtcdQueueEntry, request: ask.Acquire, record: EtcdRecord) -> Any:
    assert standing.session is not None
    queue, refused = layout.queue(request.lock), layout.refused(request.claim)
    conditions = [op.was_modified(layout.record, record.revision), op.is_absent(refused), op.is_absent(standing.key)]
    if not request.may_wait:
        conditions.append(op.is_empty(queue))
    place = [
        op.put(standing.key, standing.value, standing.session.lease),
        op.put(layout.lock(request.lock), b""),
        op.count_prefix(queue),
    ]
    return op.txn(conditions, place, [op.get(layout.record), op.get(standing.key), op.get(refused)])


def _hear_refusal(here: ClusterState, standing: EtcdQueueEntry, record: EtcdRecord, answer: Any) -> ask.SourceReply:
    """Return why no place was made; None if it is there already, or is to be tried for anew."""
    known, own, refused = (response.response_range.kvs for response in answer.responses)
    if refused:
        here.end(standing, RELEASED)
        return ask.ClaimEnded()
    if own and own[0].value == standing.value:
        standing.revision = own[0].create_revision
        return None
    if not known or known[0].mod_revision != record.revision:
        here.record = None
        return None
    if not standing.is_in_doubt:
        here.forget(standing)
    return ask.Busy()


def _granted(standing: EtcdQueueEntry, record: EtcdRecord) -> ask.Granted:
    token = record.token(standing.revision)
    if token > MAX_TOKEN:
        raise SourceError(f"lock {standing.lock!r}: no token is left in this source: make a new one")
    standing.is_granted = True
    return ask.Granted(token, standing.remaining_ms(), record.source_id, record.history_id)


def _queued(standing: EtcdQueueEntry) -> ask.Queued:
    return ask.Queued(min(standing.ttl_ms // BEATS_PER_TTL, MAX_WAIT_MS))


# --- wait -------------------------------------------------------------------------------------------------------------
def poll(here: ClusterState, request: ask.Poll) -> Talk:
    """Grant a claim that has a place, if it is the first in its queue; its place is kept either way."""
    standing = here.standing.get(request.claim)
    if standing is None or not standing.revision or standing.is_over:
        return ask.ClaimEnded()
    return (yield from _look(here, standing))


def _look(here: ClusterState, standing: EtcdQueueEntry) -> Talk:
    """Look where a placed claim stands."""
    sent_ms = boottime_ms()
    if standing.session is None or standing.session.is_lost or standing.deadline_ms < sent_ms:
        return (yield from _drop(here, standing, EXPIRED))
    is_heard_of = standing.ear is None or here.watcher.is_watching(standing.watch_id)
    if standing.ahead is not None and is_heard_of:
        answer = yield from here.ask_and_keep(_still_behind(here, standing), standing.session)
        if answer.succeeded:
            return (yield from _hear_look(here, standing, answer, is_first=False, sent_ms=sent_ms))
    answer = yield from here.ask_and_keep(_who_is_ahead(here, standing), standing.session)
    # The first range is there only if the predecessor was not known to have held the lock.
    ahead = [] if answer.succeeded else answer.responses[3].response_range.kvs
    if ahead:
        _follow(here, standing, ahead[0], answer.header.revision)
    return (yield from _hear_look(here, standing, answer, is_first=not ahead, sent_ms=sent_ms))


def _facts(here: ClusterState, standing: EtcdQueueEntry) -> list[Any]:
    return [op.get(here.layout.record), op.get(here.layout.broken(standing.lock)), op.get(standing.key)]


def _still_behind(here: ClusterState, standing: EtcdQueueEntry) -> Any:
    assert standing.ahead is not None
    facts = _facts(here, standing)
    return op.txn([op.was_created(*standing.ahead)], facts, facts)


def _who_is_ahead(here: ClusterState, standing: EtcdQueueEntry) -> Any:
    """Ask for the last one that came before. etcd reads the whole queue for that, so it is not asked if the one who was
    next before has left word that it held the lock.
    """
    facts = _facts(here, standing)
    newest = op.get_newest(here.layout.queue(standing.lock), created_by=standing.revision - 1)
    if standing.ahead is None:
        # A comparison that never holds: every source has a record.
        return op.txn([op.is_absent(here.layout.record)], facts, [*facts, newest])
    _, revision = standing.ahead
    return op.txn([op.has_value(here.layout.passed(standing.lock), b"%d" % revision)], facts, [*facts, newest])


def _follow(here: ClusterState, standing: EtcdQueueEntry, ahead: Any, revision: int) -> None:
    """Watch the one that is next before a waiter, if it listens."""
    was_ahead, standing.ahead = standing.ahead, (ahead.key, ahead.create_revision)
    if standing.ear is None or (was_ahead == standing.ahead and here.watcher.has_seen(standing.watch_id, revision)):
        return
    here.watch(standing, ahead.key, revision + 1, standing.call, is_urgent=True)


def _hear_look(here: ClusterState, standing: EtcdQueueEntry, answer: Any, *, is_first: bool, sent_ms: int) -> Talk:
    known, broken, own = (response.response_range.kvs for response in answer.responses[:3])
    record = here.record
    if not own or own[0].create_revision != standing.revision:
        return (yield from _drop(here, standing, _DELETED))
    if record is None or not known or known[0].mod_revision != record.revision:
        record, _ = yield from here.read_record()
    if standing.revision < record.revision:
        return (yield from _drop(here, standing, _NEW_EPOCH))
    if broken and standing.revision < broken[0].mod_revision:
        return (yield from _drop(here, standing, _break_reason(broken[0])))
    assert standing.session is not None
    if standing.session.is_lost:
        return (yield from _drop(here, standing, _LOST_SESSION))
    if not standing.is_granted:
        standing.keep(sent_ms)
    return _granted(standing, record) if is_first else _queued(standing)


def _drop(here: ClusterState, standing: EtcdQueueEntry, reason: str) -> Talk:
    """End a claim, and take its place away if it is there still."""
    yield from here.clear([standing])
    here.end(standing, reason)
    return ask.ClaimEnded()


def _break_reason(kv: Any) -> str:
    said = decode_object(kv.value)
    return shorten(f"{said.get('who')} broke it: {said.get('reason')}")


# --- release ----------------------------------------------------------------------------------------------------------
def release(here: ClusterState, request: ask.Release) -> Talk:
    """End a claim for good. One that was never asked for here has no place: only this process knows it."""
    standing = here.standing.get(request.claim)
    if standing is None or standing.lock != request.lock:
        here.ended.remember(request.claim, boottime_us(), RELEASED)
        return ask.Released(was_held=False)
    standing.is_over = True
    was_held = False
    if standing.session is not None and not standing.session.is_lost:
        passed = [op.put(here.layout.passed(standing.lock), b"%d" % standing.revision)] if standing.is_granted else []
        try:
            # Whatever has become of the source: its own place a claim may take away.
            answer = yield Call(TXN, here.farewell(standing, *passed))
        except LeaseGoneError:
            standing.session.is_lost = True
        else:
            was_held = standing.is_granted and answer.succeeded
            here.highest = max(here.highest, answer.header.revision)
    here.end(standing, RELEASED)
    return ask.Released(was_held)


# --- keep -------------------------------------------------------------------------------------------------------------
def renew(here: ClusterState, request: ask.Renew) -> Talk:
    """Keep every session of the batch by one keepalive, and look at the leases whose places are not watched yet."""
    lost: dict[str, str] = {}
    of_session: dict[EtcdSession, list[EtcdQueueEntry]] = {}
    for lock, claim in request.leases:
        standing = here.standing.get(claim)
        if standing is None or standing.lock != lock or standing.session is None:
            lost[claim] = here.ended.reason(claim)
        else:
            of_session.setdefault(standing.session, []).append(standing)
    remaining_ms: dict[str, int] = {}
    for session, leases in of_session.items():
        reasons = yield from _keep_session(here, session, leases)
        gone = [one for one in leases if one.claim in reasons]
        reasons |= yield from _explain(here, gone)
        yield from here.clear(gone)
        for one in gone:
            here.end(one, reasons[one.claim])
        lost |= reasons
        remaining_ms |= {one.claim: one.remaining_ms() for one in leases if one.claim not in reasons}
    yield from here.end_overdue()
    return ask.Renewed(remaining_ms, lost)


def _keep_session(here: ClusterState, session: EtcdSession, leases: list[EtcdQueueEntry]) -> Talk:
    """Keep one session, and return why those of its leases are lost that are."""
    sent_ms = boottime_ms()
    reasons = {one.claim: EXPIRED for one in leases if one.deadline_ms < sent_ms}
    first, *more = batches([one for one in leases if not one.is_watched]) or [[]]
    if not session.is_lost:
        answer = yield from here.keep(session, _seeing(here, first))
        if answer is None:
            more = [first, *more]
        else:
            reasons |= yield from _hear_seen(here, leases, first, answer)
    if session.is_lost:
        return {one.claim: _LOST_SESSION for one in leases} | reasons
    for batch in more:
        answer = yield from here.ask(_seeing(here, batch))
        reasons |= yield from _hear_seen(here, leases, batch, answer)
    for one in leases:
        if one.claim not in reasons:
            one.keep(sent_ms)
    return reasons


def _seeing(here: ClusterState, batch: list[EtcdQueueEntry]) -> Any:
    """Ask for the source's record, and which of these places are there."""
    return op.txn([], [op.get(here.layout.record), *(op.count(standing.key) for standing in batch)])


def _hear_seen(here: ClusterState, leases: list[EtcdQueueEntry], batch: list[EtcdQueueEntry], answer: Any) -> Talk:
    """Watch the places that are there, and return why the others' leases are lost."""
    known, *places = (response.response_range for response in answer.responses)
    record = here.record
    if record is None or not known.kvs or known.kvs[0].mod_revision != record.revision:
        record, _ = yield from here.read_record()
    reasons = {one.claim: _NEW_EPOCH for one in leases if one.revision < record.revision}
    for standing, place in zip(batch, places, strict=True):
        if not place.count:
            reasons.setdefault(standing.claim, _DELETED)
        else:
            standing.is_watched = True
            here.watch(standing, standing.key, answer.header.revision + 1, standing.doubt)
    return reasons


def _explain(here: ClusterState, gone: list[EtcdQueueEntry]) -> Talk:
    """Return better reasons for lost leases, where somebody has taken or broken the lock."""
    explained = gone[:MAX_EXPLAINED]
    if not explained:
        return {}
    record = yield from here.known_record()
    reads = []
    for one in explained:
        head = op.get_prefix(here.layout.queue(one.lock), limit=1, is_oldest_first=True)
        reads += [op.get(here.layout.broken(one.lock)), head]
    answer = yield from here.ask(op.txn([], reads))
    found = [response.response_range.kvs for response in answer.responses]
    reasons = {}
    for one, broken, head in zip(explained, found[::2], found[1::2], strict=True):
        if head and head[0].create_revision > one.revision:
            token, holder = record.token(head[0].create_revision), holder_of(here.layout.queue(one.lock), head[0])
            reasons[one.claim] = f"{holder} holds the lock now, with token {token}"
        elif broken and broken[0].mod_revision > one.revision:
            reasons[one.claim] = _break_reason(broken[0])
    return reasons
