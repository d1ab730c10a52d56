"""Read a source in etcd: its record, its locks and their queues, and what `doctor` reports.

Promise: reads nothing but the source's own keys and the queues of its locks, a page at a time. `show` tells a time
left that is at most one second too high, and `check` one that is never too high: etcd reports whole seconds.
Never: a change in etcd.
"""

from collections.abc import Callable
from typing import Any

from fencelock.errors import FencelockError
from fencelock.model import Finding, LockInfo, one_way
from fencelock.protocol import source_requests as ask
from fencelock.protocol.generators import run_generator
from fencelock.stores.errors import refused_finding
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import LEASE_TIME_TO_LIVE, RANGE, STATUS, EtcdClient
from fencelock.stores.etcd.connection.url import EtcdConnectionInfo
from fencelock.stores.etcd.source.cluster_state import (
    MAX_OPERATIONS,
    MS_PER_S,
    CallPair,
    ClusterState,
    EtcdCall,
    Operations,
)
from fencelock.stores.etcd.source.layout import EtcdRecord, decode_digest, describe_holder, is_queue_entry

PAGE_LOCKS = MAX_OPERATIONS
REQUEST_TIMEOUT_S = 5.0
OLDEST_VERSION = (3, 4)
UNBLOCKING = (
    "keep nothing there but locks. If it is guarded data, stop their writers and copy them to another prefix together "
    "with their marks; delete no key with /.fencelock/ in it before that. Once it is gone the lock becomes free"
)
"""The remedy for a key in a lock's queue that is not a queue entry."""


# --- requests ---------------------------------------------------------------------------------------------------------
def read_source(state: ClusterState, _: ask.ReadSource) -> Operations:
    """Return the source's identity and counter, also of a source that went back: raising its epoch begins with this."""
    record, revision = yield from state.read_record(allow_regressed=True)
    return record.info(revision)


def inspect(state: ClusterState, request: ask.Inspect) -> Operations:
    """Return what is known of one lock."""
    (info,) = yield from _read_infos(state, [request.lock])
    return info


def check(state: ClusterState, request: ask.Check) -> Operations:
    """Return whether the lease of a proof holds the lock: one transaction, and for another process's lease one request
    for the time left.

    etcd tells that in whole seconds, rounded down. In its last second a lease has 1 ms left, which says that it holds
    the lock and promises nothing beyond.
    """
    record = yield from state.known_record()
    layout, lock = state.layout, request.lock
    reads = [wire.get(key) for key in (layout.record, layout.last_break(lock), layout.lock(lock))]
    reads.append(wire.get_prefix(layout.queue(lock), limit=1, is_oldest_first=True))
    answer = yield from state.execute(wire.txn([], reads))
    known, last_break, minted, heads = (response.response_range.kvs for response in answer.responses)
    if not known or known[0].mod_revision != record.revision:
        record, _ = yield from state.read_record()
    # An entry from before a break, or before the epoch was raised, holds nothing, and is deleted when its turn comes.
    ended = max([record.revision, *(kv.mod_revision for kv in last_break)])
    head = next((kv for kv in heads if kv.create_revision > ended), None)
    if head is None:
        # The break's own token, or that of the last claim that was queued.
        return ask.Checked(0, next((record.token(kv.mod_revision) for kv in minted if kv.mod_revision >= ended), None))
    digest = one_way(request.proof)
    is_holder = decode_digest(head) == digest and is_queue_entry(layout.queue(lock), head)
    remaining_ms = 0
    if is_holder and request.history_id == record.history_id:
        remaining_ms = yield from _time_left(state, digest, head.lease)
    return ask.Checked(remaining_ms, record.token(head.create_revision))


def _time_left(state: ClusterState, digest: str, lease: int) -> Operations:
    """Return the milliseconds for which a queue entry surely exists, unless it is deleted."""
    own = state.entries.get(digest)
    if own is not None:
        return own.remaining_ms()
    left = yield EtcdCall(LEASE_TIME_TO_LIVE, wire.LeaseTimeToLiveRequest(id=lease))
    # Below 0: etcd has ended the lease since.
    return max(1, left.ttl * MS_PER_S) if left.ttl >= 0 else 0


def list_locks(state: ClusterState, request: ask.ListLocks) -> Operations:
    """Return what is known of a page of locks, in the order of their escaped names."""
    names = yield from read_names(state, request.after)
    return tuple((yield from _read_infos(state, names))) if names else ()


def read_names(state: ClusterState, after: str | None) -> Operations:
    """Return the next page of names of the locks that were ever queued for; SchemaError without a source."""
    yield from state.known_record()
    begin = state.layout.locks if after is None else state.layout.lock(after) + b"\0"
    end = wire.prefix_end(state.layout.locks)
    answer = yield EtcdCall(RANGE, wire.RangeRequest(key=begin, range_end=end, limit=PAGE_LOCKS, keys_only=True))
    return [name for kv in answer.kvs if (name := state.layout.name(kv.key)) is not None]


