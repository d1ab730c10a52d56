"""Make a source's record in ZooKeeper, unless there is one.

Promise: safe when run concurrently and again: one of all that try makes the record. A record of another version is
refused, never changed. No record is made where a guard has marks, or within a resource of one above: locks' queues, and
breaks, would write to guarded nodes.
"""

from typing import TYPE_CHECKING

from kazoo.exceptions import NodeExistsError, NoNodeError

from fencelock.errors import SourceError
from fencelock.stores.quorum.encoding import RESERVED
from fencelock.stores.zookeeper.source.record import new_record
from fencelock.stores.zookeeper.source.session import ZooKeeperSession

if TYPE_CHECKING:
    from fencelock.stores.zookeeper.source.store import ZooKeeperSource

REQUEST_TIMEOUT_S = 15.0


def install(store: "ZooKeeperSource") -> None:
    """Make the record of a new source, or find that there is one."""
    leave = store.sessions.use()
    try:
        session = store.sessions.any(REQUEST_TIMEOUT_S)
        asked = [session.client.sync_async(store.layout.source), session.ask_record()]
        _, found = session.answers(asked, REQUEST_TIMEOUT_S)
        if isinstance(found, NoNodeError):
            _check_guards(session)
            found = _make(session)
        session.heard_record(found)
    finally:
        leave()


def _make(session: ZooKeeperSession) -> object:
    """Make the record, and return what is there then: another's, if that was quicker."""
    session.make_path(session.layout.reserved, REQUEST_TIMEOUT_S)
    making = session.client.create_async(session.layout.source, new_record().value())
    made, found = session.answers([making, session.ask_record()], REQUEST_TIMEOUT_S)
    if not isinstance(made, NodeExistsError):
        session.expect_value(made)
    return found


def _check_guards(session: ZooKeeperSession) -> None:
    """Raise SourceError if guarded nodes are there; what the URL's user may not read counts for nothing."""
    base = session.layout.base
    parts = base.split("/")
    above = [("/".join(parts[:length]), parts[length]) for length in range(2, len(parts))]
    client = session.client
    asked = [client.get_children_async(f"{base}/{RESERVED}/marks")]
    asked += [client.exists_async(f"{outer}/{RESERVED}/marks/{part}") for outer, part in above]
    own, *resources = session.answers(asked, REQUEST_TIMEOUT_S)
    clashes = ["is the place of a guard's marks and data"] if own and not isinstance(own, Exception) else []
    clashes += [
        f"is within a resource of the guard at {outer}"
        for (outer, _), stat in zip(above, resources, strict=True)
        if stat is not None and not isinstance(stat, Exception)
    ]
    if clashes:
        raise SourceError(
            f"{session.place.url} {clashes[0]}, and its locks' queues would be in the way of that: nothing was "
            f"installed. Name another base, in the URL's path"
        )
