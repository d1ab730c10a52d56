"""What operators and people ask of a source in etcd: make it, look at it, break a lock, begin a new epoch, tidy up.

Promise: a break ends whoever holds the lock and mints its token by a revision of its own; whoever waits came before
that, so its claim ends when its turn comes, and it queues up anew: no later holder has a lower token (G10). A break
asked again under the same claim says the same. An epoch is raised by compare-and-swap. Both leave an audit entry.
Never: a key deleted that fencelock did not make, but for the place of the holder that is broken; one that is no place,
a guard's mark above all, stays.
"""

from typing import Any

from fencelock.errors import SourceError, SourceUnavailableError
from fencelock.model import LockInfo, SourceInfo, default_holder, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import LEASE_TIME_TO_LIVE, RANGE, TXN
from fencelock.stores.etcd.source.cluster_state import MAX_OPERATIONS, Call, ClusterState, Operations
from fencelock.stores.etcd.source.layout import (
    EtcdRecord,
    describe_holder,
    encode_json,
    encode_record,
    is_own_entry,
    is_queue_entry,
)
from fencelock.stores.etcd.source.prefix_conflicts import conflicts_of_source, find_conflict
from fencelock.stores.quorum.encoding import decode_object
from fencelock.stores.source_clock import next_beginning

PAGE_LOCKS = MAX_OPERATIONS
UNBLOCKING = (
    "keep nothing there but locks. If it is guarded data, stop their writers and copy them to another prefix together "
    "with their marks; delete no key with /.fencelock/ in it before that. Once it is gone the lock can be had again"
)
"""What to do about a key in a lock's queue that is no place."""
MAX_ROUNDS = 20
"""How often a break looks who holds the lock, while that changes."""


# --- the source -------------------------------------------------------------------------------------------------------
def install(state: ClusterState) -> Operations:
    """Make the source's record if there is none, and know it."""
    key = state.layout.record
    answer = yield from state.execute(wire.txn([], [wire.get(key)]))
    if not answer.responses[0].response_range.kvs:
        conflict = yield from find_conflict(conflicts_of_source(state.layout.prefix), state.execute)
        if conflict is not None:
            raise SourceError(
                f"{state.url} {conflict}, and its locks' queues would be in the way of that: nothing was installed. "
                f"Name another prefix, in the URL's path"
            )
        value = encode_record(draw_claim()[:16], 1, draw_claim()[:16], 0)
        yield from state.execute(wire.txn([wire.is_absent(key)], [wire.put(key, value)]))
    yield from state.read_record()


def read_source(state: ClusterState, _: ask.ReadSource) -> Operations:
    """Tell the source's identity and counter, of one that went back as well: raising its epoch begins with that."""
    record, revision = yield from state.read_record(allow_regressed=True)
    return record.info(revision)


def reserve(_: ClusterState, __: ask.ReserveBlock) -> Operations:
    """Do nothing: a revision is durable before any answer tells it."""
    yield from ()  # A talk, like the others, that says nothing.


def raise_epoch(state: ClusterState, request: ask.RaiseEpoch) -> Operations:
    """Begin a new history above every token, and end every place of the old one."""
    # Also of a source that went back: this is the remedy.
    record, revision = yield from state.read_record(allow_regressed=True)
    if record.history_id != request.history_id:
        return None
    floor = next_beginning(record.token(max(revision, state.highest)))
    epoch, history_id = record.epoch + 1, draw_claim()[:16]
    entry = encode_json(action="epoch", who=default_holder(), reason=request.reason, epoch=epoch, floor=str(floor))
    changes = [
        wire.put(state.layout.record, encode_record(record.source_id, epoch, history_id, floor)),
        wire.put(state.layout.audit(f"epoch-{epoch}-{history_id}"), entry),
    ]
    answer = yield Call(TXN, wire.txn([wire.was_modified(state.layout.record, record.revision)], changes))
    if not answer.succeeded:
        return None
    yield from state.read_record()
    yield from _delete_entries_before(state, answer.header.revision)
    return SourceInfo(record.source_id, epoch, history_id, floor, floor)


def _delete_entries_before(state: ClusterState, revision: int) -> Operations:
    """Delete the places of ours that were made before the revision."""
    after = None
    while names := (yield from list_names(state, after)):
        queues = [state.layout.queue(name) for name in names]
        looks = [wire.get_prefix(queue, created_by=revision - 1) for queue in queues]
        answer = yield from state.execute(wire.txn([], looks))
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


# --- breaking ---------------------------------------------------------------------------------------------------------
def break_lock(state: ClusterState, request: ask.Break) -> Operations:
    """End whoever holds the lock, and mint a token for the breaker."""
    audit, queue = state.layout.audit(f"break-{request.claim}"), state.layout.queue(request.lock)
    for _ in range(MAX_ROUNDS):
        record, _ = yield from state.read_record()
        answer = yield from state.execute(
            wire.txn([], [wire.get(audit), wire.get_prefix(queue, limit=1, is_oldest_first=True)])
        )
        done, heads = (response.response_range.kvs for response in answer.responses)
        if done:
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
    """Break the lock if its head is still this one."""
    entry = encode_json(
        action="break",
        lock=request.lock,
        who=request.holder,
        reason=request.reason,
        holder=holder,
        offset=str(record.offset),
    )
    audit = state.layout.audit(f"break-{request.claim}")
    changes = [
        wire.put(audit, entry),
        wire.put(state.layout.last_break(request.lock), entry),
        wire.put(state.layout.lock(request.lock), b""),
    ]
    if head is None:
        is_same = wire.is_empty(state.layout.queue(request.lock))
    else:
        is_same = wire.was_created(head.key, head.create_revision)
        changes.append(wire.delete(head.key))
    return wire.txn([wire.was_modified(state.layout.record, record.revision), wire.is_absent(audit), is_same], changes)


