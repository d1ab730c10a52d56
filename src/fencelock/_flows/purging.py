"""Purge marks that nobody needs, under a floor that refuses whatever they refused (G15).

Promise: a mark goes in the transaction that raises its source's floor to its token or above it. The marks of running
leases stay, and so does one above the source's last token, which would make every new resource refuse the source. The
source was read before: a lease that was granted later has a higher token, and its mark stays too.
Never: a floor lowered without an operator's reason.
"""

from typing import NamedTuple

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
from fencelock.protocol.mark_requests import MAX_PURGED_MARKS


class Tokens(NamedTuple):
    """What a source said of its tokens: its identity and counter, and then the tokens of the leases that ran."""

    source: SourceInfo
    held: frozenset[int]


def purge_marks(tokens: Tokens, older_than_ms: int, who: str) -> GuardFlow[int]:
    """Forget the source's marks that were not written for so long, and return how many there were."""
    count, after = 0, ""
    while True:
        found = yield from ask(FindOldMarks(tokens.source.source_id, older_than_ms, after))
        old = tuple(mark for mark in found if mark.token <= tokens.source.last_token and mark.token not in tokens.held)
        if old:
            count += yield from _forget(old, tokens.source.source_id, older_than_ms, who)
        if len(found) < MAX_PURGED_MARKS:
            return count
        after = found[-1].resource


@retry_on_conflict
def _forget(marks: tuple[Mark, ...], source_id: str, older_than_ms: int, who: str) -> GuardFlow[int]:
    lowest, highest = min(mark.token for mark in marks), max(mark.token for mark in marks)
    reason = f"marks of source {source_id} that were not written for {older_than_ms} ms"
    yield Begin()
    entry = AuditEntry("purge", "", lowest, highest, who, reason)
    count = yield from ask(PurgeMarks(marks, Floor(source_id, highest), entry))
    yield Commit()
    return count


@retry_on_conflict
def set_floor(floor: Floor, who: str, reason: str) -> GuardFlow[None]:
    """Set the floor of a source lower or higher."""
    report = yield from ask(InspectResources(None))
    before = next((known.token for known in report.floors if known.source_id == floor.source_id), 0)
    if before != floor.token:
        yield Begin()
        yield SetFloor(floor, AuditEntry("floor", "", before, floor.token, who, f"{reason} (source {floor.source_id})"))
        yield Commit()
