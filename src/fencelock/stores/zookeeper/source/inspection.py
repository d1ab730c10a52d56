"""Read a source in ZooKeeper: its record, its locks and their queues, why a lease was lost, and what `doctor` reports.

Promise: the result is as new as the leader's state, because each read follows a `sync`. A lock that nobody holds shows
no token: its nodes are gone, and their czxids with them. The time left is exact for this process's own leases; of
another process's lease only the ttl is known, and that its session lives.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.security import Permissions

from fencelock.clock import boottime_ms
from fencelock.errors import FencelockError, SourceError
from fencelock.model import Finding, LockInfo, SourceInfo, one_way
from fencelock.protocol import source_requests as ask
from fencelock.stores.errors import refused_finding
from fencelock.stores.source_clock import SourceIdentity
from fencelock.stores.zookeeper.source.layout import (
    SourceRecord,
    ZooKeeperContender,
    decode_break,
    decode_holder,
    is_queue_node,
    lock_names,
    node_prefix,
    parse_queue,
)
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.session import ZooKeeperSession
from fencelock.stores.zookeeper.source.sessions import ZooKeeperSessions

_MS_PER_S = 1000
EXAMINE_S = 5.0
PAGE_LOCKS = 200
HELD_MS = 1
"""The time left, in a check, to a lease of another process: it is held, and ZooKeeper does not tell for how long."""


class OperatorContext(NamedTuple):
    """What a request needs that concerns no claim of this process."""

    sessions: ZooKeeperSessions
    identity: SourceIdentity
    session: ZooKeeperSession
    """The one of the sessions over which the request is sent."""
    request_timeout_s: float

    def read_record(self) -> SourceRecord:
        """Return the record as the leader has it; SourceError if it is another source's, or went back."""
        before = self.identity.seen
        path = self.session.layout.source
        requests = [self.session.client.sync_async(path), self.session.request_record()]
        _, found = self.session.answers(requests, self.request_timeout_s)
        record = self.session.decode_record(found)
        self.identity.check(record.seen, before)
        self.identity.note_token(self.session.last_token())
        return record

    def read_queues(self, locks: Sequence[str]) -> "list[LockQueue]":
        """Return the queues of these locks, in two round trips for all of them together."""
        return read_queues(self.session, locks, self.request_timeout_s)

    def lock_names(self) -> list[str]:
        """Return the names that the nodes under the base stand for, in order."""
        base, client = self.session.layout.base, self.session.client
        requests = [client.sync_async(base), client.get_children_async(base)]
        _, children = self.session.answers(requests, self.request_timeout_s)
        return lock_names(self.session.value_of(children))


class LockQueue(NamedTuple):
    """The contenders of a lock in order, each with its node's value and stat."""

    lock: str
    found: tuple[tuple[ZooKeeperContender, bytes, Any], ...]
    is_kept: bool = False
    """Whether the queue's own node says that it belongs to a lock, even if the queue is empty."""

    @property
    def holder(self) -> str | None:
        """The holder of the lock, for people."""
        return decode_holder(self.found[0][1])[0] if self.found else None


def read_queues(session: ZooKeeperSession, locks: Sequence[str], request_timeout_s: float) -> list[LockQueue]:
    """Return the queues of these locks, in two round trips for all of them together."""
    client, layout = session.client, session.layout
    with client:
        requests = [client.sync_async(layout.base), *(client.get_children_async(layout.lock(lock)) for lock in locks)]
        requests += [client.get_async(layout.lock(lock)) for lock in locks]
    _, *found = session.answers(requests, request_timeout_s)
    nodes, parents = found[: len(locks)], found[len(locks) :]
    queues = [[] if isinstance(one, NoNodeError) else parse_queue(session.value_of(one)) for one in nodes]
    kept = [not isinstance(one, NoNodeError) and is_queue_node(session.value_of(one)[0]) for one in parents]
    paired = list(zip(locks, queues, kept, strict=True))
    with client:
        reads = [client.get_async(f"{layout.lock(lock)}/{one.name}") for lock, queue, _ in paired for one in queue]
    values = iter(session.answers(reads, request_timeout_s))
    return [
        LockQueue(
            # A contender that left between the two round trips is left out.
            lock,
            tuple((one, *value) for one in queue if not isinstance(value := next(values), NoNodeError)),
            is_kept,
        )
        for lock, queue, is_kept in paired
    ]


# --- requests ---------------------------------------------------------------------------------------------------------
def read_source(context: OperatorContext, _: ask.ReadSource) -> SourceInfo:
    """Return the source's identity, with the last transaction as the last token that it can have issued."""
    highest = context.identity.highest_token
    record = context.read_record()
    info = record.info(context.session.client.last_zxid)
    if highest > info.last_token:
        context.identity.check_token(info.last_token, highest)
    return info


def inspect(context: OperatorContext, request: ask.Inspect) -> LockInfo:
    """Return what is known of one lock."""
    record = context.read_record()
    (queue,) = context.read_queues([request.lock])
    return lock_info(record, queue, own_nodes(context.sessions))


