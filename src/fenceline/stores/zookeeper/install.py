"""Make a source's record in ZooKeeper, unless there is one.

Promise: safe when run concurrently and again: one of all that try makes the record. A record of another version is
refused, never changed.
"""

from typing import TYPE_CHECKING

from kazoo.exceptions import NodeExistsError

from fenceline.stores.zookeeper.record import new_record

if TYPE_CHECKING:
    from fenceline.stores.zookeeper.source import ZooKeeperSource

PATIENCE_S = 15.0


def install(store: "ZooKeeperSource") -> None:
    """Make the record of a new source, or find that there is one."""
    leave = store.sessions.use()
    try:
        session = store.sessions.any(PATIENCE_S)
        session.make_path(store.layout.reserved, PATIENCE_S)
        making = session.client.create_async(store.layout.source, new_record().value())
        made, found = session.answers([making, session.ask_record()], PATIENCE_S)
        if not isinstance(made, NodeExistsError):
            session.expect_value(made)
        session.heard_record(found)
    finally:
        leave()
