"""The requests to a guarded store about its marks, and about the floor that purged marks leave.

Promise: as for `guard_requests.py`, which offers these names too.
"""

from typing import NamedTuple

from fencelock.model import Mark, Sequencer

MAX_PURGED_MARKS = 96
"""Marks that one transaction forgets: each of them is locked until its end, and DynamoDB takes 100 items in one, the
floors and the audit entry among them.
"""


class ReadMarks(NamedTuple):
    """Read the marks of these resources. Reply: dict[str, Mark], without the resources that have none.

    `shared_by`: the marks with this digest will not be written, so other transactions of the same lease may go on.
    """

    resources: tuple[str, ...]
    shared_by: str | None = None


class RaiseMarks(NamedTuple):
    """Raise the marks of these resources to the sequencer's token, and keep H(proof) in them. Reply: None.

    ImplausibleTokenError if no source can have issued that token by now. StaleTokenError if a resource has no mark, or
    one that is bound to no source yet, and the token is not above the floor of the sequencer's source (G15). The floor
    is read after the lock of the mark was taken, by a read that sees every commit before that.
    """

    resources: tuple[str, ...]
    sequencer: Sequencer


class CloseMarks(NamedTuple):
    """Close the marks of these resources that belong to the lease with this claim. Reply: None.

    The claim, which only the holder has: who was shown a sequencer may not close.
    """

    resources: tuple[str, ...]
    claim: str


class AuditEntry(NamedTuple):
    """What an operator did to a resource, and why; the store adds the time. `resource` is empty if it concerns none."""

    action: str
    resource: str
    from_token: int
    to_token: int
    who: str
    reason: str


class ChangeMark(NamedTuple):
    """Write an audit entry and, on its authority, a change of a mark that no lease may make (G8). Reply: None.

    `sequencer` is the one whose token the mark gets, where there is one: a resource that requires signatures checks it.
    `is_implausible`: the operator vouches for a token above the ceiling. StaleTokenError if the mark gets a source that
    it did not have, and its token is below the floor of that source.
    """

    mark: Mark
    entry: AuditEntry
    sequencer: Sequencer | None = None
    is_implausible: bool = False


class WasProtected(NamedTuple):
    """Find out whether a resource that has no mark now was protected before, as far as the store still knows.
    Reply: bool. Sent between Begin and Commit, to stores whose first seal does not create the mark.
    """

    resource: str


class WriteAudit(NamedTuple):
    """Write an audit entry about something other than a mark. Reply: None."""

    entry: AuditEntry


# --- the floor of purged marks ---------------------------------------------------------------------
class Floor(NamedTuple):
    """The highest token of a source up to which marks were purged, or were raised after a restore: a resource without a
    mark admits only tokens above it (G15). One floor per source is enough, because all tokens of a source come from one
    counter.
    """

    source_id: str
    token: int


class FindOldMarks(NamedTuple):
    """Find marks that may be purged, outside of any transaction. Reply: tuple[Mark, ...], in the order of their
    resources' bytes: the first `limit` of those after the resource `after`; fewer mean that there are no more.

    They are bound to this source, have a token, and were not written for so long. Their resource was never rebound
    (the audit says so), has no record of a protected table, in whichever mode, and requires no signature.
    """

    source_id: str
    older_than_ms: int
    after: str = ""
    limit: int = MAX_PURGED_MARKS


class PurgeMarks(NamedTuple):
    """Forget those of these marks that are still exactly the same, and may still be purged, whatever their age.
    Reply: int, how many there were.

    Sent between Begin and Commit. Each mark is locked, in the order given, before it is compared. If one is forgotten,
    the floor of the source is raised to at least `floor` in the same transaction, and the entry is written. No mark has
    a token above `floor`.
    """

    marks: tuple[Mark, ...]
    floor: Floor
    entry: AuditEntry


def floor_reason(reason: str, source_id: str) -> str:
    """Return a reason that names the source of a floor, so that the entry lowers the floor of no other one."""
    return f"{reason} (source {source_id})"


class SetFloor(NamedTuple):
    """Write an audit entry and, on its authority, set a floor lower or higher; token 0 removes it. Reply: None.

    The entry's reason is one of `floor_reason`.

    Sent between Begin and Commit. GuardError, from Commit at the latest, if the floor was not `entry.from_token` (0:
    there was none).
    """

    floor: Floor
    entry: AuditEntry