def check(context: OperatorContext, request: ask.Check) -> ask.Checked:
    """Return whether the lease of a proof holds the lock: a `sync` with two reads, and a read of the holder's node.

    ZooKeeper tells that a session lives, and not for how long. So another process's lease has HELD_MS left, which says
    that it held the lock and promises nothing beyond; for this process's own leases the time left is known.
    """
    session, client = context.session, context.session.client
    queue_path, before = session.layout.lock(request.lock), context.identity.seen
    with client:
        requests = [client.sync_async(queue_path), session.request_record(), client.get_children_async(queue_path)]
    _, found, children = session.answers(requests, context.request_timeout_s)
    record = session.decode_record(found)
    context.identity.check(record.seen, before)
    queue = [] if isinstance(children, NoNodeError) else parse_queue(session.value_of(children))
    stat = None
    if queue:
        head = client.exists_async(f"{queue_path}/{queue[0].name}")
        (stat,) = session.values_of([head], context.request_timeout_s)
    if stat is None or not stat.ephemeralOwner or stat.czxid < record.zxid:
        return ask.Checked(0, None)
    digest = one_way(request.proof)
    is_holder = request.history_id == record.history_id and queue[0].name.startswith(node_prefix(digest))
    return ask.Checked(_time_left(context.sessions, digest) if is_holder else 0, record.token(stat.czxid))


def _time_left(sessions: ZooKeeperSessions, digest: str) -> int:
    own = sessions.find_claim(digest)
    if own is None:
        return HELD_MS
    session, entry = own
    return max(0, min(session.lives_until_ms, entry.deadline_ms) - boottime_ms())


def list_locks(context: OperatorContext, request: ask.ListLocks) -> tuple[LockInfo, ...]:
    """Return the first page of locks after a name that holds at least one lock."""
    record = context.read_record()
    names = [name for name in context.lock_names() if request.after is None or name > request.after]
    own = own_nodes(context.sessions)
    for first in range(0, len(names), PAGE_LOCKS):
        queues = context.read_queues(names[first : first + PAGE_LOCKS])
        # Other programs may keep their own nodes beside the locks: those are not queues.
        found = [lock_info(record, queue, own) for queue in queues if queue.found or queue.is_kept]
        if found:
            return tuple(found)
    return ()


def own_nodes(sessions: ZooKeeperSessions) -> dict[str, ZooKeeperQueueEntry]:
    """Return the queue entries of this process by the names of their nodes."""
    entries = (one for session in sessions.open_sessions() for one in list(session.entries.values()))
    return {one.path.rpartition("/")[2]: one for one in entries if one.path is not None}


def lock_info(record: SourceRecord, queue: LockQueue, own: Mapping[str, ZooKeeperQueueEntry]) -> LockInfo:
    """Return a queue as people see it."""
    if not queue.found:
        return LockInfo(queue.lock, token=None, holder=None, remaining=0.0, ttl=None, waiters=(), is_kept=queue.is_kept)
    holders = [decode_holder(value) for _, value, _ in queue.found]
    (first, _, stat), (holder, ttl_ms) = queue.found[0], holders[0]
    entry = own.get(first.name)
    remaining_ms = (ttl_ms or 0) if entry is None else max(0, entry.deadline_ms - boottime_ms())
    return LockInfo(
        queue.lock,
        token=record.token(stat.czxid),
        holder=holder,
        remaining=remaining_ms / _MS_PER_S,
        ttl=None if ttl_ms is None else ttl_ms / _MS_PER_S,
        waiters=tuple(name for name, _ in holders[1:]),
    )


def why_lost(sessions: ZooKeeperSessions, lock: str, digest: str, request_timeout_s: float) -> str:
    """Return why a claim no longer holds the lock, and who does, as far as ZooKeeper can be asked."""
    reason, session = sessions.ended.reason(digest), sessions.connected_session()
    if session is None:
        return reason
    try:
        (broken,) = session.answers([session.client.get_async(session.layout.lock(lock))], request_timeout_s)
        (queue,) = read_queues(session, [lock], request_timeout_s)
        record = session.record
    except FencelockError:
        return reason
    if not isinstance(broken, Exception) and (done := decode_break(broken[0])) is not None and done.ended(digest):
        return done.reason()
    if record is not None and queue.found:
        return f"{reason}; {queue.holder} holds the lock now, with token {record.token(queue.found[0][2].czxid)}"
    return reason


# --- doctor -----------------------------------------------------------------------------------------------------------
def examine(sessions: ZooKeeperSessions, identity: SourceIdentity) -> list[Finding]:
    """Return what in the ensemble's setup breaks the source's guarantees."""
    remove_user = sessions.add_user()
    try:
        session = sessions.any_session(EXAMINE_S)
        read_source(OperatorContext(sessions, identity, session, EXAMINE_S), ask.ReadSource())
        return [*_open_to_all(session), *_wrong_tick(session)]
    except SourceError as error:
        return [refused_finding("source-refused", error)]
    finally:
        remove_user()


def _open_to_all(session: ZooKeeperSession) -> list[Finding]:
    """Return a finding if everybody may change the source's record."""
    (found,) = session.values_of([session.client.get_acls_async(session.layout.source)], EXAMINE_S)
    if all(entry.id.scheme != "world" or not entry.perms & ~Permissions.READ for entry in found[0]):
        return []
    return [
        Finding(
            "open-to-all",
            f"everybody who reaches the servers may change {session.info.url}: end leases, and issue themselves any "
            f"token",
            "name a user in the URL and install the source under another base, or have the access lists changed",
        )
    ]


def _wrong_tick(session: ZooKeeperSession) -> list[Finding]:
    """Return a finding if the servers report another tick than the URL's."""
    try:
        reported = re.search(r"^tickTime=(\d+)$", session.client.command(b"conf"), re.MULTILINE)
    except (OSError, KazooException):
        return []
    if reported is None or int(reported[1]) == session.info.tick_ms:
        return []
    return [
        Finding(
            "wrong-tick",
            f"{session.info.url}: the servers' tickTime is {reported[1]} ms, and the URL says {session.info.tick_ms}, "
            f"so the time left to leases is miscounted",
            f"write tick_ms={reported[1]} into the URL",
        )
    ]
