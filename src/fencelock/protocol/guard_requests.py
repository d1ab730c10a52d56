"""The requests to the store of a guarded resource, and its replies.

Promise: requests and replies are plain values. Between `Begin` and `Commit`, and between `Open` and `Finish`, all
requests run in one write transaction, which either keeps the marks from changing or is refused at its end if one has
changed; an exception rolls it back. A store makes no decision: it compares, reads and writes marks, and refuses writes
that present no token.
"""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from fencelock.model import Mark, Protection, Sequencer

ENFORCE = "enforce"
OBSERVE = "observe"


class ConflictError(Exception):
    """A store refused to commit, because something that the transaction relied on has changed: nothing was written.

    Users never see it. The message is a clause that says what has changed.
    """


# --- transactions ----------------------------------------------------------------------------------
class Begin(NamedTuple):
    """Begin a brief write transaction of the guard's own, which is flushed before the reply to its Commit (G4).
    Reply: None.
    """


class Commit(NamedTuple):
    """Commit that transaction. Reply: None.

    OutcomeUnknownError if the store did not confirm the commit. ConflictError, from a store that compares at the end of
    a transaction, if a mark that was read has changed.
    """


class Open(NamedTuple):
    """Begin the user's transaction, and admit its writes to each resource whose mark is the sequencer's and not closed.
    Reply: tuple[str, ...], the other resources.

    `limit_ms` is the time left of the lease, None if it is unknown: a store that can end an idle transaction ends it
    after that (G3).
    """

    resources: tuple[str, ...]
    sequencer: Sequencer
    limit_ms: int | None = None


class Finish(NamedTuple):
    """Stop admitting writes to these resources, and commit the user's transaction. Reply: None.

    GuardError if the user's code ended the transaction, or tried to; OutcomeUnknownError and ConflictError as for
    Commit.
    """

    resources: tuple[str, ...]


# --- marks -----------------------------------------------------------------------------------------
class ReadMarks(NamedTuple):
    """Read the marks of these resources. Reply: dict[str, Mark], without the resources that have none.

    `claim`: a store that keeps claims secret returns this claim in a mark that it belongs to, and a substitute in any
    other. `may_share`: the marks of this claim will not be written, so other transactions of the same lease may go on.
    """

    resources: tuple[str, ...]
    claim: str | None = None
    may_share: bool = False


class WriteMarks(NamedTuple):
    """Write marks that a lease may write: raised ones, and those that their own holder closes. Reply: None."""

    marks: tuple[Mark, ...]


class AuditEntry(NamedTuple):
    """What an operator did to a resource, and why; the store adds the time."""

    action: str
    resource: str
    from_token: int
    to_token: int
    who: str
    reason: str


class ChangeMark(NamedTuple):
    """Write an audit entry and, on its authority, a change of a mark that no lease may make (G8). Reply: None."""

    mark: Mark
    entry: AuditEntry


class WriteAudit(NamedTuple):
    """Write an audit entry about something other than a mark. Reply: None."""

    entry: AuditEntry


# --- in the caller's own transaction -----------------------------------------------------------------
class Join(NamedTuple):
    """Keep the marks of these resources from changing for the rest of the caller's own transaction, and limit its
    idleness as Open does. Reply: bool, whether a mark may be raised in it. `is_to_raise`: the caller may need that.

    GuardError if that transaction reads an outdated state of the resource.
    """

    resources: tuple[str, ...]
    is_to_raise: bool = False
    limit_ms: int | None = None


class Present(NamedTuple):
    """Admit writes in the caller's own transaction, and limit its idleness, as Open does.

    Reply: tuple[str, ...], the resources whose mark is not the sequencer's.
    """

    resources: tuple[str, ...]
    sequencer: Sequencer
    limit_ms: int | None = None


class Unpresent(NamedTuple):
    """Stop admitting writes, before the caller commits. Reply: None. GuardError if the transaction has ended or failed.

    In a framework's transaction, which ends next, writes may be admitted until then.
    """

    resources: tuple[str, ...]


# --- protection ------------------------------------------------------------------------------------
class ReadProtections(NamedTuple):
    """Read which tables of a resource are protected. Reply: tuple[Protection, ...]."""

    resource: str


class Protect(NamedTuple):
    """Have the store itself enforce or observe writes to these tables, and bind the resource to the lock.

    Reply: Protected.
    """

    resource: str
    lock: str
    tables: tuple[str, ...]
    mode: str


class Protected(NamedTuple):
    """The former protection of each table whose mode has changed."""

    changed: tuple[Protection, ...]


class Unprotect(NamedTuple):
    """Stop protecting these tables, or all tables of the resource if none is named.

    Reply: tuple[Protection, ...], the protections that were removed.
    """

    resource: str
    tables: tuple[str, ...]


class RecordRefusal(NamedTuple):
    """Count a refusal that observe mode did not carry out. Reply: None."""

    resource: str
    kind: str


# --- inspection, outside of any transaction --------------------------------------------------------
class InspectResources(NamedTuple):
    """Read what the store keeps of one resource, or of all (None). Reply: ResourceReport."""

    resource: str | None


class Observation(NamedTuple):
    """Writes that observe mode let pass. `table` is empty if the refusal concerned a lease instead of a row.

    `kind` is insert, update, delete or truncate, or the reason for which the lease would have been refused; the two
    times are UTC, ISO 8601. Only servers know the client: its role, the name of its application, and its address.
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
    """What a guard's store keeps at one moment: of one resource, or of all."""

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
