"""What operators ask of a source in ZooKeeper: its state, its locks, a break, a purge, a new epoch.

Promise: a break mints its token in one transaction with the removal of every contender, so that it lies above their
tokens and below every later one's; waiters are ended as well, and enqueue anew. A break that is asked again finds its
own node. An epoch is raised by compare-and-swap on the record. Both leave a node that says who, when and why.
Never: a node removed that ends with no session: it is no contender, whatever its name, and may be guarded.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import Transaction

from fencelock.errors import SourceError, SourceUnavailableError
from fencelock.model import LockInfo, SourceInfo
from fencelock.protocol import source_requests as ask
from fencelock.stores.zookeeper.guard.block import MAX_REQUEST_BYTES
from fencelock.stores.zookeeper.source.inspection import Queue, lock_info, own_nodes, read_queues
from fencelock.stores.zookeeper.source.layout import BreakNode, break_in, is_queue, lock_names
from fencelock.stores.zookeeper.source.record import SourceRecord
from fencelock.stores.zookeeper.source.session import ZooKeeperSession

if TYPE_CHECKING:
    from fencelock.stores.zookeeper.source.store import ZooKeeperSource

MAX_TRIES = 20
PAGE_LOCKS = 200


def read_source(
    store: "ZooKeeperSource", session: ZooKeeperSession, _: ask.ReadSource, request_timeout_s: float
) -> SourceInfo:
    """Return who the source is, and the last transaction as the last token that it can have issued."""
    highest = store.identity.highest_token
    record = read_record(store, session, request_timeout_s)
    info = record.info(session.client.last_zxid)
    if highest > info.last_token:
        store.identity.check_token(info.last_token, highest)
    return info


def read_record(store: "ZooKeeperSource", session: ZooKeeperSession, request_timeout_s: float) -> SourceRecord:
    """Return the record as the leader has it; SourceError if it is another's, or went back."""
    before = store.identity.seen
    asked = [session.client.sync_async(store.layout.source), session.ask_record()]
    _, found = session.answers(asked, request_timeout_s)
    record = session.heard_record(found)
    store.identity.check(record.seen, before)
    return record


# --- inspection -------------------------------------------------------------------------------------------------------
def inspect(
    store: "ZooKeeperSource", session: ZooKeeperSession, request: ask.Inspect, request_timeout_s: float
) -> LockInfo:
    """Return what is known of one lock."""
    record = read_record(store, session, request_timeout_s)
    (queue,) = read_queues(session, [request.lock], request_timeout_s)
    return lock_info(record, queue, own_nodes(store.sessions))


def list_locks(
    store: "ZooKeeperSource", session: ZooKeeperSession, request: ask.ListLocks, request_timeout_s: float
) -> tuple[LockInfo, ...]:
    """Return what is known of the next locks."""
    record = read_record(store, session, request_timeout_s)
    names = [name for name in all_names(session, request_timeout_s) if request.after is None or name > request.after]
    own = own_nodes(store.sessions)
    for first in range(0, len(names), PAGE_LOCKS):
        found = [
            lock_info(record, queue, own)
            for queue in _queues(session, names[first : first + PAGE_LOCKS], request_timeout_s)
        ]
        if found:
            return tuple(found)
    return ()


def _queues(session: ZooKeeperSession, names: list[str], request_timeout_s: float) -> list[Queue]:
    """Return the queues among the nodes of these names; others may keep things of their own beside them."""
    return [queue for queue in read_queues(session, names, request_timeout_s) if queue.found or queue.is_kept]


def all_names(session: ZooKeeperSession, request_timeout_s: float) -> list[str]:
    """Return the names that nodes under the base stand for, in their order."""
    base = session.layout.base
    _, children = session.answers(
        [session.client.sync_async(base), session.client.get_children_async(base)], request_timeout_s
    )
    return lock_names(session.expect_value(children))


