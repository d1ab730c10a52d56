"""The purge of marks at a store with optimistic transactions (etcd, ZooKeeper): which marks go, and the floors they
leave.

Promise: pure. A mark is deleted only if it is still what was read, in the request that raises the floor (G15). Nothing
is purged while it cannot be read which resources were bound to another lock.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar

from fencelock.protocol import guard_requests as ask
from fencelock.protocol.mark_requests import MAX_PURGED_MARKS
from fencelock.stores.errors import floor_changed
from fencelock.stores.quorum.effects import Operations
from fencelock.stores.quorum.guard_codec import OptimisticGuardCodec
from fencelock.stores.quorum.stored_values import FLOORS, decode_action, decode_floors, encode_floors, is_old_mark

if TYPE_CHECKING:
    from fencelock.model import Mark


class PurgingGuardCodec(OptimisticGuardCodec):
    """The operations of one connection, those of operators who purge included; a store implements the abstract ones."""

    # --- implemented by the store ---
    @abstractmethod
    def _read_names(self) -> Operations:
        """Return the resources that have a mark."""

    @abstractmethod
    def _read_entries(self) -> Operations:
        """Return the stored values of all audit entries."""

    @abstractmethod
    def _find_limited(self, resources: Collection[str]) -> Operations:
        """Return those of these resources whose marks their writers could not create again."""

    # --- the requests ---
    def _find_old_marks(self, request: ask.FindOldMarks) -> Operations:
        names: list[str] = yield from self._read_names()
        later = sorted((name for name in names if name.encode() > request.after.encode()), key=str.encode)
        found: list[Mark] = []
        for start in range(0, len(later), MAX_PURGED_MARKS):
            if len(found) >= request.limit:
                break
            stored = yield from self._read(later[start : start + MAX_PURGED_MARKS])
            marks = self._marks(stored)
            old = [
                mark
                for name, mark in marks.items()
                if mark.source_id == request.source_id
                and mark.token
                and is_old_mark(stored[name].value or b"", request.older_than_ms)
            ]
            kept = yield from self._never_purged([mark.resource for mark in old])
            found += [mark for mark in old if mark.resource not in kept]
        return tuple(found[: request.limit])

    def _purge_marks(self, request: ask.PurgeMarks) -> Operations:
        changes, floor = self._changes, request.floor
        names = [mark.resource for mark in request.marks]
        changes.seen = yield from self._read((*names, FLOORS))
        # Read after the marks: whoever binds one of them to another lock from here on changes the mark.
        kept = yield from self._never_purged(names)
        gone = [
            mark.resource for mark in request.marks if mark.resource not in kept and self._mark(mark.resource) == mark
        ]
        changes.seen = {name: changes.seen[name] for name in (*gone, FLOORS)}
        if gone:
            changes.writes.update(dict.fromkeys(gone))
            before = self._floor(floor.source_id)
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

    def _never_purged(self, resources: Collection[str]) -> Operations:
        """Return those of these resources whose marks stay, whatever their age."""
        if not resources:
            return set()
        limited: set[str] = yield from self._find_limited(resources)
        entries: list[bytes] = yield from self._read_entries()
        actions = (decode_action(self._url, entry) for entry in entries)
        return limited | {resource for action, resource in actions if action == "rebind"}

    ANSWERS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        **OptimisticGuardCodec.ANSWERS,
        ask.FindOldMarks: _find_old_marks,
        ask.PurgeMarks: _purge_marks,
        ask.SetFloor: _set_floor,
    }
