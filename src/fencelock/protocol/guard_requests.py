"""What guard flows ask of a guarded resource's store, and what they are told.

Promise: requests and replies are plain values. Between `Begin` and `Commit`, and between `Open` and `Finish`, all runs
in one write transaction, which also holds the marks still, or is refused at its end if one has changed; what leaves it
by an exception is undone. A store decides nothing here: it compares, reads and writes marks, and refuses in the file or
server what presents no seal.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from fencelock.model import Mark, Protection, Sequencer

ENFORCE = "enforce"
OBSERVE = "observe"


class ConflictError(Exception):
    """The end of a transaction was refused, since something has changed that it relied on: nothing was written.

    Never seen by users. The message is the part of a sentence that says what has changed.
    """


# --- transactions ----------------------------------------------------------------------------------
class Begin(NamedTuple):
    """Begin a brief write transaction of the guard's own, to be on the disk before its Commit is answered (G4).
    Reply: None.
    """


class Commit(NamedTuple):
    """Commit it. Reply: None. OutcomeUnknownError if the store did not confirm it; ConflictError from a store that does
    not hold the marks still, if one that was read has changed.
    """


class Open(NamedTuple):
    """Begin the user's transaction, and admit its writes to each resource whose mark is exactly the sequencer's, and
    open. Reply: tuple[str, ...], the resources whose mark is not.

    `limit_ms`: how long the transaction may be idle, where the store can end it then (G3): the lease's time left. None
    if nobody here knows that.
    """

    resources: tuple[str, ...]
    sequencer: Sequencer
    limit_ms: int | None = None


class Finish(NamedTuple):
    """Take back what was presented to these resources, and commit the user's transaction. Reply: None.

    GuardError if the user's code ended the transaction, or tried to; OutcomeUnknownError and ConflictError as for
    Commit.
    """

    resources: tuple[str, ...]


# --- marks -----------------------------------------------------------------------------------------
class ReadMarks(NamedTuple):
    """Tell the marks that are known of these resources. Reply: dict[str, Mark].

    A store that shows nobody another's claim tells whether it is this one, and shows something else if not.
    `may_share`: marks that are this claim's will not be written, so others of the same lease may go on with their
    transactions.
    """

    resources: tuple[str, ...]
    claim: str | None = None
    may_share: bool = False


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


# --- in the caller's own transaction -----------------------------------------------------------------
class Join(NamedTuple):
    """Hold the marks of these resources still for the rest of the caller's own transaction, and limit its idleness as
    Open does. Reply: bool, whether a mark may be raised in it. `is_to_raise`: one may have to be.

    GuardError if that transaction already looks at a past state of the resource.
    """

    resources: tuple[str, ...]
    is_to_raise: bool = False
    limit_ms: int | None = None


class Present(NamedTuple):
    """Admit the caller's writes, and limit the idleness of their transaction, as Open does. Reply: tuple[str, ...], the
    resources whose mark is another.
    """

    resources: tuple[str, ...]
    sequencer: Sequencer
    limit_ms: int | None = None


class Unpresent(NamedTuple):
    """Take back what was presented, before the caller commits. Reply: None. GuardError if it is not there any more."""

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
class InspectResources(NamedTuple):
    """Tell everything known of one resource, or of all (None), without changing it. Reply: ResourceReport."""

    resource: str | None


class Observation(NamedTuple):
    """Writes that observe mode let pass. `table` is empty where a lease, not a row, would be refused.

    `kind` is insert, update, delete or truncate, or why the lease would be; times are UTC, ISO 8601. Who it was is
    known to servers only: the role, what the client calls itself, and its address.
    """

    resource: str
    table: str
    kind: str
    times: int
    first_at: str
    last_at: str
    role: str | None = None
    application: str | None = None
    address: str | None = None


class ResourceReport(NamedTuple):
    """All about a place at one moment."""

    marks: tuple[Mark, ...]
    protections: tuple[Protection, ...]
    observations: tuple[Observation, ...]


Result = TypeVar("Result")
GuardRequest = (
    Begin | Commit | Open | Finish | ReadMarks | WriteMarks | ChangeMark | WriteAudit | Join | Present | Unpresent
    | ReadProtections | Protect | Unprotect | RecordRefusal | InspectResources
)  # fmt: skip
"""What a guard's connection answers."""

GuardReply = tuple[str, ...] | dict[str, Mark] | bool | tuple[Protection, ...] | Protected | ResourceReport | None
"""What a guard's connection replies; each request's docstring names which of these it gets."""

GuardFlow = Generator[GuardRequest, Any, Result]
"""Yields requests to a guarded resource, is sent the replies, and returns a Result. `ask` gives each reply its type."""
