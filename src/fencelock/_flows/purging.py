"""Purge marks that nobody needs, under a floor that refuses whatever they refused (G15).

Promise: a mark goes in the transaction that raises its source's floor to its token or above it. The marks of running
leases stay, and so does one above the source's last token, which would make every new resource refuse the source.
Running leases are read after the marks are found: whoever had raised a mark had its lease before. (That a lease is
granted later does not mean that its token is higher: etcd and ZooKeeper mint it when its holder queues up.)
Never: a floor lowered without an operator's reason.
"""

from collections.abc import Callable

from fencelock._flows.conflicts import retry_on_conflict
from fencelock.model import Mark, SourceInfo
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import (
    AuditEntry,
    Begin,
    Commit,
    FindOldMarks,
    Floor,
    GuardFlow,
    InspectResources,
    PurgeMarks,
    SetFloor,
)
from fencelock.protocol.mark_requests import MAX_PURGED_MARKS, floor_reason

MARKS_PER_READING = 10_000
"""Marks for which the running leases are read once: the source may have many locks."""


def purge_marks(
    source: SourceInfo, read_held: Callable[[], frozenset[int]], older_than_ms: int, who: str
) -> GuardFlow[int]:
    """Forget the source's marks that were not written for so long, and return how many there were.

    `source` was read before; `read_held` reads the tokens of the leases that run.
    """
    count, after, is_more = 0, "", True
    while is_more:
        old: list[Mark] = []
        while is_more and len(old) < MARKS_PER_READING:
            found = yield from ask(FindOldMarks(source.source_id, older_than_ms, after))
            old += (mark for mark in found if mark.token <= source.last_token)
            is_more = len(found) == MAX_PURGED_MARKS
            after = found[-1].resource if found else after
        # After the marks are found: the lease that raised a mark was granted before, so it is held now or over.
        held = read_held() if old else frozenset()
        old = [mark for mark in old if mark.token not in held]
        for start in range(0, len(old), MAX_PURGED_MARKS):
            batch = tuple(old[start : start + MAX_PURGED_MARKS])
            count += yield from _forget(batch, source.source_id, older_than_ms, who)
    return count


@retry_on_conflict
def _forget(marks: tuple[Mark, ...], source_id: str, older_than_ms: int, who: str) -> GuardFlow[int]:
    lowest, highest = min(mark.token for mark in marks), max(mark.token for mark in marks)
    reason = f"marks of source {source_id} that were not written for {older_than_ms} ms"
    yield Begin()
    entry = AuditEntry("purge", "", lowest, highest, who, reason)
    count = yield from ask(PurgeMarks(marks, Floor(source_id, highest), entry))
    yield Commit()
    return count


def set_floor(floor: Floor, who: str, reason: str, expected: int | None = None) -> GuardFlow[None]:
    """Set the floor of a source lower or higher, from `expected` if the operator has looked at it before."""
    before = expected
    if before is None:
        report = yield from ask(InspectResources(None))
        before = next((known.token for known in report.floors if known.source_id == floor.source_id), 0)
    if before != floor.token or expected is not None:
        entry = AuditEntry("floor", "", before, floor.token, who, floor_reason(reason, floor.source_id))
        yield from _write_floor(floor, entry)


@retry_on_conflict
def _write_floor(floor: Floor, entry: AuditEntry) -> GuardFlow[None]:
    """Set the floor from what was read once: after a conflict it may be another operator's, which the store refuses."""
    yield Begin()
    yield SetFloor(floor, entry)
    yield Commit()