def _read_infos(state: ClusterState, names: list[str]) -> Operations:
    """Return the LockInfo of each of these locks."""
    record = yield from state.known_record()
    layout = state.layout
    queues = [wire.get_prefix(layout.queue(name), is_oldest_first=True) for name in names]
    answer = yield from state.execute(wire.txn([], queues))
    entries = [response.response_range.kvs for response in answer.responses]
    # A lock that nobody holds has its last token in the revision of its own key.
    free = [name for name, kvs in zip(names, entries, strict=True) if not kvs]
    minted: dict[str, int] = {}
    if free:
        answer = yield from state.execute(wire.txn([], [wire.get(layout.lock(name)) for name in free]))
        for name, response in zip(free, answer.responses, strict=True):
            for kv in response.response_range.kvs:
                minted[name] = kv.mod_revision
    times: dict[int, tuple[int, int]] = {}
    for lease in {kvs[0].lease for kvs in entries if kvs} - {0}:
        left = yield EtcdCall(LEASE_TIME_TO_LIVE, wire.LeaseTimeToLiveRequest(id=lease))
        times[lease] = (left.ttl, left.granted_ttl)
    return [
        _lock_info(record, name, layout.queue(name), kvs, minted.get(name), times)
        for name, kvs in zip(names, entries, strict=True)
    ]


def _lock_info(
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
        # etcd rounds down to whole seconds: the lock may be held for up to one second longer.
        remaining=float(min(left_s + 1, ttl_s)),
        ttl=float(ttl_s) if ttl_s else None,
        waiters=tuple(describe_holder(queue, other) for other in others),
    )


# --- doctor -----------------------------------------------------------------------------------------------------------
def examine(state: ClusterState, send: Callable[[EtcdCall | CallPair], Any]) -> list[Finding]:
    """Return what is wrong with the members in the URL, with the source's record, and in its queues."""
    try:
        run_generator(read_source(state, ask.ReadSource()), send)
        blocked: list[tuple[str, str]] = run_generator(_find_blocked(state), send)
    except FencelockError as error:
        return [refused_finding("source-refused", error)]
    return [*(_blocked_finding(*one) for one in blocked), *_examine_members(state.client.info)]


def _find_blocked(state: ClusterState) -> Operations:
    """Return the locks whose queue begins with a key that is not a queue entry, each with a description of the key."""
    blocked: list[tuple[str, str]] = []
    after = None
    while names := (yield from read_names(state, after)):
        queues = [state.layout.queue(name) for name in names]
        reads = [wire.get_prefix(queue, limit=1, is_oldest_first=True) for queue in queues]
        answer = yield from state.execute(wire.txn([], reads))
        blocked += [
            (name, describe_holder(queue, kv))
            for name, queue, response in zip(names, queues, answer.responses, strict=True)
            for kv in response.response_range.kvs
            if not is_queue_entry(queue, kv)
        ]
        after = names[-1]
    return blocked


def _blocked_finding(lock: str, what: str) -> Finding:
    message = f"nobody can get lock {lock!r}: first in its queue is {what}"
    return Finding("blocked-queue", message, UNBLOCKING)


def _examine_members(info: EtcdConnectionInfo) -> list[Finding]:
    findings, clusters = [], set()
    for endpoint in info.endpoints:
        alone = info._replace(endpoints=(endpoint,), url=f"etcd://{endpoint}")
        try:
            status = EtcdClient(alone).call(STATUS, wire.StatusRequest(), REQUEST_TIMEOUT_S)
        except FencelockError as error:
            findings.append(_unreachable_finding(endpoint, error))
            continue
        clusters.add(status.header.cluster_id)
        if tuple(map(int, status.version.split(".")[:2])) < OLDEST_VERSION:
            findings.append(_version_finding(endpoint, status.version))
    if len(clusters) > 1:
        message = f"{info.url} names members of {len(clusters)} clusters, whose revisions cannot be compared"
        findings.append(Finding("two-clusters", message, "name the members of one cluster"))
    return findings


def _unreachable_finding(endpoint: str, error: FencelockError) -> Finding:
    message = f"member {endpoint} does not answer ({error}): if another member fails, there is one less to replace it"
    return Finding("member-unreachable", message, "start it, or take it out of the URL")


def _version_finding(endpoint: str, version: str) -> Finding:
    message = f"member {endpoint} runs etcd {version}; fencelock relies on watches and transactions of etcd 3.4"
    return Finding("etcd-too-old", message, "upgrade it to etcd 3.4 or newer")
