"""The holder's own node, for a guard on the same servers as its locks (`locks=/base` in the guard's URL).

Promise: the node is read after the marks were read as of now, so its state is not older. It is found by the lease's
digest, and its token is compared. The block then relies on this node and on the source's record: once the node is gone,
or the epoch was raised, nothing of the block is written.
Never: the node of another lease.
"""

from fencelock.model import Sequencer
from fencelock.stores.optimistic.effects import Operations
from fencelock.stores.quorum.colocated import RememberedKeys, check_source, lease_is_over, no_source
from fencelock.stores.zookeeper.guard.block import ZooKeeperCondition
from fencelock.stores.zookeeper.source.layout import (
    ZooKeeperLayout,
    decode_record_node,
    node_prefix,
)


class ZooKeeperColocatedLocks:
    """The source of locks that is on the guard's own servers."""

    def __init__(self, base: str) -> None:
        self._layout = ZooKeeperLayout(base)
        self._found: RememberedKeys[str] = RememberedKeys()

    def conditions(self, sequencer: Sequencer) -> Operations:
        """Return what must stay unchanged while the lease is not over; GuardError if it is over now."""
        where = self._layout.base
        node = self._found.of(sequencer) or (yield from self._search(sequencer))
        paths = [self._layout.source, node] if node else [self._layout.source]
        stored, *stats = yield lambda client: client.get_many(paths)
        if stored is None:
            raise no_source(where)
        value, found = stored
        record = decode_record_node(value, found, where)
        check_source(sequencer, record.source_id, where)
        stat = stats[0][1] if stats and stats[0] else None
        if stat is None or record.history_id != sequencer.history_id or record.token(stat.czxid) != sequencer.token:
            raise lease_is_over(sequencer, where)
        self._found.remember(sequencer, node)
        lock = f"lock {sequencer.lock!r}"
        return [
            ZooKeeperCondition(self._layout.source, record.version, f"the record of the source of {lock}"),
            ZooKeeperCondition(node, stat.version, f"the node by which this lease held {lock}"),
        ]

    def _search(self, sequencer: Sequencer) -> Operations:
        """Return the path of the lease's node; None if it does not exist."""
        parent, prefix = self._layout.lock(sequencer.lock), node_prefix(sequencer.digest)
        names: list[str] = yield lambda client: client.child_names(parent)
        return next((f"{parent}/{name}" for name in names if name.startswith(prefix)), None)
