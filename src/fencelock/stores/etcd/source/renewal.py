"""Renew the leases of a process in etcd: one keepalive for each of its sessions, however many leases it has.

Promise: a beat is one keepalive, together with a transaction that reads the source's record and looks for the keys that
no watch serves yet: etcd must have confirmed the watch. A key that exists is watched from then on; a lease whose key is
gone is lost, though its session lives. The reasons of lost leases name who holds or broke the lock, as far as etcd can
tell.
Never: a lease extended before the answer confirms it.
"""

from contextlib import suppress
from typing import Any

from fencelock.clock import boottime_ms
from fencelock.errors import SourceError
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.errors import was_answered
from fencelock.stores.etcd.source.cluster_state import ClusterState, Operations, batches
from fencelock.stores.etcd.source.layout import decode_break_reason, describe_holder
from fencelock.stores.etcd.source.session import DELETED, EXPIRED, LOST_SESSION, NEW_EPOCH, EtcdQueueEntry, EtcdSession

MAX_EXPLAINED = 50
"""Lost leases of one beat whose reasons are looked up; the others get the general reason."""


def renew(state: ClusterState, request: ask.Renew) -> Operations:
    """Renew every session of the batch by one keepalive, and check the leases whose keys are not watched yet.

    Leases are named by the digests of their claims, also in the reply.
    """
    lost: dict[str, str] = {}
    of_session: dict[EtcdSession, list[EtcdQueueEntry]] = {}
    for lock, digest in request.leases:
        entry = state.entries.get(digest)
        if entry is None or entry.lock != lock or entry.session is None:
            lost[digest] = state.ended.reason(digest)
        else:
            of_session.setdefault(entry.session, []).append(entry)
    remaining_ms: dict[str, int] = {}
    in_doubt: set[str] = set()
    for session, leases in of_session.items():
        try:
            reasons = yield from _renew_session(state, session, leases, in_doubt)
        except SourceError:
            in_doubt.update(one.digest for one in leases)
            if len(in_doubt) == len(request.leases):
                raise
            continue
        gone = [one for one in leases if one.digest in reasons]
        # Without an explanation the general reason stays: it must not cost the other leases their renewal.
        with suppress(SourceError):
            reasons |= yield from _explain_losses(state, gone)
        for one in gone:
            state.end_soon(one, reasons[one.digest])
        lost |= reasons
        renewed = [one for one in leases if one.digest not in reasons and one.digest not in in_doubt]
        remaining_ms |= {one.digest: one.remaining_ms() for one in renewed}
    yield from state.end_overdue()
    return ask.Renewed(remaining_ms, lost, frozenset(in_doubt))


def _renew_session(
    state: ClusterState, session: EtcdSession, leases: list[EtcdQueueEntry], in_doubt: set[str]
) -> Operations:
    """Renew one session; return the reasons of those leases that are lost, and note those in doubt."""
    sent_ms = boottime_ms()
    reasons = {one.digest: EXPIRED for one in leases if one.deadline_ms < sent_ms}
    unwatched = [one for one in leases if not (one.is_watched and state.watcher.is_live(one.watch_id))]
    first, *more = batches(unwatched) or [[]]
    if not session.is_lost:
        answer = yield from state.keepalive_with(session, _existence_txn(state, first))
        if answer is None:
            # Only the transaction failed: whether the keys of the first batch exist has to be asked again.
            more = [first, *more]
        else:
            reasons |= yield from _decode_existence(state, leases, first, answer)
    if session.is_lost:
        return {one.digest: LOST_SESSION for one in leases} | reasons
    for batch in more:
        reasons |= yield from _look(state, leases, batch, in_doubt)
    in_doubt -= reasons.keys()
    for one in leases:
        if one.digest not in reasons and one.digest not in in_doubt:
            one.extend(sent_ms)
    return reasons


def _look(
    state: ClusterState, leases: list[EtcdQueueEntry], batch: list[EtcdQueueEntry], in_doubt: set[str]
) -> Operations:
    """Read which of these queue entries exist; return why the leases of the others are lost, and note those in doubt.

    A key that etcd does not let the process read leaves its own lease in doubt, and no other.
    """
    try:
        answer = yield from state.execute(_existence_txn(state, batch))
    except SourceError as error:
        if not batch or not was_answered(error):
            raise
        if len(batch) == 1:
            in_doubt.add(batch[0].digest)
            return {}
        reasons: dict[str, str] = {}
        for one in batch:
            reasons |= yield from _look(state, leases, [one], in_doubt)
        return reasons
    return (yield from _decode_existence(state, leases, batch, answer))


def _existence_txn(state: ClusterState, batch: list[EtcdQueueEntry]) -> Any:
    """Return the transaction that reads the source's record, and which of these queue entries exist."""
    return wire.txn([], [wire.get(state.layout.record), *(wire.count(entry.key) for entry in batch)])


def _decode_existence(
    state: ClusterState, leases: list[EtcdQueueEntry], batch: list[EtcdQueueEntry], answer: Any
) -> Operations:
    """Watch the queue entries that exist, and return why the others' leases are lost."""
    known, *keys = (response.response_range for response in answer.responses)
    record = state.record
    if record is None or not known.kvs or known.kvs[0].mod_revision != record.revision:
        record, _ = yield from state.read_record()
    reasons = {one.digest: NEW_EPOCH for one in leases if one.revision < record.revision}
    for entry, key in zip(batch, keys, strict=True):
        if not key.count:
            reasons.setdefault(entry.digest, DELETED)
        elif entry.is_watched:
            # Watched, but not confirmed by etcd: perhaps the thread that serves the watches could not be started (H10).
            state.watcher.start()
        else:
            entry.is_watched = True
            # From the next revision on: this answer has shown all deletions before it.
            state.watch(entry, entry.key, answer.header.revision + 1, entry.mark_unwatched)
    return reasons


def _explain_losses(state: ClusterState, gone: list[EtcdQueueEntry]) -> Operations:
    """Return better reasons for lost leases, where somebody has taken or broken the lock."""
    explained = gone[:MAX_EXPLAINED]
    if not explained:
        return {}
    record = yield from state.known_record()
    reads = []
    for one in explained:
        head = wire.get_prefix(state.layout.queue(one.lock), limit=1, is_oldest_first=True)
        reads += [wire.get(state.layout.last_break(one.lock)), head]
    answer = yield from state.execute(wire.txn([], reads))
    found = [response.response_range.kvs for response in answer.responses]
    reasons = {}
    for one, last_break, head in zip(explained, found[::2], found[1::2], strict=True):
        if head and head[0].create_revision > one.revision:
            token, holder = (
                record.token(head[0].create_revision),
                describe_holder(state.layout.queue(one.lock), head[0]),
            )
            reasons[one.digest] = f"{holder} holds the lock now, with token {token}"
        elif last_break and last_break[0].mod_revision > one.revision:
            reasons[one.digest] = decode_break_reason(last_break[0])
    return reasons
