"""What a lease does at a guarded resource: seal it, open and end transactions on it, close it.

Promise: a resource is sealed in a committed and flushed transaction of its own before the tenure reads it, and every
later transaction finds the mark unchanged or is refused (G1, G2, G9). A tenure remembers a seal only after its commit
was confirmed. `admit` makes every decision: the store compares, and never concludes. Where the store compares at the
end of a transaction only, a refusal there names the mark that it met, or says that what the block had read has changed.
Never: a mark lowered, or raised a second time by one tenure; the user's work committed a second time.
"""

from typing import NamedTuple, NoReturn

from fencelock._flows.admit import Verdict, admit
from fencelock._flows.conflicts import retry_on_conflict
from fencelock._flows.doubts import keep_mark_in_doubt
from fencelock._flows.marks import read_marks
from fencelock._flows.tenure import Scope, Tenure
from fencelock.errors import (
    ForgedSequencerError,
    GuardError,
    ImplausibleTokenError,
    OutcomeUnknownError,
    RightError,
    SealLostError,
    StaleTokenError,
    TokenCollisionError,
    WrongLockError,
)
from fencelock.model import MEMORY_SOURCE_PREFIX, Mark, Sequencer
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import (
    ENFORCE,
    Begin,
    CloseMarks,
    Commit,
    ConflictError,
    Finish,
    GuardFlow,
    Join,
    Open,
    Present,
    RaiseMarks,
    ReadProtections,
    RecordRefusal,
    Unpresent,
)

MAX_COMMIT_TRIES = 3
KINDS: dict[type[GuardError], str] = {
    StaleTokenError: "stale",
    TokenCollisionError: "collision",
    WrongLockError: "wrong-lock",
    SealLostError: "seal-lost",
    ImplausibleTokenError: "implausible",
    ForgedSequencerError: "forged",
    RightError: "missing-right",
}
"""The reason for which a lease was refused, in one word, for observe mode and hooks."""
_MEMORY_SCHEME = "memory://"


class Refused(NamedTuple):
    """A resource that refuses the lease in observe mode, so that the work goes on."""

    resource: str
    error: GuardError


class Sealed(NamedTuple):
    """The resources whose marks were raised now, and those that refuse in observe mode."""

    raised: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()

    def refusing(self) -> set[str]:
        """Return the names of the resources that refuse."""
        return {one.resource for one in self.refused}


class Opened(NamedTuple):
    """An open guarded transaction: what was sealed for it (None: the tenure had sealed all before), the resources to
    which the lease is presented in it, and those that refuse in observe mode.
    """

    sealed: Sealed | None
    presented: tuple[str, ...]
    refused: tuple[Refused, ...]


def check_lock(scope: Scope, sequencer: Sequencer) -> None:
    """Raise WrongLockError if the lease is on another lock than the guard's."""
    if sequencer.lock != scope.lock:
        raise WrongLockError(
            f"the guard of {_list_of(scope.resources)} belongs to lock {scope.lock!r}, and the lease is on "
            f"lock {sequencer.lock!r}: acquire lock {scope.lock!r}, or open the guard for the other lock"
        )
    check_lasts(scope, sequencer.source_id)


def check_lasts(scope: Scope, source_id: str) -> None:
    """Raise WrongLockError if the resource would outlive the source, whose tokens start again in each process."""
    if source_id.startswith(MEMORY_SOURCE_PREFIX) and not scope.url.startswith(_MEMORY_SCHEME):
        raise WrongLockError(
            f"{_list_of(scope.resources)} at {scope.url} outlives source {source_id}, which is in the memory of one "
            f"process: the next process begins at token 1 again, and would be refused. Take the lock from a durable "
            f"source, in a test as well: sqlite:///… in a folder of its own"
        )


def seal(scope: Scope, sequencer: Sequencer, tenure: Tenure) -> GuardFlow[Sealed]:
    """Raise the marks of all resources of the guard to the lease's token, durably, in one transaction."""
    check_lock(scope, sequencer)
    tenure.check_may_open(scope.keys, is_independent=scope.is_independent)
    sealed = yield from _seal_durably(scope, sequencer, tenure)
    # Another thread of this tenure may have begun to read while this one was sealing: check again.
    tenure.check_may_open(scope.keys, is_independent=scope.is_independent)
    tenure.remember(scope.keys, scope.keys_without(sealed.refusing()))
    return sealed


@keep_mark_in_doubt
@retry_on_conflict
def _seal_durably(doubts: list[str], scope: Scope, sequencer: Sequencer, tenure: Tenure) -> GuardFlow[Sealed]:
    """Seal; if a commit was not confirmed, read the marks again, and rewrite those that may not be on the disk."""
    raised: tuple[str, ...] = ()
    for tries_left in reversed(range(MAX_COMMIT_TRIES)):
        sealed = yield from _seal_once(scope, sequencer, tenure, rewritten=raised)
        raised = sealed.raised
        try:
            yield Commit()
        except OutcomeUnknownError as error:
            doubts.append(str(error))
            if not tries_left:
                raise
        else:
            return sealed
    raise AssertionError("the loop ends by its return or its raise")