# --- break ------------------------------------------------------------------------------------------------------------
def break_lock(
    store: "ZooKeeperSource", session: ZooKeeperSession, request: ask.Break, request_timeout_s: float
) -> ask.Broken:
    """End the lock's lease and its queue, and return the token that was minted for that."""
    record = read_record(store, session, request_timeout_s)
    session.make_path(store.layout.breaks, request_timeout_s)
    path = store.layout.break_of(request.claim)
    for _ in range(MAX_TRIES):
        found = _read_break(session, path, request_timeout_s)
        if found is not None:
            done, zxid = found
            if zxid < record.zxid:
                record = read_record(store, session, request_timeout_s)
            return ask.Broken(record.token(zxid), record.source_id, record.history_id, done.holder)
        (queue,) = read_queues(session, [request.lock], request_timeout_s)
        if _break(store, session, record, request, queue, request_timeout_s):
            _end_what_came_between(session, request, path, request_timeout_s)
        else:
            record = read_record(store, session, request_timeout_s)
    raise SourceUnavailableError(f"lock {request.lock!r}: its queue changed {MAX_TRIES} times while it was broken")


def _read_break(session: ZooKeeperSession, path: str, request_timeout_s: float) -> tuple[BreakNode, int] | None:
    _, found = session.answers([session.client.sync_async(path), session.client.get_async(path)], request_timeout_s)
    if isinstance(found, NoNodeError):
        return None
    value, stat = session.expect_value(found)
    done = break_in(value)
    assert done is not None, f"{path} is no break's"
    return done, stat.czxid


def _break(
    store: "ZooKeeperSource",
    session: ZooKeeperSession,
    record: SourceRecord,
    request: ask.Break,
    queue: Queue,
    request_timeout_s: float,
) -> bool:
    """Remove the queue and leave the break's node, all or nothing; False if something has changed."""
    _check_contenders(queue)
    nodes = tuple(contender.name for contender, _, _ in queue.found)
    done = BreakNode(request.holder, request.reason, request.lock, queue.holder, nodes, _now())
    parent = store.layout.lock(request.lock)
    transaction = session.client.transaction()
    transaction.check(store.layout.source, record.version)
    transaction.create(store.layout.break_of(request.claim), done.value(), acl=list(store.place.acl))
    # The last one first, so that no waiter is told of its predecessor's end before its own.
    for name in reversed(nodes):
        transaction.delete(f"{parent}/{name}")
    if nodes:
        transaction.set_data(parent, done.value())
    _check_size(queue, transaction.operations)
    (results,) = session.expect([transaction.commit_async()], request_timeout_s)
    if is_done := not _is_refused(session, results):
        _end_own(store, done)
    return is_done


def _check_contenders(queue: Queue) -> None:
    """Raise SourceError if a node in the queue is nobody's place: each of those is its session's."""
    for contender, _, stat in queue.found:
        if not stat.ephemeralOwner:
            raise SourceError(
                f"lock {queue.lock!r} cannot be broken: node {contender.name!r} in its queue is called like a "
                f"contender's, but ends with no session, so it is something else that is kept below the lock's own "
                f"node, guarded data for instance. Nothing was done: keep it elsewhere, and the lock can be had again"
            )


def _check_size(queue: Queue, operations: list[Any]) -> None:
    """Raise SourceError if the servers would drop the connection, and the leases of this process with it in doubt."""
    size_bytes = len(Transaction(operations).serialize())
    if size_bytes > MAX_REQUEST_BYTES:
        raise SourceError(
            f"lock {queue.lock!r} cannot be broken: to remove all {len(queue.found)} who hold it or wait takes "
            f"{size_bytes} bytes, and ZooKeeper takes {MAX_REQUEST_BYTES} in one request by default. Nothing was done: "
            f"have some of them give up, or end every lease of the source by `fencelock epoch --raise --reason …`"
        )


def _is_refused(session: ZooKeeperSession, results: list[Any]) -> bool:
    """Tell whether a transaction was refused because something has changed; raise any other refusal."""
    errors = [one for one in results if isinstance(one, Exception)]
    for error in errors:
        if not isinstance(
            error, RolledBackError | NoNodeError | BadVersionError | NodeExistsError | RuntimeInconsistency
        ):
            session.expect_value(error)
    return bool(errors)


