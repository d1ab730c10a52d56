"""Resources in nodes of ZooKeeper: the counters, how many writes there are, and a node for each write.

Promise: the nodes carry the run's own name, below each resource's own node. The order of the writes is that of the
transactions that made them.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from kazoo.protocol.serialization import Create, Delete
from kazoo.protocol.states import ZnodeStat

import fencelock
from fencelock.stores.zookeeper.guard.block import is_cause
from fencelock.stores.zookeeper.guard.client import ZooKeeperGuardClient
from fencelock.stores.zookeeper.guard.store import ZooKeeperGuard
from fencelock_lab.campaigns.plan import CampaignSettings
from fencelock_lab.campaigns.target import ROWS, Row, Target, TargetState

BATCH_NODES = 500
_LAST, _LIST = "last", "list"
_ANY_VERSION = -1


class ZooKeeperTarget(Target):
    """The resources of one lock in ZooKeeper."""

    def __init__(self, settings: CampaignSettings, number: int) -> None:
        super().__init__(settings, number)
        self._store = ZooKeeperGuard(self.url)

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
        names = self._client.names_below(f"{node}/{_LIST}")
        found = zip(names, self._values([f"{node}/{_LIST}/{name}" for name in names]), strict=True)
        rows: list[Row] = []
        for name, (value, _) in sorted(found, key=lambda one: one[1][1].czxid):
            position, token = value.split()
            rows.append((name, int(position), int(token)))
        counters = self._values([f"{node}/{row}" for row in range(1, ROWS + 1)])
        return rows, sum(int(value) for value, _ in counters)

    # --- making and removing ------------------------------------------------------------------------------------------
    def made_for(self, resource: str) -> list[str]:
        """Return the node above all that is made for the resource."""
        return [self._node(resource)]

    def check_unused(self, resource: str) -> None:
        """Raise GuardError if there are nodes of another run."""
        root = self._store.layout.root(resource)
        if names := self._client.names_below(root):
            raise fencelock.GuardError(
                f"{self._store.url}: there is the node {root}/{names[0]}, of another run of fencelock verify. Wait for "
                f"its end; if it was killed, delete {root} with all that is below it (deleteall)"
            )

    def make(self, resource: str) -> None:
        """Make the counters and the list's node, all at once."""
        node = self._node(resource)
        self._client.make(self._store.layout.root(resource))
        zeros = [f"{node}/{name}" for name in (_LAST, *range(1, ROWS + 1))]
        self._do([Create(path, b"0", self._client.acl, 0) for path in (node, f"{node}/{_LIST}", *zeros)])

    def is_there(self, resource: str) -> bool:
        """Tell whether the resource has its own node."""
        return self._client.exists(self._store.layout.root(resource)) is not None

    def take_away(self, resource: str) -> None:
        """Delete the run's nodes, and the resource's own."""
        node = self._node(resource)
        if self._client.exists(node) is not None:
            listed = self._client.names_below(f"{node}/{_LIST}")
            for some in _batches([f"{node}/{_LIST}/{name}" for name in listed]):
                self._do([Delete(path, _ANY_VERSION) for path in some])
            below = [f"{node}/{name}" for name in self._client.names_below(node)]
            self._do([Delete(path, _ANY_VERSION) for path in (*below, node)])
        self._do([Delete(self._store.layout.root(resource), _ANY_VERSION)])

    # --- nodes --------------------------------------------------------------------------------------------------------
    def _node(self, resource: str) -> str:
        return f"{self._store.layout.root(resource)}/{self._stems[resource]}"

    @cached_property
    def _client(self) -> ZooKeeperGuardClient:
        """A client that shows no token, for before and after the attack."""
        return ZooKeeperGuardClient(self._store.place)

    def _do(self, operations: list[Any]) -> None:
        for result in self._client.commit(operations):
            if is_cause(result):
                raise result

    def _values(self, paths: Sequence[str]) -> list[tuple[bytes, ZnodeStat]]:
        found = [one for some in _batches(paths) for one in self._client.look(some)]
        return [one for one in found if one is not None]


def _batches(paths: Sequence[str]) -> list[Sequence[str]]:
    return [paths[at : at + BATCH_NODES] for at in range(0, len(paths), BATCH_NODES)]
