"""Purges marks of a SQLite file, and keeps the floor that they leave (rule G15).

Promise: a mark goes in the transaction that raises the floor of its source to its token or above it. The triggers of
the file refuse a deletion without that, and a first mark that is not above the floor.
"""

from fencelock.model import Mark
from fencelock.protocol.guard_requests import FindOldMarks, Floor, PurgeMarks, SetFloor
from fencelock.stores.errors import floor_changed
from fencelock.stores.sqlite.guard.marks import SQL, SQLiteMarks, mark_of


def find_old_marks(marks: SQLiteMarks, request: FindOldMarks) -> tuple[Mark, ...]:
    """Return marks that may be purged, in the order of their resources."""
    if not marks.has_schema():
        return ()
    return tuple(map(mark_of, marks.ask(SQL.find_old_marks, request._asdict())))


def purge_marks(marks: SQLiteMarks, request: PurgeMarks) -> int:
    """Forget those of these marks that are still the same and may go, raise the floor, and return how many there were.

    The transaction has the file's write lock, so nothing changes between the comparison and the deletion.
    """
    stored = marks.read(tuple(mark.resource for mark in request.marks))
    old = [mark.resource for mark in request.marks if stored.get(mark.resource) == mark and not _is_kept(marks, mark)]
    if old:
        audit_id = marks.write_audit(request.entry)
        floor = request.floor
        if floor.token > marks.floor_of(floor.source_id):
            _write_floor(marks, floor, audit_id)
        for resource in old:
            marks.native.execute(SQL.forget_mark, {"resource": resource})
    return len(old)


def set_floor(marks: SQLiteMarks, request: SetFloor) -> None:
    """Set a floor lower or higher, by the authority of the audit entry."""
    audit_id = marks.write_audit(request.entry)
    floor, before = request.floor, marks.floor_of(request.floor.source_id)
    if before != request.entry.from_token:
        raise floor_changed(Floor(floor.source_id, before), request.entry.from_token)
    _write_floor(marks, floor, audit_id)


def _is_kept(marks: SQLiteMarks, mark: Mark) -> bool:
    return bool(marks.ask(SQL.keeps_mark, {"resource": mark.resource})[0][0])


def _write_floor(marks: SQLiteMarks, floor: Floor, audit_id: int | None) -> None:
    row = {**floor._asdict(), "audit_id": audit_id}
    if marks.native.execute(SQL.set_floor, row).rowcount == 0:
        marks.native.execute(SQL.add_floor, row)
