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
from fencelock.stores.etcd.connection import messages as say
from fencelock.stores.etcd.connection import operations as op
from fencelock.stores.etcd.connection.client import LEASE_TIME_TO_LIVE, RANGE, TXN
from fencelock.stores.etcd.source.cluster_state import MAX_OPERATIONS, Call, ClusterState, Talk
from fencelock.stores.etcd.source.layout import EtcdRecord, holder_of, is_ours, is_queue_entry, packed, record_value
from fencelock.stores.etcd.source.prefix_conflicts import around_a_source, find_clash
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
def install(here: ClusterState) -> Talk:
    """Make the source's record if there is none, and know it."""
    key = here.layout.record
    answer = yield from here.ask(op.txn([], [op.get(key)]))
    if not answer.responses[0].response_range.kvs:
        clash = yield from find_clash(around_a_source(here.layout.prefix), here.ask)
        if clash is not None:
            raise SourceError(
                f"{here.url} {clash}, and its locks' queues would be in the way of that: nothing was installed. Name "
                f"another prefix, in the URL's path"
            )
        value = record_value(draw_claim()[:16], 1, draw_claim()[:16], 0)
        yield from here.ask(op.txn([op.is_absent(key)], [op.put(key, value)]))
    yield from here.read_record()


def read_source(here: ClusterState, _: ask.ReadSource) -> Talk:
    """Tell the source's identity and counter, of one that went back as well: raising its epoch begins with that."""
    record, revision = yield from here.read_record(is_remedy=True)
    return record.info(revision)


def reserve(_: ClusterState, __: ask.ReserveBlock) -> Talk:
    """Do nothing: a revision is durable before any answer tells it."""
    yield from ()  # A talk, like the others, that says nothing.


def raise_epoch(here: ClusterState, request: ask.RaiseEpoch) -> Talk:
    """Begin a new history above every token, and end every place of the old one."""
    # Also of a source that went back: this is the remedy.
    record, revision = yield from here.read_record(is_remedy=True)
    if record.history_id != request.history_id:
        return None
    floor = next_beginning(record.token(max(revision, here.highest)))
    epoch, history_id = record.epoch + 1, draw_claim()[:16]
    entry = packed(action="epoch", who=default_holder(), reason=request.reason, epoch=epoch, floor=str(floor))
    changes = [
        op.put(here.layout.record, record_value(record.source_id, epoch, history_id, floor)),
        op.put(here.layout.audit(f"epoch-{epoch}-{history_id}"), entry),
    ]
    answer = yield Call(TXN, op.txn([op.was_modified(here.layout.record, record.revision)], changes))
    if not answer.succeeded:
        return None
    yield from here.read_record()
    yield from _end_places(here, answer.header.revision)
    return SourceInfo(record.source_id, epoch, history_id, floor, floor)


def _end_places(here: ClusterState, revision: int) -> Talk:
    """Delete the places of ours that were made before the revision."""
    after = None
    while names := (yield from _names(here, after)):
        queues = [here.layout.queue(name) for name in names]
        looks = [op.get_prefix(queue, created_by=revision - 1) for queue in queues]
        answer = yield from here.ask(op.txn([], looks))
        found = [
            kv.key
            for queue, response in zip(queues, answer.responses, strict=True)
            for kv in response.response_range.kvs
            if is_ours(queue, kv.key)
        ]
        for begin in range(0, len(found), MAX_OPERATIONS):
            keys = found[begin : begin + MAX_OPERATIONS]
            yield from here.ask(op.txn([], [op.delete(key) for key in keys]))
        after = names[-1]


# --- breaking ---------------------------------------------------------------------------------------------------------
def break_lock(here: ClusterState, request: ask.Break) -> Talk:
    """End whoever holds the lock, and mint a token for the breaker."""
    audit, queue = here.layout.audit(f"break-{request.claim}"), here.layout.queue(request.lock)
    for _ in range(MAX_ROUNDS):
        record, _ = yield from here.read_record()
        answer = yield from here.ask(op.txn([], [op.get(audit), op.get_prefix(queue, limit=1, is_oldest_first=True)]))
        done, heads = (response.response_range.kvs for response in answer.responses)
        if done:
            said = decode_object(done[0].value)
            token = int(said["offset"]) + done[0].create_revision
            return ask.Broken(token, record.source_id, record.history_id, said["holder"])
        head = heads[0] if heads else None
        if head is not None and not is_queue_entry(queue, head):
            raise _is_blocked(request.lock, queue, head)
        holder = None if head is None else holder_of(queue, head)
        before = here.highest
        answer = yield from here.ask(_breaking(here, request, record, head, holder))
        if answer.succeeded:
            here.note_minted(answer.header, before)
            return ask.Broken(record.token(answer.header.revision), record.source_id, record.history_id, holder)
    raise SourceUnavailableError(
        f"lock {request.lock!r} changed hands {MAX_ROUNDS} times while it was to be broken: try again"
    )


