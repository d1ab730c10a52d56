"""What operators change in a source in ZooKeeper: install it, break a lock, purge idle locks, raise the epoch.

Promise: `install` is safe when it runs concurrently and again: one of all callers makes the record; a record of another
version is refused, never changed. No record is made where a guard has marks, or within a resource of a guard above:
the queues of locks, and breaks, would write to guarded nodes. A break mints its token in one transaction with the
removal of every contender, so its token is above theirs and below every later one; waiters end as well, and enqueue
again. A break that is requested again finds its own node. An epoch is raised by compare-and-swap on the record. Both
leave a node that says who, when and why.
Never: a node removed that is not ephemeral: it is no contender, whatever its name, and may be guarded data.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.serialization import Transaction

from fencelock.errors import SourceError, SourceUnavailableError
from fencelock.model import SourceInfo
from fencelock.protocol import source_requests as ask
from fencelock.stores.encoding import RESERVED
from fencelock.stores.zookeeper.connection.client import MAX_REQUEST_BYTES
from fencelock.stores.zookeeper.source.inspection import (
    PAGE_LOCKS,
    LockQueue,
    OperatorContext,
    check,
    inspect,
    list_locks,
    read_source,
)
from fencelock.stores.zookeeper.source.layout import (
    BreakNode,
    SourceRecord,
    decode_break,
    is_queue_node,
    new_record,
)
from fencelock.stores.zookeeper.source.session import ZooKeeperSession
from fencelock.stores.zookeeper.source.sessions import ZooKeeperSessions

MAX_TRIES = 20
INSTALL_S = 15.0


# --- install ----------------------------------------------------------------------------------------------------------
def install(sessions: ZooKeeperSessions) -> None:
    """Make the record of a new source, or check the record that exists."""
    remove_user = sessions.add_user()
    try:
        session = sessions.any_session(INSTALL_S)
        # Without `sync` the server may not have heard yet of a record that another process has made.
        requests = [session.client.sync_async(session.layout.source), session.request_record()]
        _, found = session.answers(requests, INSTALL_S)
        if isinstance(found, NoNodeError):
            _check_guards(session)
            found = _create_record(session)
        session.decode_record(found)
    finally:
        remove_user()


def _create_record(session: ZooKeeperSession) -> object:
    """Create the record, and return the one that exists then: another caller's, if that caller was faster."""
    session.ensure_path(session.layout.reserved, INSTALL_S)
    creation = session.client.create_async(session.layout.source, new_record().value())
    made, found = session.answers([creation, session.request_record()], INSTALL_S)
    if not isinstance(made, NodeExistsError):
        session.value_of(made)
    return found


def _check_guards(session: ZooKeeperSession) -> None:
    """Raise SourceError if the base is within a guard's nodes, as far as the URL's user may read them."""
    base = session.layout.base
    parts = base.split("/")
    above = [("/".join(parts[:length]), parts[length]) for length in range(2, len(parts))]
    client = session.client
    requests = [client.get_children_async(f"{base}/{RESERVED}/marks")]
    requests += [client.exists_async(f"{outer}/{RESERVED}/marks/{part}") for outer, part in above]
    own, *resources = session.answers(requests, INSTALL_S)
    conflicts = ["is the place of a guard's marks and data"] if own and not isinstance(own, Exception) else []
    conflicts += [
        f"is within a resource of the guard at {outer}"
        for (outer, _), stat in zip(above, resources, strict=True)
        if stat is not None and not isinstance(stat, Exception)
    ]
    if conflicts:
        raise SourceError(
            f"{session.info.url} {conflicts[0]}, so the queues of its locks would conflict with it: nothing was "
            f"installed. Name another base in the URL's path"
        )