# --- looking ----------------------------------------------------------------------------------------------------------
def inspect(state: ClusterState, request: ask.Inspect) -> Operations:
    """Tell what is known of one lock."""
    (info,) = yield from read_infos(state, [request.lock])
    return info


def list_locks(state: ClusterState, request: ask.ListLocks) -> Operations:
    """Tell what is known of a page of locks, in the order of their escaped names."""
    names = yield from list_names(state, request.after)
    return tuple((yield from read_infos(state, names))) if names else ()


def list_names(state: ClusterState, after: str | None) -> Operations:
    """Return the next page of the locks that were ever queued for."""
    begin = state.layout.locks if after is None else state.layout.lock(after) + b"\0"
    request = wire.RangeRequest(
        key=begin, range_end=wire.prefix_end(state.layout.locks), limit=PAGE_LOCKS, keys_only=True
    )
    answer = yield Call(RANGE, request)
    return [name for kv in answer.kvs if (name := state.layout.name(kv.key)) is not None]


def read_infos(state: ClusterState, names: list[str]) -> Operations:
    """Return the LockInfo of each of these locks."""
    record = yield from state.known_record()
    layout = state.layout
    queues = [wire.get_prefix(layout.queue(name), is_oldest_first=True) for name in names]
    answer = yield from state.execute(wire.txn([], queues))
    places = [response.response_range.kvs for response in answer.responses]
    free = [name for name, kvs in zip(names, places, strict=True) if not kvs]
    minted: dict[str, int] = {}
    if free:
        answer = yield from state.execute(wire.txn([], [wire.get(layout.lock(name)) for name in free]))
        for name, response in zip(free, answer.responses, strict=True):
            for kv in response.response_range.kvs:
                minted[name] = kv.mod_revision
    times: dict[int, tuple[int, int]] = {}
    for lease in {kvs[0].lease for kvs in places if kvs} - {0}:
        left = yield Call(LEASE_TIME_TO_LIVE, wire.LeaseTimeToLiveRequest(id=lease))
        times[lease] = (left.ttl, left.granted_ttl)
    return [
        _info(record, name, layout.queue(name), kvs, minted.get(name), times)
        for name, kvs in zip(names, places, strict=True)
    ]


def _info(
    record: EtcdRecord, name: str, queue: bytes, kvs: Any, minted: int | None, times: dict[int, tuple[int, int]]
) -> LockInfo:
    if not kvs:
        token = None if minted is None else record.token(minted)
        return LockInfo(name, token=token, holder=None, remaining=0.0, ttl=None, waiters=())
    head, *others = kvs
    left_s, ttl_s = times.get(head.lease, (0, 0))
    return LockInfo(
        name,
        token=record.token(head.create_revision),
        holder=describe_holder(queue, head),
        # etcd tells whole seconds, rounded down: the lock may be held for so long.
        remaining=float(min(left_s + 1, ttl_s)),
        ttl=float(ttl_s) if ttl_s else None,
        waiters=tuple(describe_holder(queue, other) for other in others),
    )


def find_blocked(state: ClusterState) -> Operations:
    """Return the locks in whose queue something stands first that is no place, each with what that is."""
    blocked: list[tuple[str, str]] = []
    after = None
    while names := (yield from list_names(state, after)):
        queues = [state.layout.queue(name) for name in names]
        looks = [wire.get_prefix(queue, limit=1, is_oldest_first=True) for queue in queues]
        answer = yield from state.execute(wire.txn([], looks))
        blocked += [
            (name, describe_holder(queue, kv))
            for name, queue, response in zip(names, queues, answer.responses, strict=True)
            for kv in response.response_range.kvs
            if not is_queue_entry(queue, kv)
        ]
        after = names[-1]
    return blocked


# --- tidying up -------------------------------------------------------------------------------------------------------
def purge(state: ClusterState, _: ask.Purge) -> Operations:
    """Forget locks that nobody has a place at; revisions go on, so that no token is issued again."""
    purged, after = 0, None
    while names := (yield from list_names(state, after)):
        answer = yield from state.execute(wire.txn([], [_purge_txn(state, name) for name in names]))
        purged += sum(response.response_txn.succeeded for response in answer.responses)
        after = names[-1]
    return purged


def _purge_txn(state: ClusterState, name: str) -> Any:
    keys = state.layout.lock(name), state.layout.last_release(name), state.layout.last_break(name)
    return wire.nested(wire.txn([wire.is_empty(state.layout.queue(name))], [wire.delete(key) for key in keys]))
