"""What ZooKeeper tells of locks: who holds them, who waits, and why a lease was lost.

Promise: what is shown is as new as the leader, by `sync`. A lock that nobody holds shows no token: its nodes are gone,
and their czxids with them. The time left is exact for this process's own leases; of another's only its ttl is known,
and that its session lives.
"""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.security import Permissions

from fencelock.clock import boottime_ms
from fencelock.errors import FencelockError, SourceError
from fencelock.model import Finding, LockInfo
from fencelock.protocol.source_requests import ReadSource
from fencelock.stores.zookeeper.source.layout import ZooKeeperContender, break_in, contenders, holder_in, is_queue
from fencelock.stores.zookeeper.source.queue_entry import ZooKeeperQueueEntry
from fencelock.stores.zookeeper.source.record import SourceRecord
from fencelock.stores.zookeeper.source.session import ZooKeeperSession
from fencelock.stores.zookeeper.source.sessions import ZooKeeperSessions

if TYPE_CHECKING:
    from fencelock.stores.zookeeper.source.store import ZooKeeperSource

_MS_PER_S = 1000
EXAMINE_S = 5.0


class Queue(NamedTuple):
    """A lock's contenders in their order, each with its node's value and stat."""

    lock: str
    found: tuple[tuple[ZooKeeperContender, bytes, Any], ...]
    is_kept: bool = False
    """Whether its node says that it is a lock's, though nobody may be there."""

    @property
    def holder(self) -> str | None:
        """Who holds the lock."""
        return holder_in(self.found[0][1])[0] if self.found else None


def read_queues(session: ZooKeeperSession, locks: Sequence[str], request_timeout_s: float) -> list[Queue]:
    """Return the queues of locks, in two round trips for all of them together."""
    client, layout = session.client, session.layout
    with client:
        asked = [client.sync_async(layout.base), *(client.get_children_async(layout.lock(lock)) for lock in locks)]
        asked += [client.get_async(layout.lock(lock)) for lock in locks]
    _, *found = session.answers(asked, request_timeout_s)
    nodes, parents = found[: len(locks)], found[len(locks) :]
    queues = [[] if isinstance(one, NoNodeError) else contenders(session.expect_value(one)) for one in nodes]
    kept = [not isinstance(one, NoNodeError) and is_queue(session.expect_value(one)[0]) for one in parents]
    paired = list(zip(locks, queues, kept, strict=True))
    with client:
        reading = [client.get_async(f"{layout.lock(lock)}/{one.name}") for lock, queue, _ in paired for one in queue]
    values = iter(session.answers(reading, request_timeout_s))
    return [
        Queue(
            lock, tuple((one, *value) for one in queue if not isinstance(value := next(values), NoNodeError)), is_kept
        )
        for lock, queue, is_kept in paired
    ]


def own_nodes(sessions: ZooKeeperSessions) -> dict[str, ZooKeeperQueueEntry]:
    """Return the claims of this process by the names of their nodes."""
    standing = (one for session in sessions.all() for one in list(session.standing.values()))
    return {one.path.rpartition("/")[2]: one for one in standing if one.path is not None}


def lock_info(record: SourceRecord, queue: Queue, own: Mapping[str, ZooKeeperQueueEntry]) -> LockInfo:
    """Return a queue as people see it."""
    if not queue.found:
        return LockInfo(queue.lock, token=None, holder=None, remaining=0.0, ttl=None, waiters=(), is_kept=queue.is_kept)
    holders = [holder_in(value) for _, value, _ in queue.found]
    (first, _, stat), (holder, ttl_ms) = queue.found[0], holders[0]
    standing = own.get(first.name)
    remaining_ms = (ttl_ms or 0) if standing is None else max(0, standing.deadline_ms - boottime_ms())
    return LockInfo(
        queue.lock,
        token=record.token(stat.czxid),
        holder=holder,
        remaining=remaining_ms / _MS_PER_S,
        ttl=None if ttl_ms is None else ttl_ms / _MS_PER_S,
        waiters=tuple(name for name, _ in holders[1:]),
    )


def why_lost(sessions: ZooKeeperSessions, lock: str, claim: str, request_timeout_s: float) -> str:
    """Return why a claim holds the lock no more, and who does, as far as ZooKeeper can be asked."""
    reason, session = sessions.ended.reason(claim), sessions.connected()
    if session is None:
        return reason
    try:
        (broken,) = session.answers([session.client.get_async(session.layout.lock(lock))], request_timeout_s)
        (queue,) = read_queues(session, [lock], request_timeout_s)
        record = session.record
    except FencelockError:
        return reason
    if not isinstance(broken, Exception) and (told := break_in(broken[0])) is not None and told.ended(claim):
        return told.reason()
    if record is not None and queue.found:
        return f"{reason}; {queue.holder} holds the lock now, with token {record.token(queue.found[0][2].czxid)}"
    return reason


def examine(store: "ZooKeeperSource") -> list[Finding]:
    """Return what in the ensemble's set-up would break the promise."""
    connection = store.connect(request_timeout_s=EXAMINE_S)
    try:
        connection.perform(ReadSource())
        session = store.sessions.any(EXAMINE_S)
        return [*_open_to_all(session), *_wrong_tick(session)]
    except SourceError as error:
        return [Finding("source-refused", str(error), "do what the message says, then run doctor again")]
    finally:
        connection.close()


def _open_to_all(session: ZooKeeperSession) -> list[Finding]:
    """Tell whether anybody may change the source's record."""
    (found,) = session.expect([session.client.get_acls_async(session.layout.source)], EXAMINE_S)
    if all(entry.id.scheme != "world" or not entry.perms & ~Permissions.READ for entry in found[0]):
        return []
    return [
        Finding(
            "open-to-all",
            f"whoever reaches the servers may change {session.place.url}: end leases, and give himself any token",
            "name a user in the URL and install the source under another base, or have the access lists changed",
        )
    ]


def _wrong_tick(session: ZooKeeperSession) -> list[Finding]:
    """Tell whether the servers' tick is another than the URL says, where they tell it."""
    try:
        told = re.search(r"^tickTime=(\d+)$", session.client.command(b"conf"), re.MULTILINE)
    except (OSError, KazooException):
        return []
    if told is None or int(told[1]) == session.place.tick_ms:
        return []
    return [
        Finding(
            "wrong-tick",
            f"{session.place.url}: the servers' tickTime is {told[1]} ms, and the URL says {session.place.tick_ms}, so "
            f"the time left to leases is miscounted",
            f"say tick_ms={told[1]} in the URL",
        )
    ]
