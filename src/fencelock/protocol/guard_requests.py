"""The requests to the store of a guarded resource, and its replies.

Promise: requests and replies are plain values. Between `Begin` and `Commit`, and between `Open` and `Finish`, all
requests run in one write transaction, which either keeps the marks from changing or is refused at its end if one has
changed; an exception rolls it back. A store makes no decision: it compares, reads and writes marks, and refuses writes
that present no token.
"""

# ruff: noqa: PLC0414 - the requests about marks and tables are offered here too

from collections.abc import Generator
from typing import Any, NamedTuple, TypeVar

from fencelock.model import Mark, Protection, Sequencer, SigningKey
from fencelock.protocol.mark_requests import AuditEntry as AuditEntry
from fencelock.protocol.mark_requests import ChangeMark as ChangeMark
from fencelock.protocol.mark_requests import CloseMarks as CloseMarks
from fencelock.protocol.mark_requests import FindOldMarks as FindOldMarks
from fencelock.protocol.mark_requests import Floor as Floor
from fencelock.protocol.mark_requests import PurgeMarks as PurgeMarks
from fencelock.protocol.mark_requests import RaiseMarks as RaiseMarks
from fencelock.protocol.mark_requests import ReadMarks as ReadMarks
from fencelock.protocol.mark_requests import SetFloor as SetFloor
from fencelock.protocol.mark_requests import WasProtected as WasProtected
from fencelock.protocol.mark_requests import WriteAudit as WriteAudit
from fencelock.protocol.table_requests import ENFORCE as ENFORCE
from fencelock.protocol.table_requests import OBSERVE as OBSERVE
from fencelock.protocol.table_requests import ORPHANED as ORPHANED
from fencelock.protocol.table_requests import HoldMarks as HoldMarks
from fencelock.protocol.table_requests import Protect as Protect
from fencelock.protocol.table_requests import Protected as Protected
from fencelock.protocol.table_requests import ReadProtections as ReadProtections
from fencelock.protocol.table_requests import RecordRefusal as RecordRefusal
from fencelock.protocol.table_requests import Restore as Restore
from fencelock.protocol.table_requests import SetSavepoint as SetSavepoint
from fencelock.protocol.table_requests import UndoToSavepoint as UndoToSavepoint
from fencelock.protocol.table_requests import Unprotect as Unprotect


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
    after that (G3). `is_flushed`: its commit is flushed before the reply to Finish, as that of Begin is, whatever the
    users of the store have set.
    """

    resources: tuple[str, ...]
    sequencer: Sequencer
    limit_ms: int | None = None
    is_flushed: bool = False


class Finish(NamedTuple):
    """Stop admitting writes to these resources, and commit the user's transaction. Reply: None.

    GuardError if the user's code ended the transaction, or tried to; OutcomeUnknownError and ConflictError as for
    Commit.
    """

    resources: tuple[str, ...]


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


# --- effects: what a resource keeps of a job that is done once ------------------------------------
MAX_KEY_BYTES = 512
MAX_RESULT_BYTES = 4096


class Effect(NamedTuple):
    """What a resource keeps under one key: who began it, with which token and when (UTC, ISO 8601), its result (None:
    nobody has recorded one), and the digest of what was asked for. The store itself notes the time of an intent, so
    `began_at` is empty in a request.
    """

    key: str
    token: int
    holder: str
    began_at: str = ""
    result: str | None = None
    request_digest: str = ""


class BeginEffect(NamedTuple):
    """Keep the intent of an effect of the resource, which this block has presented, unless the resource keeps something
    under its key. Reply: Effect | None, what it keeps already.

    Of two open transactions that begin the same one, the second waits for the end of the first, or is refused at its
    own end. ConflictError if this transaction cannot see what the other one wrote, and a later one can; in the caller's
    own transaction GuardError, and the caller begins again.
    """

    resource: str
    effect: Effect


class ReadEffect(NamedTuple):
    """Read what the resource keeps under this key, for a lease that may be stale by now: inside a transaction, or
    outside of any. Reply: Effect | None. RightError if this role may not present the resource.
    """

    resource: str
    key: str


class WriteEffect(NamedTuple):
    """Replace an effect of the resource, which this block has presented, before the block ends; without a holder,
    forget it. Reply: None. The store keeps the token that was presented, and refuses a block that has presented none. A
    result leaves the time at which its effect began.
    """

    resource: str
    effect: Effect


class PurgeEffects(NamedTuple):
    """Forget each effect with a result that began longer ago than this, unless its token is the mark of its resource.
    Reply: int, how many there were.
    """

    older_than_ms: int


# --- rights and signatures --------------------------------------------------------------------------
class Right(NamedTuple):
    """A role may seal, present and close this resource; a resource that ends in `*` stands for all with that prefix."""

    resource: str
    role: str

    def covers(self, resource: str) -> bool:
        """Return whether it is a right to this resource."""
        has_prefix = self.resource.endswith("*") and resource.startswith(self.resource[:-1])
        return has_prefix or self.resource == resource


class GrantRight(NamedTuple):
    """Give a role a right, and write the audit entry. Repeating it is allowed. Reply: None."""

    right: Right
    entry: AuditEntry


class RevokeRights(NamedTuple):
    """Take every right of a role that covers one of these resources, and write the audit entries. A resource that ends
    in `*` stands for the right of that name. Reply: tuple[Right, ...], what the role had.
    """

    resources: tuple[str, ...]
    role: str
    entries: tuple[AuditEntry, ...]


class EndSessions(NamedTuple):
    """End every other session of a role in this database, and wait until they have ended, outside of any transaction.
    Reply: int, how many there were.
    """

    role: str


class WriteKeys(NamedTuple):
    """Replace the keys with which this guard checks signatures, and write the audit entry. Reply: None."""

    keys: tuple[SigningKey, ...]
    entry: AuditEntry


class RequireSignatures(NamedTuple):
    """Require, or no longer require, a valid signature of every sequencer that raises these marks. Reply: None."""

    resources: tuple[str, ...]
    is_required: bool
    entries: tuple[AuditEntry, ...]


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
    rights: tuple[Right, ...] = ()
    signed: tuple[str, ...] = ()
    """The resources that require signatures."""
    keeps_rights: bool = False
    """Whether the store has rights; elsewhere its clients write the marks themselves."""
    floors: tuple[Floor, ...] = ()
    """The floors of all sources of which marks were purged, whichever resource was asked for (G15)."""


Result = TypeVar("Result")
GuardRequest = (
    Begin | Commit | Open | Finish | ReadMarks | RaiseMarks | CloseMarks | ChangeMark | WasProtected | WriteAudit
    | FindOldMarks | PurgeMarks | SetFloor | Join | Present | Unpresent | BeginEffect | ReadEffect | WriteEffect
    | PurgeEffects | GrantRight | RevokeRights | EndSessions | WriteKeys | RequireSignatures | HoldMarks | SetSavepoint
    | UndoToSavepoint | ReadProtections | Protect | Unprotect | Restore | RecordRefusal | InspectResources
)  # fmt: skip
"""What a guard's connection answers."""

GuardReply = (
    tuple[str, ...] | tuple[Mark, ...] | tuple[Protection, ...] | tuple[Right, ...] | dict[str, Mark] | Protected
    | ResourceReport | Effect | bool | int | None
)  # fmt: skip
"""What a guard's connection replies; each request's docstring names which of these it gets."""

GuardFlow = Generator[GuardRequest, Any, Result]
"""Yields requests to a guarded resource, is sent the replies, and returns a Result. `ask` gives each reply its type."""