def _is_blocked(lock: str, queue: bytes, kv: Any) -> SourceError:
    return SourceError(
        f"lock {lock!r} cannot be broken, for nobody holds it: first in its queue stands {holder_of(queue, kv)}, such "
        f"as guarded data that are kept below the lock's own prefix. Nothing was done: {UNBLOCKING}"
    )


def _breaking(here: ClusterState, request: ask.Break, record: EtcdRecord, head: Any, holder: str | None) -> Any:
    """Break the lock if its head is still this one."""
    entry = packed(
        action="break",
        lock=request.lock,
        who=request.holder,
        reason=request.reason,
        holder=holder,
        offset=str(record.offset),
    )
    audit = here.layout.audit(f"break-{request.claim}")
    changes = [
        op.put(audit, entry),
        op.put(here.layout.broken(request.lock), entry),
        op.put(here.layout.lock(request.lock), b""),
    ]
    if head is None:
        is_same = op.is_empty(here.layout.queue(request.lock))
    else:
        is_same = op.was_created(head.key, head.create_revision)
        changes.append(op.delete(head.key))
    return op.txn([op.was_modified(here.layout.record, record.revision), op.is_absent(audit), is_same], changes)


# --- looking ----------------------------------------------------------------------------------------------------------
def inspect(here: ClusterState, request: ask.Inspect) -> Talk:
    """Tell what is known of one lock."""
    (info,) = yield from _infos(here, [request.lock])
    return info


def list_locks(here: ClusterState, request: ask.ListLocks) -> Talk:
    """Tell what is known of a page of locks, in the order of their escaped names."""
    names = yield from _names(here, request.after)
    return tuple((yield from _infos(here, names))) if names else ()


def _names(here: ClusterState, after: str | None) -> Talk:
    """Return the next page of the locks that were ever queued for."""
    begin = here.layout.locks if after is None else here.layout.lock(after) + b"\0"
    request = say.RangeRequest(key=begin, range_end=op.prefix_end(here.layout.locks), limit=PAGE_LOCKS, keys_only=True)
    answer = yield Call(RANGE, request)
    return [name for kv in answer.kvs if (name := here.layout.name(kv.key)) is not None]


def _infos(here: ClusterState, names: list[str]) -> Talk:
    record = yield from here.known_record()
    layout = here.layout
    queues = [op.get_prefix(layout.queue(name), is_oldest_first=True) for name in names]
    answer = yield from here.ask(op.txn([], queues))
    places = [response.response_range.kvs for response in answer.responses]
    free = [name for name, kvs in zip(names, places, strict=True) if not kvs]
    minted: dict[str, int] = {}
    if free:
        answer = yield from here.ask(op.txn([], [op.get(layout.lock(name)) for name in free]))
        for name, response in zip(free, answer.responses, strict=True):
            for kv in response.response_range.kvs:
                minted[name] = kv.mod_revision
    times: dict[int, tuple[int, int]] = {}
    for lease in {kvs[0].lease for kvs in places if kvs} - {0}:
        left = yield Call(LEASE_TIME_TO_LIVE, say.LeaseTimeToLiveRequest(id=lease))
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
        holder=holder_of(queue, head),
        # etcd tells whole seconds, rounded down: the lock may be held for so long.
        remaining=float(min(left_s + 1, ttl_s)),
        ttl=float(ttl_s) if ttl_s else None,
        waiters=tuple(holder_of(queue, other) for other in others),
    )


def find_blocked(here: ClusterState) -> Talk:
    """Return the locks in whose queue something stands first that is no place, each with what that is."""
    blocked: list[tuple[str, str]] = []
    after = None
    while names := (yield from _names(here, after)):
        queues = [here.layout.queue(name) for name in names]
        looks = [op.get_prefix(queue, limit=1, is_oldest_first=True) for queue in queues]
        answer = yield from here.ask(op.txn([], looks))
        blocked += [
            (name, holder_of(queue, kv))
            for name, queue, response in zip(names, queues, answer.responses, strict=True)
            for kv in response.response_range.kvs
            if not is_queue_entry(queue, kv)
        ]
        after = names[-1]
    return blocked


# --- tidying up -------------------------------------------------------------------------------------------------------
def purge(here: ClusterState, _: ask.Purge) -> Talk:
    """Forget locks that nobody has a place at; revisions go on, so that no token is issued again."""
    purged, after = 0, None
    while names := (yield from _names(here, after)):
        answer = yield from here.ask(op.txn([], [_forgetting(here, name) for name in names]))
        purged += sum(response.response_txn.succeeded for response in answer.responses)
        after = names[-1]
    return purged


def _forgetting(here: ClusterState, name: str) -> Any:
    keys = here.layout.lock(name), here.layout.passed(name), here.layout.broken(name)
    return op.within(op.txn([op.is_empty(here.layout.queue(name))], [op.delete(key) for key in keys]))
