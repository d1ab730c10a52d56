"""What operators change in a source in etcd: install it, break a lock, purge idle locks, raise the epoch.

Promise: a break ends the holder's claim and mints its token by a revision of its own. The waiters enqueued before that,
so each claim ends when its turn comes and enqueues again: no later holder has a lower token (G10). A break requested
again under the same claim returns the same. An epoch is raised by compare-and-swap. Both leave an audit entry.
Never: a key deleted that fencelock did not make, except the queue entry of the holder whose lock is broken. A key that
is not a queue entry stays, a guard's mark above all.
"""

import os
from typing import Any

from fencelock.errors import SourceError, SourceUnavailableError
from fencelock.model import SourceInfo, default_holder
from fencelock.protocol import source_requests as ask
from fencelock.stores.encoding import decode_object
from fencelock.stores.errors import unsupported
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import TXN
from fencelock.stores.etcd.source.cluster_state import MAX_OPERATIONS, ClusterState, EtcdCall, Operations
from fencelock.stores.etcd.source.inspection import UNBLOCKING, read_names
from fencelock.stores.etcd.source.layout import (
    EtcdRecord,
    describe_holder,
    encode_json,
    encode_record,
    is_own_entry,
    is_queue_entry,
)
from fencelock.stores.etcd.source.prefix_conflicts import conflicts_of_source, find_conflict
from fencelock.stores.source_clock import start_of_new_history

ROOM = 2**32
"""More transactions than etcd can do between the two requests of a raise."""
MAX_ROUNDS = 20
"""How often a break reads who holds the lock, while that changes."""


# --- the source -------------------------------------------------------------------------------------------------------
def install(state: ClusterState) -> Operations:
    """Make the source's record if there is none, and read it."""
    key = state.layout.record
    answer = yield from state.execute(wire.txn([], [wire.get(key)]))
    if not answer.responses[0].response_range.kvs:
        conflict = yield from find_conflict(conflicts_of_source(state.layout.prefix), state.execute)
        if conflict is not None:
            raise SourceError(
                f"{state.url} {conflict}, so the queues of its locks would conflict with it: nothing was installed. "
                f"Name another prefix in the URL's path"
            )
        value = encode_record(_draw_id(), 1, _draw_id(), 0)
        # Another process may install it at the same time: the record that is read next counts, even if it wrote it.
        yield from state.execute(wire.txn([wire.is_absent(key)], [wire.put(key, value)]))
    yield from state.read_record()


def _draw_id() -> str:
    return os.urandom(8).hex()


def refuse_keys(state: ClusterState, request: ask.AddKey | ask.RetireKey | ask.ReadKeys) -> Operations:
    """Raise UnsupportedError: a signature proves nothing where clients write the keys themselves."""
    yield from ()
    raise unsupported(request, state.url)


def reserve(_: ClusterState, __: ask.ReserveBlock) -> Operations:
    """Do nothing: a revision is durable before any answer tells it."""
    yield from ()  # A generator, like the others, that yields no operation.


def raise_epoch(state: ClusterState, request: ask.RaiseEpoch) -> Operations:
    """Begin a new history above every token, and delete every queue entry of the old one."""
    # Also for a source that went back: this is the remedy.
    record, revision = yield from state.read_record(allow_regressed=True)
    if record.history_id != request.history_id:
        return None
    # A source that went back counts up to `highest` once more: the new history begins above both.
    # It also begins above what others are granted before the record is written.
    floor = start_of_new_history(record.token(max(revision, state.highest)) + ROOM)
    epoch, history_id = record.epoch + 1, _draw_id()
    audit = encode_json(action="epoch", who=default_holder(), reason=request.reason, epoch=epoch, floor=str(floor))
    changes = [
        wire.put(state.layout.record, encode_record(record.source_id, epoch, history_id, floor)),
        wire.put(state.layout.audit(f"epoch-{epoch}-{history_id}"), audit),
    ]
    # Not by `state.execute`, which would refuse the answer of a source that went back.
    answer = yield EtcdCall(TXN, wire.txn([wire.was_modified(state.layout.record, record.revision)], changes))
    if not answer.succeeded:
        return None
    yield from state.read_record()
    # After the record is written: an acquire compares the record, so no entry of the old history comes after this.
    yield from _delete_older_entries(state, answer.header.revision)
    return SourceInfo(record.source_id, epoch, history_id, floor, floor)


