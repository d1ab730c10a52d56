"""Renew the leases of a process: one beat for each of its sessions, however many leases it has.

Promise: a beat is `sync`, which goes to the leader and fails if the session is over there, and a read of the source's
record. Everything that ZooKeeper told of a held node before the answer has been noted by then. A node that is not
watched over the present connection is read, and watched from then on: this happens in each lease's first beat, and in
the first beat after each reconnection. A claim that was not renewed in time ends, though its session lives. A
session that cannot be asked leaves its own leases in doubt, and no other's.
"""

from contextlib import suppress

from fencelock.errors import FencelockError, SourceError
from fencelock.protocol import source_requests as ask
from fencelock.stores.source_clock import SourceIdentity
from fencelock.stores.zookeeper.source.inspection import why_lost
from fencelock.stores.zookeeper.source.layout import SourceRecord
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.session import RequestStart, ZooKeeperSession
from fencelock.stores.zookeeper.source.sessions import ZooKeeperSessions

MAX_EXPLAINED = 10
"""Lost leases of one batch for which ZooKeeper is asked who holds their locks now."""
LOOK_S = 0.001
"""What each node to be read adds to the request timeout; an idle server answers 10 000 reads within a second."""


def renew(
    sessions: ZooKeeperSessions, identity: SourceIdentity, request: ask.Renew, request_timeout_s: float
) -> ask.Renewed:
    """Renew a batch of leases, which are named by the digests of their claims, also in the reply."""
    remaining_ms: dict[str, int] = {}
    by_session: dict[int, tuple[ZooKeeperSession, list[ZooKeeperQueueEntry]]] = {}
    for lock, digest in request.leases:
        found = sessions.find_claim(digest)
        if found is not None and found[1].lock == lock and found[1].is_granted and found[1].end_reason is None:
            session, entry = found
            by_session.setdefault(id(session), (session, []))[1].append(entry)
    in_doubt: set[str] = set()
    # A session without a connection takes the whole request timeout, so those that have one come first.
    for session, leases in sorted(by_session.values(), key=lambda one: not one[0].client.connected):
        try:
            remaining_ms |= _beat(session, identity, leases, request_timeout_s)
        except FencelockError:
            in_doubt.update(lease.digest for lease in leases)
            if len(in_doubt) == len(request.leases):
                raise
    known = remaining_ms.keys() | in_doubt
    lost = [(lock, digest) for lock, digest in request.leases if digest not in known]
    reasons = {digest: why_lost(sessions, lock, digest, request_timeout_s) for lock, digest in lost[:MAX_EXPLAINED]}
    reasons |= {digest: sessions.ended.reason(digest) for _, digest in lost[MAX_EXPLAINED:]}
    if lost:
        sessions.close_if_idle()
    return ask.Renewed(remaining_ms, reasons, frozenset(in_doubt))


def _beat(
    session: ZooKeeperSession, identity: SourceIdentity, leases: list[ZooKeeperQueueEntry], request_timeout_s: float
) -> dict[str, int]:
    """Renew the leases of one session; return the time left of each that is not over."""
    session.wait_connected(request_timeout_s)
    # Taken before anything is sent: the time left is counted from here.
    client, start, before = session.client, session.request_start(), identity.seen
    unwatched = [lease for lease in leases if lease.watched_connection != start.connection]
    with client:
        # The watches before the `sync`: a removal that the leader knows of by then is told before the reply to it.
        requests = [session.watch(lease) for lease in unwatched]
        requests += [client.sync_async(session.layout.source), session.request_record()]
    *stats, synced, found = session.answers(requests, request_timeout_s + LOOK_S * len(unwatched))
    session.value_of(synced)
    session.confirm(start)
    record = session.decode_record(found)
    identity.check(record.seen, before)
    # Also of what others did: a session that is opened later, when older data was restored, knows of no transaction.
    identity.note_token(session.last_token())
    for stat in stats:
        session.value_of(stat)
    remaining_ms = max(0, session.lives_until_ms - start.sent_ms)
    return {lease.digest: remaining_ms for lease in leases if _extend_or_end(session, lease, record, start)}


def _extend_or_end(
    session: ZooKeeperSession, lease: ZooKeeperQueueEntry, record: SourceRecord, start: RequestStart
) -> bool:
    """Extend a lease and return True, or end it and return False."""
    if lease.zxid < record.zxid:
        session.end(lease, record.why_ended())
        session.remove_later(lease)
    elif lease.is_gone:
        session.end(lease, "its node was removed")
        session.discard(lease)
    elif lease.end_reason is None:
        session.extend(lease, start)
        return True
    return False


def remove_overdue(sessions: ZooKeeperSessions, request_timeout_s: float) -> None:
    """End the claims that this process has not renewed in time, and remove their nodes."""
    for session in sessions.open_sessions():
        if overdue := session.end_overdue():
            with suppress(SourceError):  # The next connection removes the nodes.
                session.remove(overdue, request_timeout_s)
