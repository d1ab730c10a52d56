"""Keep the leases of a process: one beat for each of its sessions, however many leases there are.

Promise: a beat is `sync`, which goes to the leader and fails if the session is over there, and a read of the source's
record; whatever ZooKeeper told of a held node before the answer has been taken in by then. A node that is not watched
yet over the present connection is looked at, and watched from then on: that is each lease's first beat, and the first
after each new connection.
"""

from fencelock.protocol import source_requests as ask
from fencelock.stores.source_clock import SourceIdentity
from fencelock.stores.zookeeper.source.inspection import why_lost
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.record import SourceRecord
from fencelock.stores.zookeeper.source.session import Sending, ZooKeeperSession
from fencelock.stores.zookeeper.source.sessions import ZooKeeperSessions

MAX_EXPLAINED = 10
"""Lost leases of one batch about which ZooKeeper is asked who holds their locks now."""
LOOK_S = 0.001
"""What each node that is to be looked at adds to the patience; an idle server answers 10 000 within a second."""


def renew(
    sessions: ZooKeeperSessions, identity: SourceIdentity, request: ask.Renew, request_timeout_s: float
) -> ask.Renewed:
    """Renew a batch of leases."""
    remaining_ms: dict[str, int] = {}
    together: dict[int, tuple[ZooKeeperSession, list[ZooKeeperQueueEntry]]] = {}
    for lock, claim in request.leases:
        found = sessions.of_claim(claim)
        if found is not None and found[1].lock == lock and found[1].is_granted and found[1].over is None:
            session, standing = found
            together.setdefault(id(session), (session, []))[1].append(standing)
    for session, leases in together.values():
        remaining_ms |= _beat(session, identity, leases, request_timeout_s)
    lost = [(lock, claim) for lock, claim in request.leases if claim not in remaining_ms]
    reasons = {claim: why_lost(sessions, lock, claim, request_timeout_s) for lock, claim in lost[:MAX_EXPLAINED]}
    reasons |= {claim: sessions.ended.reason(claim) for _, claim in lost[MAX_EXPLAINED:]}
    if lost:
        sessions.close_if_idle()
    return ask.Renewed(remaining_ms, reasons)


def _beat(
    session: ZooKeeperSession, identity: SourceIdentity, leases: list[ZooKeeperQueueEntry], request_timeout_s: float
) -> dict[str, int]:
    """Renew the leases of one session; return the time left of each that is not over."""
    session.wait_connected(request_timeout_s)
    client, sending, before = session.client, session.sending(), identity.seen
    unwatched = [lease for lease in leases if lease.watched_over != sending.connection]
    with client:
        asked = [session.watch(lease) for lease in unwatched]
        asked += [client.sync_async(session.layout.source), session.ask_record()]
    *looked_at, synced, found = session.answers(asked, request_timeout_s + LOOK_S * len(unwatched))
    session.expect_value(synced)
    session.confirm(sending)
    record = session.heard_record(found)
    identity.check(record.seen, before)
    for stat in looked_at:
        session.expect_value(stat)
    left_ms = max(0, session.lives_until_ms - sending.sent_ms)
    return {lease.claim: left_ms for lease in leases if _lives_on(session, lease, record, sending)}


def _lives_on(session: ZooKeeperSession, lease: ZooKeeperQueueEntry, record: SourceRecord, sending: Sending) -> bool:
    """Extend a lease, or end it; tell which."""
    if lease.zxid < record.zxid:
        session.end(lease, record.why_ended())
        session.remove_later(lease)
    elif lease.is_gone:
        session.end(lease, "its node was removed")
        session.strike_out(lease)
    elif lease.over is None:
        session.extend(lease, sending)
        return True
    return False