def _delete_older_entries(state: ClusterState, revision: int) -> Operations:
    """Delete fencelock's own queue entries that were created before the revision."""
    after = None
    while names := (yield from read_names(state, after)):
        queues = [state.layout.queue(name) for name in names]
        reads = [wire.get_prefix(queue, created_by=revision - 1) for queue in queues]
        answer = yield from state.execute(wire.txn([], reads))
        found = [
            kv.key
            for queue, response in zip(queues, answer.responses, strict=True)
            for kv in response.response_range.kvs
            if is_own_entry(queue, kv.key)
        ]
        for begin in range(0, len(found), MAX_OPERATIONS):
            keys = found[begin : begin + MAX_OPERATIONS]
            yield from state.execute(wire.txn([], [wire.delete(key) for key in keys]))
        after = names[-1]


# --- break ------------------------------------------------------------------------------------------------------------
def break_lock(state: ClusterState, request: ask.Break) -> Operations:
    """End the holder's claim, and mint a token for the breaker."""
    audit, queue = state.layout.audit(f"break-{request.claim}"), state.layout.queue(request.lock)
    for _ in range(MAX_ROUNDS):
        record, _ = yield from state.read_record()
        reads = [wire.get(audit), wire.get_prefix(queue, limit=1, is_oldest_first=True)]
        answer = yield from state.execute(wire.txn([], reads))
        done, heads = (response.response_range.kvs for response in answer.responses)
        if done:
            # An earlier request has broken the lock, and its reply was lost: the audit entry has the token.
            fields = decode_object(done[0].value)
            token = int(fields["offset"]) + done[0].create_revision
            return ask.Broken(token, record.source_id, record.history_id, fields["holder"])
        head = heads[0] if heads else None
        if head is not None and not is_queue_entry(queue, head):
            raise _blocked_lock_error(request.lock, queue, head)
        holder = None if head is None else describe_holder(queue, head)
        before = state.highest
        answer = yield from state.execute(_break_txn(state, request, record, head, holder))
        if answer.succeeded:
            state.check_minted(answer.header, before)
            return ask.Broken(record.token(answer.header.revision), record.source_id, record.history_id, holder)
    raise SourceUnavailableError(
        f"lock {request.lock!r} changed hands {MAX_ROUNDS} times while it was to be broken: try again"
    )


def _blocked_lock_error(lock: str, queue: bytes, kv: Any) -> SourceError:
    return SourceError(
        f"lock {lock!r} cannot be broken, because nobody holds it: first in its queue is {describe_holder(queue, kv)}, "
        f"for example guarded data that are kept below the lock's own prefix. Nothing was done: {UNBLOCKING}"
    )


def _break_txn(state: ClusterState, request: ask.Break, record: EtcdRecord, head: Any, holder: str | None) -> Any:
    """Return the transaction that breaks the lock if the first in its queue is still this one."""
    value = encode_json(
        action="break",
        lock=request.lock,
        who=request.holder,
        reason=request.reason,
        holder=holder,
        offset=str(record.offset),
    )
    audit = state.layout.audit(f"break-{request.claim}")
    changes = [
        wire.put(audit, value),
        wire.put(state.layout.last_break(request.lock), value),
        # Its revision is the lock's last token, which is the break's from now on.
        wire.put(state.layout.lock(request.lock), b""),
    ]
    if head is None:
        is_same = wire.is_empty(state.layout.queue(request.lock))
    else:
        is_same = wire.was_created(head.key, head.create_revision)
        changes.append(wire.delete(head.key))
    return wire.txn([wire.was_modified(state.layout.record, record.revision), wire.is_absent(audit), is_same], changes)


# --- purge ------------------------------------------------------------------------------------------------------------
def purge(state: ClusterState, _: ask.Purge) -> Operations:
    """Forget the locks with empty queues; revisions go on, so no token is issued again."""
    purged, after = 0, None
    while names := (yield from read_names(state, after)):
        answer = yield from state.execute(wire.txn([], [_purge_txn(state, name) for name in names]))
        purged += sum(response.response_txn.succeeded for response in answer.responses)
        after = names[-1]
    return purged


def _purge_txn(state: ClusterState, name: str) -> Any:
    keys = state.layout.lock(name), state.layout.last_release(name), state.layout.last_break(name)
    is_empty = wire.is_empty(state.layout.queue(name))
    return wire.nested(wire.txn([is_empty], [wire.delete(key) for key in keys]))
