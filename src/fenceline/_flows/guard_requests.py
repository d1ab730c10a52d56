"""What guard flows ask of a guarded resource's store, and what they are told.

Promise: requests and replies are plain values. Between `Begin` and `Commit` everything runs in one
write transaction, which also holds the marks still; what leaves it by an exception is undone. A store
decides nothing here: it reads and writes marks, and refuses in the file or server what presents no seal.
"""

from typing import NamedTuple

from fenceline.model import Mark, Protection, Sequencer

ENFORCE = "enforce"
OBSERVE = "observe"


# --- transactions ----------------------------------------------------------------------------------
class Begin(NamedTuple):
    """Begin a write transaction. Reply: None.

    `is_flushed`: a brief one of the guard's own, which is on the disk before its Commit is answered
    (G4). Otherwise the user's: it lasts as long as they want, at their own settings.
    """

    is_flushed: bool


class Commit(NamedTuple):
    """Commit. Reply: None. OutcomeUnknownError if the store did not confirm it."""


class Join(NamedTuple):
    """Hold the marks still for the rest of the caller's own transaction. Reply: None.

    GuardError if that transaction already looks at a past state of the resource.
    """


# --- marks -----------------------------------------------------------------------------------------
class ReadMarks(NamedTuple):
    """Tell the marks that are known of these resources. Reply: dict[str, Mark]."""

    resources: tuple[str, ...]


class WriteMarks(NamedTuple):
    """Write marks that a lease may write: raised, or closed by their own holder. Reply: None."""

    marks: tuple[Mark, ...]


class AuditEntry(NamedTuple):
    """What an operator did to a resource, and why; the store adds when."""

    action: str
    resource: str
    from_token: int
    to_token: int
    who: str
    reason: str


class ChangeMark(NamedTuple):
    """Write an audit entry and, on its authority, any other change of a mark (G8). Reply: None."""

    mark: Mark
    entry: AuditEntry


class WriteAudit(NamedTuple):
    """Write an audit entry about something other than a mark. Reply: None."""

    entry: AuditEntry


# --- the seal of one transaction -------------------------------------------------------------------
class Present(NamedTuple):
    """Admit this transaction's writes to each resource whose mark is exactly the sequencer's, and open.

    Reply: tuple[str, ...], the resources whose mark is not.
    """

    resources: tuple[str, ...]
    sequencer: Sequencer


class Withdraw(NamedTuple):
    """Take back what was presented, as the last thing before Commit. Reply: None.

    GuardError if the user's code ended the transaction, or tried to.
    """

    resources: tuple[str, ...]


# --- protection ------------------------------------------------------------------------------------
class ReadProtections(NamedTuple):
    """Tell which tables of a resource are protected. Reply: tuple[Protection, ...]."""

    resource: str


class Protect(NamedTuple):
    """Make the store itself enforce or observe writes to these tables, and know the resource's lock.

    Reply: Protected.
    """

    resource: str
    lock: str
    tables: tuple[str, ...]
    mode: str


class Protected(NamedTuple):
    """What was in force before, for each table whose mode changed."""

    changed: tuple[Protection, ...]


class Unprotect(NamedTuple):
    """Let anybody write to these tables again; none named: to all of the resource.

    Reply: tuple[Protection, ...], what was taken away.
    """

    resource: str
    tables: tuple[str, ...]


class RecordRefusal(NamedTuple):
    """Count something that would have been refused, had the resource not only been observed. Reply: None."""

    resource: str
    kind: str


# --- inspection, outside of any transaction --------------------------------------------------------
class Look(NamedTuple):
    """Tell everything known of one resource, or of all (None), without changing it. Reply: Seen."""

    resource: str | None


class Observation(NamedTuple):
    """Writes that observe mode let pass. `table` is empty where a lease, not a row, would be refused.

    `kind` is insert, update or delete, or why the lease would be; times are UTC, ISO 8601.
    """

    resource: str
    table: str
    kind: str
    times: int
    first_at: str
    last_at: str


class Seen(NamedTuple):
    """All about a place at one moment."""

    marks: tuple[Mark, ...]
    protections: tuple[Protection, ...]
    observations: tuple[Observation, ...]