def _seal_once(scope: Scope, sequencer: Sequencer, tenure: Tenure, *, rewritten: tuple[str, ...]) -> GuardFlow[Sealed]:
    yield Begin()
    raised, refused = [], []
    # A mark that is to be written again is locked alone, even if it is this lease's already.
    for mark in (yield from read_marks(scope, tenure, shared_by=None if rewritten else sequencer.digest)):
        verdict = yield from _judge(mark, scope, sequencer, tenure)
        if isinstance(verdict, Refused):
            refused.append(verdict)
        # A commit in doubt may have made the mark visible without flushing it: this commit has to flush it (G4).
        elif verdict is Verdict.RAISE or mark.resource in rewritten:
            raised.append(mark.resource)
    if raised:
        yield RaiseMarks(tuple(raised), sequencer)
    return Sealed(tuple(raised), tuple(refused))


def sealed_mark(resource: str, sequencer: Sequencer, *, is_closed: bool = False) -> Mark:
    """Return the mark of a resource that this lease seals."""
    return Mark(
        resource,
        sequencer.lock,
        sequencer.token,
        sequencer.source_id,
        sequencer.history_id,
        sequencer.digest,
        is_closed,
    )


def check_bound(mark: Mark, lock: str) -> None:
    """Raise WrongLockError if the resource is bound to another lock than the guard's."""
    if mark.lock != lock:
        raise WrongLockError(
            f"resource {mark.resource!r} is bound to lock {mark.lock!r}, and this guard was opened for lock "
            f"{lock!r}: open it for lock {mark.lock!r}, or move the resource by `fencelock rebind`"
        )


def _judge(mark: Mark, scope: Scope, sequencer: Sequencer, tenure: Tenure) -> GuardFlow[Verdict | Refused]:
    """Ask `admit`; in observe mode count its refusal and go on (G6)."""
    try:
        check_bound(mark, scope.lock)
        return admit(mark, sequencer, was_sealed=tenure.has_sealed((scope.url, mark.resource)))
    except GuardError as error:
        protections = yield from ask(ReadProtections(mark.resource))
        if not protections or any(protection.mode == ENFORCE for protection in protections):
            raise
        yield RecordRefusal(mark.resource, KINDS[type(error)])
        return Refused(mark.resource, error)


def open_transaction(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None = None, *, is_flushed: bool = False
) -> GuardFlow[Opened]:
    """Seal what this tenure has not sealed, then begin a transaction in which its writes are admitted.

    `limit_ms` is the lease's time left, if it is known. `is_flushed`: the commit is flushed whatever the store's users
    have set.
    """
    sealed = None
    # A lease on another lock is sent there too: `seal` raises the error that explains it.
    if sequencer.lock != scope.lock or not tenure.has_sealed(*scope.keys):
        sealed = yield from seal(scope, sequencer, tenure)
    presented: tuple[str, ...] = scope.resources
    refused: tuple[Refused, ...] = ()
    if refused_resources := (yield from ask(Open(presented, sequencer, limit_ms, is_flushed))):
        refused = yield from _refusals(scope, sequencer, tenure, refused_resources)
        presented = _without(presented, refused_resources)
    tenure.begin_reading(scope.keys_without(refused_resources))
    return Opened(sealed, presented, refused)


def _refusals(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, refused_resources: tuple[str, ...]
) -> GuardFlow[tuple[Refused, ...]]:
    """Raise the error of `admit` for a mark that is not the sequencer's; return the refusals of observe mode."""
    refused = []
    for mark in (yield from read_marks(scope, tenure, refused_resources)):
        verdict = yield from _judge(mark, scope, sequencer, tenure)
        if isinstance(verdict, Refused):
            refused.append(verdict)
        elif verdict is Verdict.RAISE:
            # It was in observe mode, and its mark has fallen since: going on would mean to write without a seal.
            raise _not_sealed(mark, sequencer)
    return tuple(refused)


