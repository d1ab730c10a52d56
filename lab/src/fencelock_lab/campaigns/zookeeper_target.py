"""Resources in nodes of ZooKeeper: the counters, the number of writes, and a node for each write.

Promise: the nodes carry the run's own name, below the resource's own node. The writes are ordered by the transactions
that made them. Never waits longer than REQUEST_TIMEOUT_S for one reply.
"""

from collections.abc import Sequence
from typing import Any

from kazoo.exceptions import NoNodeError, RolledBackError, RuntimeInconsistency
from kazoo.protocol.states import ZnodeStat

import fencelock
from fencelock.testing import resource_path, unfenced
from fencelock_lab.campaigns.target import ROWS, GuardTarget, Row, TargetState

REQUEST_TIMEOUT_S = 10.0
BATCH_NODES = 500
_LAST, _LIST = "last", "list"


class ZooKeeperTarget(GuardTarget):
    """The resources of one lock in ZooKeeper."""

    def look(self, connection: Any, resource: str) -> TargetState:
        """Read the resource."""
        node = self._node(resource)
        last, *counters = (int(connection.get(f"{node}/{name}")[0]) for name in (_LAST, *range(1, ROWS + 1)))
        return TargetState(last, dict(enumerate(counters, 1)))

    def write(self, connection: Any, resource: str, seen: TargetState, name: str, token: int) -> None:
        """Set the counter whose turn it is, and append to the list."""
        node = self._node(resource)
        connection.set(f"{node}/{seen.row}", b"%d" % (seen.counters[seen.row] + 1))
        connection.set(f"{node}/{_LAST}", b"%d" % (seen.position + 1))
        connection.create(f"{node}/{_LIST}/{name}", b"%d %d" % (seen.position + 1, token))

    def final(self, resource: str) -> tuple[list[Row], int]:
        """Return the writes in the order of their transactions, and the sum of the counters."""
        node = self._node(resource)
        with unfenced(self.url) as client:
            names = _children(client, f"{node}/{_LIST}")
            found = zip(names, _values(client, [f"{node}/{_LIST}/{name}" for name in names]), strict=True)
            counters = _values(client, [f"{node}/{row}" for row in range(1, ROWS + 1)])
        rows: list[Row] = []
        for name, (value, _) in sorted(found, key=lambda one: one[1][1].czxid):
            position, token = value.split()
            rows.append((name, int(position), int(token)))
        return rows, sum(int(value) for value, _ in counters)

    # --- making and removing ------------------------------------------------------------------------------------------
    def made_for(self, resource: str) -> list[str]:
        """Return the node above all that is made for the resource."""
        return [self._node(resource)]

    def check_unused(self, resource: str) -> None:
        """Raise GuardError if there are nodes of another run."""
        root = resource_path(self.url, resource)
        with unfenced(self.url) as client:
            names = _children(client, root)
        if names:
            raise fencelock.GuardError(
                f"{self.shown_url}: there is the node {root}/{names[0]}, of another run of fencelock verify. Wait "
                f"until it ends; if it was killed, delete {root} with all that is below it (deleteall)"
            )

    def make(self, resource: str) -> None:
        """Make the counters and the list's node, all at once."""
        node = self._node(resource)
        with unfenced(self.url) as client:
            _reply(client.ensure_path_async(resource_path(self.url, resource)))
            transaction = client.transaction()
            for path in (node, f"{node}/{_LIST}", *(f"{node}/{name}" for name in (_LAST, *range(1, ROWS + 1)))):
                transaction.create(path, b"0")
            _commit(transaction)

    def is_there(self, resource: str) -> bool:
        """Return whether the resource has its own node."""
        with unfenced(self.url) as client:
            return _reply(client.exists_async(resource_path(self.url, resource))) is not None

    def take_away(self, resource: str) -> None:
        """Delete the run's nodes, and the resource's own."""
        node, root = self._node(resource), resource_path(self.url, resource)
        with unfenced(self.url) as client:
            _delete(client, [f"{node}/{_LIST}/{name}" for name in _children(client, f"{node}/{_LIST}")])
            _delete(client, [f"{node}/{name}" for name in _children(client, node)])
            _delete(client, [path for path in (node, root) if _reply(client.exists_async(path)) is not None])

    def _node(self, resource: str) -> str:
        return f"{resource_path(self.url, resource)}/{self._stems[resource]}"


# --- a client that presents no token --------------------------------------------------------------------------------
def _reply(result: Any) -> Any:
    return result.get(timeout=REQUEST_TIMEOUT_S)


def _children(client: Any, path: str) -> list[str]:
    """Return the names of a node's children as of now; none if there is no such node."""
    _reply(client.sync_async("/"))
    try:
        return list(_reply(client.get_children_async(path)))
    except NoNodeError:
        return []


def _values(client: Any, paths: Sequence[str]) -> list[tuple[bytes, ZnodeStat]]:
    _reply(client.sync_async("/"))
    return [_reply(one) for some in _batches(paths) for one in [client.get_async(path) for path in some]]


def _delete(client: Any, paths: Sequence[str]) -> None:
    for some in _batches(paths):
        transaction = client.transaction()
        for path in some:
            transaction.delete(path)
        _commit(transaction)


def _commit(transaction: Any) -> None:
    """Do all of a transaction; raise the error of the operation that kept it from being done."""
    for result in _reply(transaction.commit_async()):
        if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
            raise result


def _batches(paths: Sequence[str]) -> list[Sequence[str]]:
    return [paths[at : at + BATCH_NODES] for at in range(0, len(paths), BATCH_NODES)]
