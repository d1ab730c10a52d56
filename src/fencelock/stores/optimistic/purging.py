"""The purge of marks at a store with optimistic transactions (etcd, ZooKeeper, DynamoDB, Redis): which marks go,
and the floors they leave.

Promise: pure. A mark is deleted only if it is still what was read, in the request that raises the floor (G15).
Never: a mark deleted whose resource was ever bound to another lock or source.
"""

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from fencelock.protocol import guard_requests as ask
from fencelock.protocol.mark_requests import MAX_PURGED_MARKS
from fencelock.stores.errors import floor_changed
from fencelock.stores.optimistic.effects import Operations
from fencelock.stores.optimistic.guard_codec import OptimisticGuardCodec
from fencelock.stores.optimistic.stored_values import (
    FLOORS,
    PendingChanges,
    decode_floors,
    decode_mark,
    encode_floors,
    is_older,
)

if TYPE_CHECKING:
    from fencelock.model import Mark


class PurgingGuardCodec(OptimisticGuardCodec):
    """The operations of one connection, those of operators who purge included; a store implements the abstract ones."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._names: list[str] | None = None
        """The resources that had a mark when the search for old ones began, in order."""

    # --- implemented by the store ---
    @abstractmethod
    def _read_names(self) -> Operations:
        """Return the resources that have a mark."""

    @abstractmethod
    def _find_limited(self, resources: Collection[str]) -> Operations:
        """Return those of these resources whose marks their writers could not create again."""

    # --- the requests ---
    def _find_old_marks(self, request: ask.FindOldMarks) -> Operations:
        # A purge asks again and again on one connection, and the list of all names may be long.
        if self._names is None or not request.after:
            self._names = sorted((yield from self._read_names()), key=str.encode)
        position = bisect_right(self._names, request.after.encode(), key=str.encode)
        found: list[Mark] = []
        while position < len(self._names) and len(found) < request.limit:
            changes, end = PendingChanges(), position + MAX_PURGED_MARKS
            changes.seen = yield from self._read(self._names[position:end])
            old = (one for one in changes.seen if self._is_old(changes, one, request))
            found += yield from self._purgeable(changes, old)
            position = end
        return tuple(found[: request.limit])

    def _is_old(self, changes: PendingChanges, resource: str, request: ask.FindOldMarks) -> bool:
        value = changes.value(resource)
        if value is None:
            return False
        mark, raised_at, _ = decode_mark(self._url, resource, value)
        return mark.source_id == request.source_id and mark.token > 0 and is_older(raised_at, request.older_than_ms)

    def _purgeable(self, changes: PendingChanges, resources: Iterable[str]) -> Operations:
        """Return the marks of those of these resources that may be purged, whatever their age."""
        stored = [decode_mark(self._url, one, value) for one in resources if (value := changes.value(one)) is not None]
        marks = [one.mark for one in stored if not one.is_rebound]
        limited = (yield from self._find_limited([one.resource for one in marks])) if marks else ()
        return [one for one in marks if one.resource not in limited]

    def _purge_marks(self, request: ask.PurgeMarks) -> Operations:
        changes, floor = self._changes, request.floor
        changes.seen = yield from self._read((*(mark.resource for mark in request.marks), FLOORS))
        purgeable = yield from self._purgeable(changes, (mark.resource for mark in request.marks))
        # Only if it is still the mark that was found: one that was written since is needed.
        gone = [mark.resource for mark in request.marks if mark in purgeable]
        changes.seen = {name: changes.seen[name] for name in (*gone, FLOORS)}
        if gone:
            changes.writes.update(dict.fromkeys(gone))
            before = self._floor(floor.source_id)
            # Never lower than before: of marks that an earlier purge has deleted, only the floor is left.
            self._write_floor(floor._replace(token=max(floor.token, before.token if before else 0)), request.entry)
        return len(gone)

    def _set_floor(self, request: ask.SetFloor) -> Operations:
        self._changes.seen.update((yield from self._read((FLOORS,))))
        before = self._floor(request.floor.source_id) or ask.Floor(request.floor.source_id, 0)
        if before.token != request.entry.from_token:
            raise floor_changed(before, request.entry.from_token)
        self._write_floor(request.floor, request.entry)

    def _write_floor(self, floor: ask.Floor, entry: ask.AuditEntry) -> None:
        changes = self._changes
        floors = decode_floors(self._url, changes.value(FLOORS)) | {floor.source_id: floor.token}
        changes.writes[FLOORS] = encode_floors({source_id: token for source_id, token in floors.items() if token})
        changes.relies_on_floors = True
        changes.entries.append(entry)

    ANSWERS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        **OptimisticGuardCodec.ANSWERS,
        ask.FindOldMarks: _find_old_marks,
        ask.PurgeMarks: _purge_marks,
        ask.SetFloor: _set_floor,
    }
