"""Resources in keys of etcd: the counters, how many writes there are, and a key for each write.

Promise: the keys carry the run's own name, below each resource's part of the guard's prefix. The order of the writes is
that of etcd's revisions.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import fencelock
from fencelock.stores.etcd.connection import wire
from fencelock.stores.etcd.connection.client import TXN, EtcdClient
from fencelock.stores.etcd.connection.wire import delete, is_empty, prefix_end, put, txn
from fencelock.stores.etcd.guard.store import EtcdGuard
from fencelock_lab.campaigns.plan import CampaignSettings
from fencelock_lab.campaigns.target import ROWS, Row, Target, TargetState

REQUEST_TIMEOUT_S = 10.0
PAGE_KEYS = 1000
_LAST = "last"


class EtcdTarget(Target):
    """The resources of one lock in etcd."""

    def __init__(self, settings: CampaignSettings, number: int) -> None:
        super().__init__(settings, number)
        self._store = EtcdGuard(self.url)

    def look(self, connection: Any, resource: str) -> TargetState:
        """Read the resource."""
        state = self._state(resource)
        found = connection.get_prefix(state)
        numbers = {key.decode().removeprefix(state): int(value) for key, value in found.items()}
        return TargetState(numbers.pop(_LAST), {int(row): value for row, value in numbers.items()})

    def write(self, connection: Any, resource: str, seen: TargetState, name: str, token: int) -> None:
        """Set the counter whose turn it is, and append to the list."""
        state = self._state(resource)
        connection.put(f"{state}{seen.row}", str(seen.counters[seen.row] + 1))
        connection.put(f"{state}{_LAST}", str(seen.position + 1))
        connection.put(f"{self._list(resource)}{name}", f"{seen.position + 1} {token}")

    def final(self, resource: str) -> tuple[list[Row], int]:
        """Return the writes in the order of their revisions, one that was made twice twice, and the counters' sum."""
        listed = self._list(resource)
        rows: list[Row] = []
        for one in sorted(self._below(listed), key=lambda one: one.mod_revision):
            position, token = one.value.split()
            name = one.key.decode().removeprefix(listed)
            rows += [(name, int(position), int(token))] * one.version
        state = self._state(resource)
        return rows, sum(int(one.value) for one in self._below(state) if not one.key.decode().endswith(_LAST))

    # --- making and removing ------------------------------------------------------------------------------------------
    def made_for(self, resource: str) -> list[str]:
        """Return what the names of the resource's keys begin with."""
        return [self._all(resource)]

    def check_unused(self, resource: str) -> None:
        """Raise GuardError if there are keys of another run."""
        self._do_if_unused(resource, ())

    def make(self, resource: str) -> None:
        """Make the counters; GuardError if there are keys of another run by now."""
        state = self._state(resource)
        self._do_if_unused(resource, [put(f"{state}{name}".encode(), b"0") for name in (_LAST, *range(1, ROWS + 1))])

    def is_there(self, resource: str) -> bool:
        """Tell whether there is one of the run's keys."""
        return next(self._below(self._all(resource)), None) is not None

    def take_away(self, resource: str) -> None:
        """Delete the run's keys."""
        start = self._all(resource).encode()
        self._done(txn((), (delete(start, prefix_end(start)),)))

    # --- keys ---------------------------------------------------------------------------------------------------------
    def _all(self, resource: str) -> str:
        return f"{self._store.layout.area(resource).decode()}{self._stems[resource]}/"

    def _state(self, resource: str) -> str:
        return f"{self._all(resource)}state/"

    def _list(self, resource: str) -> str:
        return f"{self._all(resource)}list/"

    @cached_property
    def _client(self) -> EtcdClient:
        """A client that knows no guard, for before and after the attack."""
        return EtcdClient(self._store.info)

    def _do_if_unused(self, resource: str, operations: Sequence[Any]) -> None:
        area = self._store.layout.area(resource)
        if not self._done(txn((is_empty(area),), operations)).succeeded:
            raise fencelock.GuardError(
                f"{self._store.url}: there are keys that begin with {area.decode()!r}, of another run of fencelock "
                f"verify. Wait for its end; if it was killed, delete them: etcdctl del --prefix {area.decode()}"
            )

    def _done(self, request: Any) -> Any:
        return self._client.call(TXN, request, REQUEST_TIMEOUT_S)

    def _below(self, prefix: str) -> Iterator[Any]:
        """Yield everything that begins with the prefix, page by page."""
        start, end = prefix.encode(), prefix_end(prefix.encode())
        while start:
            page = wire.RangeRequest(key=start, range_end=end, limit=PAGE_KEYS)
            answer = self._done(txn((), (wire.RequestOp(request_range=page),))).responses[0].response_range
            yield from answer.kvs
            start = answer.kvs[-1].key + b"\0" if len(answer.kvs) == PAGE_KEYS else b""