def _without(resources: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(resource for resource in resources if resource not in others)


def finish(scope: Scope, sequencer: Sequencer, tenure: Tenure, presented: tuple[str, ...]) -> GuardFlow[None]:
    """Commit the open transaction, in which the lease was presented to these resources."""
    try:
        yield Finish(presented)
    except ConflictError as conflict:
        yield from explain_conflict(scope, sequencer, tenure, conflict)


def explain_conflict(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, conflict: ConflictError
) -> GuardFlow[NoReturn]:
    """Raise the error for a block that the store refused to write at its end."""
    yield Begin()
    for mark in (yield from read_marks(scope, tenure)):
        check_bound(mark, scope.lock)
        admit(mark, sequencer, was_sealed=tenure.has_sealed((scope.url, mark.resource)))
    raise GuardError(
        f"the marks are still this lease's, but {conflict}: nothing of the block was written. Another block of the "
        f"same lease was faster, or somebody writes there without the guard: start it again"
    ) from conflict


def present(scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None = None) -> GuardFlow[Opened]:
    """Admit the caller's writes from here on, in a transaction that was checked, or began after the seal."""
    refused: tuple[Refused, ...] = ()
    if refused_resources := (yield from ask(Present(scope.resources, sequencer, limit_ms))):
        refused = yield from _refusals(scope, sequencer, tenure, refused_resources)
    tenure.begin_reading(scope.keys_without(refused_resources))
    return Opened(None, _without(scope.resources, refused_resources), refused)


def withdraw(presented: tuple[str, ...]) -> GuardFlow[None]:
    """Stop admitting the caller's writes, before they are committed."""
    yield Unpresent(presented)


def check(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None = None, *, may_raise: bool = False
) -> GuardFlow[Sealed]:
    """Check inside the caller's transaction that every mark is this lease's, and hold the marks there.

    With `may_raise` a lower mark is raised in that transaction, where that is safe. The tenure does not remember such a
    seal, because the caller may roll it back; it is made again if needed.
    """
    check_lock(scope, sequencer)
    tenure.check_may_open(scope.keys, is_independent=scope.is_independent)
    is_to_raise = may_raise and not tenure.has_sealed(*scope.keys)
    can_raise = yield from ask(Join(scope.resources, is_to_raise, limit_ms))
    raised, refused = [], []
    for mark in (yield from read_marks(scope, tenure, shared_by=sequencer.digest)):
        verdict = yield from _judge(mark, scope, sequencer, tenure)
        if isinstance(verdict, Refused):
            refused.append(verdict)
        elif verdict is Verdict.RAISE:
            if not (is_to_raise and can_raise):
                raise _not_sealed(mark, sequencer)
            raised.append(mark.resource)
    if raised:
        yield RaiseMarks(tuple(raised), sequencer)
    done = Sealed(tuple(raised), tuple(refused))
    # If marks may be raised here, a mark that is already ours may have been raised by this very transaction.
    is_committed = not (is_to_raise and can_raise)
    tenure.remember(scope.keys, scope.keys_without(done.refusing()) if is_committed else ())
    tenure.begin_reading(scope.keys_without(done.refusing()))
    return done


def _not_sealed(mark: Mark, sequencer: Sequencer) -> GuardError:
    return GuardError(
        f"resource {mark.resource!r} is not sealed by token {sequencer.token} yet (its mark is {mark.token}), "
        f"and a mark cannot be raised inside this transaction, which may have read already: call "
        f"guard.seal(lease) before you begin it"
    )


@keep_mark_in_doubt
@retry_on_conflict
def close(doubts: list[str], scope: Scope, sequencer: Sequencer, claim: str, tenure: Tenure) -> GuardFlow[None]:
    """Make the lease's own token stale at every resource of the guard (G10). Idempotent.

    A resource that a newer holder has sealed is left alone: the token is stale there already. The claim shows that the
    holder itself closes, and not somebody who was shown the sequencer.
    """
    check_lock(scope, sequencer)
    for tries_left in reversed(range(MAX_COMMIT_TRIES)):
        yield Begin()
        raised, closed = [], []
        for mark in (yield from read_marks(scope, tenure)):
            if (yield from _may_close(mark, scope, sequencer, tenure)):
                closed.append(mark.resource)
                if mark.token < sequencer.token:
                    raised.append(mark.resource)
        if raised:
            yield RaiseMarks(tuple(raised), sequencer)
        if closed:
            yield CloseMarks(tuple(closed), claim)
        try:
            yield Commit()
        except OutcomeUnknownError as error:
            doubts.append(str(error))
            if not tries_left:
                raise
        else:
            # This tenure has raised each mark that it closed: it does not raise one again that gets lost (G9).
            tenure.remember((), tuple((scope.url, resource) for resource in closed))
            return


def _may_close(mark: Mark, scope: Scope, sequencer: Sequencer, tenure: Tenure) -> GuardFlow[bool]:
    if mark.token > sequencer.token or (mark.token == sequencer.token and mark.digest is None):
        return False
    if mark.is_closed and (mark.token, mark.digest) == (sequencer.token, sequencer.digest):
        # Perhaps an unconfirmed commit closed it: writing it again puts it on the disk.
        return True
    return not isinstance((yield from _judge(mark, scope, sequencer, tenure)), Refused)


def _list_of(resources: tuple[str, ...]) -> str:
    return ", ".join(f"resource {resource!r}" for resource in resources)
