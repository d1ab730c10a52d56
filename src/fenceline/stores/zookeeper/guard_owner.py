"""The node by which a lock's holder holds it, for a guard beside the locks, as its URL says by `locks=/base`.

Promise: it is looked for after the marks were read as of now, so that no older state is seen. It is found by the claim
of the lease, and its token is compared. A block then relies on it and on the record of the source: once the node is
gone, or the epoch was raised, nothing of the block is written. Never: a node of another lease.
"""

from typing import Any

from kazoo.exceptions import NoNodeError

from fenceline.model import Sequencer
from fenceline.stores.beside import check_source, is_over
from fenceline.stores.optimistic import Talk
from fenceline.stores.zookeeper.guard_work import Condition
from fenceline.stores.zookeeper.layout import Layout, node_prefix
from fenceline.stores.zookeeper.record import not_installed, record_in


def owner_conditions(layout: Layout, sequencer: Sequencer) -> Talk:
    """Return what has to stay as it is for as long as the lease is not over; GuardError if it is over now."""
    where = layout.base
    try:
        value, found = yield lambda client: client.get(layout.source)
    except NoNodeError:
        raise not_installed(where) from None
    record = record_in(value, found, where)
    check_source(sequencer, record.source_id, where)
    node = yield from _node_of(layout, sequencer)
    stat: Any = None if node is None else (yield lambda client: client.exists(node))
    if stat is None or record.history_id != sequencer.history_id or record.token(stat.czxid) != sequencer.token:
        raise is_over(sequencer, where)
    lock = f"lock {sequencer.lock!r}"
    return [
        Condition(layout.source, record.version, f"the record of the source of {lock}"),
        Condition(node, stat.version, f"the node by which this lease held {lock}"),
    ]


def _node_of(layout: Layout, sequencer: Sequencer) -> Talk:
    """Return the path of the lease's node, None if there is none."""
    parent, prefix = layout.lock(sequencer.lock), node_prefix(sequencer.claim)
    names: list[str] = yield lambda client: client.names_below(parent)
    return next((f"{parent}/{name}" for name in names if name.startswith(prefix)), None)