# --- break ------------------------------------------------------------------------------------------------------------
def break_lock(context: OperatorContext, request: ask.Break) -> ask.Broken:
    """End the lock's lease and its queue, and return the token that was minted for that."""
    record, layout = context.read_record(), context.session.layout
    context.session.ensure_path(layout.breaks, context.request_timeout_s)
    path = layout.break_of(request.claim)
    for _ in range(MAX_TRIES):
        found = _read_break(context, path)
        if found is not None:
            # The record may have another offset by now: the epoch was raised since an earlier request's break.
            done, zxid = found
            # Here, so that it is done also if the reply to the transaction was lost: contenders that arrived after the
            # queue was read and before the break have tokens below its own.
            (queue,) = context.read_queues([request.lock])
            _remove_older(context, queue, zxid)
            token = record._replace(offset=int(done.offset)).token(zxid)
            return ask.Broken(token, record.source_id, record.history_id, done.holder)
        (queue,) = context.read_queues([request.lock])
        if not _break(context, record, request, queue):
            record = context.read_record()
    raise SourceUnavailableError(f"lock {request.lock!r}: its queue changed {MAX_TRIES} times while it was broken")


def _read_break(context: OperatorContext, path: str) -> tuple[BreakNode, int] | None:
    session, client = context.session, context.session.client
    _, found = session.answers([client.sync_async(path), client.get_async(path)], context.request_timeout_s)
    if isinstance(found, NoNodeError):
        return None
    value, stat = session.value_of(found)
    done = decode_break(value)
    assert done is not None, f"{path} is not a break's node"
    return done, stat.czxid


def _break(context: OperatorContext, record: SourceRecord, request: ask.Break, queue: LockQueue) -> bool:
    """Remove the queue and create the break's node, all or nothing; False if the record or the queue has changed."""
    _check_contenders(queue)
    session = context.session
    nodes = tuple(contender.name for contender, _, _ in queue.found)
    offset = str(record.offset)
    done = BreakNode(request.holder, request.reason, request.lock, queue.holder, nodes, _now(), offset)
    parent = session.layout.lock(request.lock)
    transaction = session.client.transaction()
    # The token has this record's offset, so a raise of the epoch in between has to refuse the break.
    transaction.check(session.layout.source, record.version)
    transaction.create(session.layout.break_of(request.claim), done.value(), acl=list(session.info.acl))
    # From the last to the first, so that no waiter learns of its predecessor's end before its own.
    for name in reversed(nodes):
        transaction.delete(f"{parent}/{name}")
    if nodes:
        transaction.set_data(parent, done.value())
    _check_size(queue, transaction.operations)
    (results,) = session.values_of([transaction.commit_async()], context.request_timeout_s)
    if is_done := not _is_refused(session, results):
        _end_own_claims(context.sessions, done)
    return is_done


def _check_contenders(queue: LockQueue) -> None:
    """Raise SourceError if the queue contains a node that is not ephemeral: each contender's node is."""
    for contender, _, stat in queue.found:
        if not stat.ephemeralOwner:
            raise SourceError(
                f"lock {queue.lock!r} cannot be broken: node {contender.name!r} in its queue is named like a "
                f"contender's, but ends with no session, so it is something else that is kept below the lock's own "
                f"node, guarded data for instance. Nothing was done: keep it elsewhere, and the lock becomes free"
            )


def _check_size(queue: LockQueue, operations: list[Any]) -> None:
    """Raise SourceError if the request is too large: the servers would drop the connection of this process's leases."""
    size_bytes = len(Transaction(operations).serialize())
    if size_bytes > MAX_REQUEST_BYTES:
        raise SourceError(
            f"lock {queue.lock!r} cannot be broken: to remove all {len(queue.found)} who hold it or wait takes "
            f"{size_bytes} bytes, and ZooKeeper takes {MAX_REQUEST_BYTES} in one request by default. Nothing was done: "
            f"have some of them give up, or end every lease of the source by `fencelock epoch --raise --reason …`"
        )