def _end_own(store: "ZooKeeperSource", done: BreakNode) -> None:
    """Tell this process's own claims, which need not ask ZooKeeper."""
    for session in store.sessions.all():
        for standing in list(session.standing.values()):
            if standing.lock == done.lock and done.ended(standing.claim):
                session.end(standing, done.reason())
                session.strike_out(standing)


def _end_what_came_between(session: ZooKeeperSession, request: ask.Break, path: str, request_timeout_s: float) -> None:
    """Remove contenders that arrived after the queue was read and before the break: their tokens are below its own."""
    found = _read_break(session, path, request_timeout_s)
    (queue,) = read_queues(session, [request.lock], request_timeout_s)
    if found is not None:
        _remove_older(session, queue, found[1], request_timeout_s)


# --- purge and epochs -------------------------------------------------------------------------------------------------
def purge(store: "ZooKeeperSource", session: ZooKeeperSession, _: ask.Purge, request_timeout_s: float) -> int:
    """Remove the nodes of locks that nobody holds or waits for, and return how many there were."""
    read_record(store, session, request_timeout_s)
    names = all_names(session, request_timeout_s)
    pages = (names[first : first + PAGE_LOCKS] for first in range(0, len(names), PAGE_LOCKS))
    return sum(_purge(session, page, request_timeout_s) for page in pages)


def _purge(session: ZooKeeperSession, names: list[str], request_timeout_s: float) -> int:
    client = session.client
    paths = [session.layout.lock(name) for name in names]
    with client:
        reading = [client.get_async(path) for path in paths]
    found = session.answers(reading, request_timeout_s)
    values = [(path, *one) for path, one in zip(paths, found, strict=True) if not isinstance(one, Exception)]
    idle = [(path, stat.version) for path, value, stat in values if not stat.numChildren and is_queue(value)]
    # A node that has got a child since is not removed: ZooKeeper itself sees to that.
    with client:
        removing = [client.delete_async(path, version=version) for path, version in idle]
    removed = session.answers(removing, request_timeout_s)
    return sum(one is True for one in removed)


def raise_epoch(
    store: "ZooKeeperSource", session: ZooKeeperSession, request: ask.RaiseEpoch, request_timeout_s: float
) -> SourceInfo | None:
    """Begin a new history, and remove every contender of the old one."""
    session.make_path(store.layout.epochs, request_timeout_s)
    asked = [session.client.sync_async(store.layout.source), session.ask_record()]
    _, found = session.answers(asked, request_timeout_s)
    record = session.heard_record(found)
    if record.history_id != request.history_id:
        return None
    zxid = session.client.last_zxid
    raised = record.raised(zxid, store.identity.highest_token, request.reason)
    transaction = session.client.transaction()
    transaction.set_data(store.layout.source, raised.value(), version=record.version)
    note = f"{store.layout.epochs}/{raised.epoch}"
    transaction.create(note, raised.audit(_now()), acl=list(store.place.acl))
    (results,) = session.expect([transaction.commit_async()], request_timeout_s)
    if _is_refused(session, results):
        return None
    record = read_record(store, session, request_timeout_s)
    for name in all_names(session, request_timeout_s):
        (queue,) = read_queues(session, [name], request_timeout_s)
        _remove_older(session, queue, record.zxid, request_timeout_s)
    return raised.info(zxid)


def _remove_older(session: ZooKeeperSession, queue: Queue, zxid: int, request_timeout_s: float) -> None:
    """Remove the contenders that were made before a transaction."""
    client, parent = session.client, session.layout.lock(queue.lock)
    older = [contender.name for contender, _, stat in queue.found if stat.ephemeralOwner and stat.czxid < zxid]
    with client:
        asked = [client.delete_async(f"{parent}/{name}") for name in reversed(older)]  # As in `_break`.
    session.answers(asked, request_timeout_s)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


ANSWERS: dict[type, Callable[..., ask.SourceReply]] = {
    ask.ReadSource: read_source,
    ask.Inspect: inspect,
    ask.ListLocks: list_locks,
    ask.Break: break_lock,
    ask.Purge: purge,
    ask.RaiseEpoch: raise_epoch,
}
"""How each request is answered that needs no claim of this process."""
