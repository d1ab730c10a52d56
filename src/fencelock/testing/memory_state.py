"""What a guarded resource in memory keeps, with its marks and the floor that purged marks leave.

Promise: a mark is purged in the step that raises the floor of its source. A resource without a mark of a source admits
only tokens above that floor (G15). Never: a decision about any other token, which `admit` makes.
"""

from typing import Any

from fencelock.model import Mark, Protection
from fencelock.protocol import guard_requests as ask
from fencelock.stores.errors import check_above_floor, floor_changed


class MemoryResourceState:
    """Everything that a resource in memory keeps."""

    def __init__(self) -> None:
        self.marks: dict[str, Mark] = {}
        self.tables: dict[str, Protection] = {}
        self.observed: dict[tuple[str, str, str], int] = {}
        self.audit: list[ask.AuditEntry] = []
        self.data: dict[tuple[str, str], Any] = {}
        self.effects: dict[tuple[str, str], ask.Effect] = {}
        self.floors: dict[str, int] = {}
        self.raised_s: dict[str, float] = {}

    def copy(self) -> "MemoryResourceState":
        """Return an equal, independent state."""
        twin = type(self)()
        for name, value in vars(self).items():
            setattr(twin, name, value.copy())
        return twin

    def observe(self, resource: str, table: str, kind: str) -> None:
        """Count a write that enforcement would have refused."""
        key = (resource, table, kind)
        self.observed[key] = self.observed.get(key, 0) + 1

    # --- marks --------------------------------------------------------------------------------------------------------
    def write_mark(self, mark: Mark, unix_s: float) -> None:
        """Write a mark; StaleTokenError if it gets a source whose floor does not admit it."""
        before = self.marks.get(mark.resource)
        if mark.source_id is not None and (before is None or before.source_id != mark.source_id):
            check_above_floor(mark, self.floor_of(mark.source_id))
        self.marks[mark.resource] = mark
        self.raised_s[mark.resource] = unix_s

    def floor_of(self, source_id: str) -> ask.Floor:
        """Return the floor of a source; token 0 if nothing of it was purged."""
        return ask.Floor(source_id, self.floors.get(source_id, 0))

    def find_old_marks(self, request: ask.FindOldMarks, unix_s: float) -> tuple[Mark, ...]:
        """Return marks of the source that may be purged."""
        until = unix_s - request.older_than_ms / 1000
        after = request.after.encode()
        found = [
            mark
            for resource, mark in sorted(self.marks.items(), key=lambda item: item[0].encode())
            if mark.source_id == request.source_id
            and resource.encode() > after
            and self.raised_s.get(resource, 0.0) <= until
        ]
        return tuple(mark for mark in found if self._may_purge(mark))[: request.limit]

    def purge_marks(self, request: ask.PurgeMarks) -> int:
        """Forget those of these marks that are still the same and may go, raise the floor, and return how many."""
        old = [mark for mark in request.marks if self.marks.get(mark.resource) == mark and self._may_purge(mark)]
        if old:
            self.audit.append(request.entry)
            source_id, token = request.floor
            self.floors[source_id] = max(token, self.floor_of(source_id).token)
        for mark in old:
            del self.marks[mark.resource]
        return len(old)

    def set_floor(self, request: ask.SetFloor) -> None:
        """Set a floor lower or higher, by the authority of an audit entry."""
        before = self.floor_of(request.floor.source_id)
        if before.token != request.entry.from_token:
            raise floor_changed(before, request.entry.from_token)
        self.audit.append(request.entry)
        self.floors[before.source_id] = request.floor.token

    def _may_purge(self, mark: Mark) -> bool:
        was_moved = any(entry.action == "rebind" and entry.resource == mark.resource for entry in self.audit)
        has_tables = any(one.resource == mark.resource for one in self.tables.values())
        return mark.token > 0 and not was_moved and not has_tables