def _is_refused(session: ZooKeeperSession, results: list[Any]) -> bool:
    """Return whether a transaction was refused because something had changed; raise any other refusal."""
    errors = [one for one in results if isinstance(one, Exception)]
    for error in errors:
        if not isinstance(
            error, RolledBackError | NoNodeError | BadVersionError | NodeExistsError | RuntimeInconsistency
        ):
            session.value_of(error)
    return bool(errors)


def _end_own_claims(sessions: ZooKeeperSessions, done: BreakNode) -> None:
    """End this process's own broken claims at once, without asking ZooKeeper."""
    for session in sessions.open_sessions():
        for entry in list(session.entries.values()):
            if entry.lock == done.lock and done.ended(entry.digest):
                session.end(entry, done.reason())
                session.discard(entry)


# --- purge and epochs -------------------------------------------------------------------------------------------------
def purge(context: OperatorContext, _: ask.Purge) -> int:
    """Remove the nodes of locks that nobody holds or waits for, and return how many there were."""
    context.read_record()
    names = context.lock_names()
    pages = (names[first : first + PAGE_LOCKS] for first in range(0, len(names), PAGE_LOCKS))
    return sum(_purge(context, page) for page in pages)


def _purge(context: OperatorContext, names: list[str]) -> int:
    session, client = context.session, context.session.client
    paths = [session.layout.lock(name) for name in names]
    with client:
        reads = [client.get_async(path) for path in paths]
    found = session.answers(reads, context.request_timeout_s)
    values = [(path, *one) for path, one in zip(paths, found, strict=True) if not isinstance(one, Exception)]
    idle = [(path, stat.version) for path, value, stat in values if not stat.numChildren and is_queue_node(value)]
    # ZooKeeper itself refuses to remove a node that has got a child since.
    with client:
        deletions = [client.delete_async(path, version=version) for path, version in idle]
    removed = session.answers(deletions, context.request_timeout_s)
    return sum(one is True for one in removed)


def raise_epoch(context: OperatorContext, request: ask.RaiseEpoch) -> SourceInfo | None:
    """Begin a new history, and remove every contender of the old one."""
    session, layout = context.session, context.session.layout
    session.ensure_path(layout.epochs, context.request_timeout_s)
    requests = [session.client.sync_async(layout.source), session.request_record()]
    _, found = session.answers(requests, context.request_timeout_s)
    # Not checked against what was seen before: raising the epoch is the remedy for a source that went back.
    record = session.decode_record(found)
    if record.history_id != request.history_id:
        return None
    zxid = session.client.last_zxid
    raised = record.raised(zxid, context.identity.highest_token, request.reason)
    transaction = session.client.transaction()
    transaction.set_data(layout.source, raised.value(), version=record.version)
    transaction.create(f"{layout.epochs}/{raised.epoch}", raised.audit(_now()), acl=list(session.info.acl))
    (results,) = session.values_of([transaction.commit_async()], context.request_timeout_s)
    if _is_refused(session, results):
        return None
    record = context.read_record()
    for name in context.lock_names():
        (queue,) = context.read_queues([name])
        _remove_older(context, queue, record.zxid)
    return raised.info(zxid)


def _remove_older(context: OperatorContext, queue: LockQueue, zxid: int) -> None:
    """Remove the contenders that were created before a transaction."""
    session, client = context.session, context.session.client
    parent = session.layout.lock(queue.lock)
    older = [contender.name for contender, _, stat in queue.found if stat.ephemeralOwner and stat.czxid < zxid]
    with client:
        # From the last to the first, as in `_break`.
        requests = [client.delete_async(f"{parent}/{name}") for name in reversed(older)]
    session.answers(requests, context.request_timeout_s)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


ANSWERS: dict[type, Callable[[OperatorContext, Any], ask.SourceReply]] = {
    ask.ReadSource: read_source,
    ask.Inspect: inspect,
    ask.Check: check,
    ask.ListLocks: list_locks,
    ask.Break: break_lock,
    ask.Purge: purge,
    ask.RaiseEpoch: raise_epoch,
}
"""What answers each request that concerns no claim of this process."""
