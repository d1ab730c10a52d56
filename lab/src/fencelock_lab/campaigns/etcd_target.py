"""Resources in keys of etcd: the counters, the number of writes, and a key for each write.

Promise: the keys carry the run's own name, below the part of the guard's prefix that belongs to the resource. The
writes are ordered by etcd's revisions.
"""

from typing import Any

import fencelock
from fencelock.testing import resource_path, unfenced
from fencelock_lab.campaigns.target import ROWS, GuardTarget, Row, TargetState

_LAST = "last"


class EtcdTarget(GuardTarget):
    """The resources of one lock in etcd."""

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
        listed, state = self._list(resource), self._state(resource)
        rows: list[Row] = []
        with unfenced(self.url) as keys:
            for one in sorted(keys.read_below(listed), key=lambda one: one.mod_revision):
                position, token = one.value.split()
                name = one.key.decode().removeprefix(listed)
                rows += [(name, int(position), int(token))] * one.version
            return rows, sum(int(one.value) for one in keys.read_below(state) if not one.key.decode().endswith(_LAST))

    # --- making and removing ------------------------------------------------------------------------------------------
    def made_for(self, resource: str) -> list[str]:
        """Return what the names of the resource's keys begin with."""
        return [self._all(resource)]

    def check_unused(self, resource: str) -> None:
        """Raise GuardError if there are keys of another run."""
        self._write_if_unused(resource, {})

    def make(self, resource: str) -> None:
        """Make the counters; GuardError if another run has made keys in the meantime."""
        state = self._state(resource)
        self._write_if_unused(resource, {f"{state}{name}": "0" for name in (_LAST, *range(1, ROWS + 1))})

    def is_there(self, resource: str) -> bool:
        """Return whether one of the run's keys exists."""
        with unfenced(self.url) as keys:
            return next(keys.read_below(self._all(resource)), None) is not None

    def take_away(self, resource: str) -> None:
        """Delete the run's keys."""
        with unfenced(self.url) as keys:
            keys.delete_below(self._all(resource))

    # --- keys ---------------------------------------------------------------------------------------------------------
    def _all(self, resource: str) -> str:
        return f"{resource_path(self.url, resource)}{self._stems[resource]}/"

    def _state(self, resource: str) -> str:
        return f"{self._all(resource)}state/"

    def _list(self, resource: str) -> str:
        return f"{self._all(resource)}list/"

    def _write_if_unused(self, resource: str, values: dict[str, str]) -> None:
        area = resource_path(self.url, resource)
        with unfenced(self.url) as keys:
            is_unused = keys.write(values, unless_any_below=area)
        if not is_unused:
            raise fencelock.GuardError(
                f"{self.shown_url}: there are keys that begin with {area!r}, of another run of fencelock verify. Wait "
                f"until it ends; if it was killed, delete them: etcdctl del --prefix {area}"
            )
