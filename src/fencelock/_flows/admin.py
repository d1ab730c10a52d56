"""An operator's work on a guarded resource: protect it, move its mark, bind it to another lock.

Promise: each operation is one flushed transaction. Every change of a mark, except for a lease's seal, leaves an audit
entry that says who, when, from, to and why (G8). A mark that an operator has set belongs to no lease, so it also
refuses the lease that held its token. Never: a mark moved to a source whose next token the resource would refuse.
"""

from fencelock._flows.admit import admit
from fencelock._flows.conflicts import retry_on_conflict
from fencelock._flows.guarding import check_bound, check_lasts, check_lock
from fencelock._flows.marks import read_marks
from fencelock._flows.tenure import Scope
from fencelock.errors import FencelockError, GuardError, StaleTokenError, WrongLockError
from fencelock.model import Mark, Protection, Sequencer, SourceInfo
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import (
    OBSERVE,
    ORPHANED,
    AuditEntry,
    Begin,
    ChangeMark,
    Commit,
    GuardFlow,
    HoldMarks,
    Protect,
    ReadMarks,
    Restore,
    SetSavepoint,
    UndoToSavepoint,
    Unprotect,
    WasProtected,
    WriteAudit,
)


@retry_on_conflict
def protect(scope: Scope, tables: tuple[str, ...], mode: str, source: SourceInfo | None, who: str) -> GuardFlow[None]:
    """Have the store enforce, or observe, writes to these tables of the guard's one resource.

    The switch from observe to enforce raises the mark to the source's last token, so that no writer that was only
    observed until now goes on under a token that the resource never sealed (G6).
    """
    yield Begin()
    yield from _protect(scope, tables, mode, source, who)
    yield Commit()


def protect_inside(
    scope: Scope, tables: tuple[str, ...], mode: str, source: SourceInfo | None, who: str
) -> GuardFlow[None]:
    """`protect` inside the caller's own transaction."""
    yield from _inside(scope, _protect(scope, tables, mode, source, who))


def _protect(scope: Scope, tables: tuple[str, ...], mode: str, source: SourceInfo | None, who: str) -> GuardFlow[None]:
    if source is not None:
        check_lasts(scope, source.source_id)
    (mark,) = yield from read_marks(scope)
    check_bound(mark, scope.lock)
    done = yield from ask(Protect(mark.resource, scope.lock, tables, mode))
    if done.changed:
        yield from _switch(mark, done.changed, mode, source, who)


@retry_on_conflict
def create_mark(scope: Scope, source: SourceInfo | None, who: str) -> GuardFlow[None]:
    """Create the mark of the guard's one resource where no seal does, bound to the guard's lock; leave one that exists.

    With its source the mark is the last token, which refuses every lease until now: so it replaces one that was lost.
    """
    if source is not None:
        check_lasts(scope, source.source_id)
    yield Begin()
    (resource,) = scope.resources
    known = yield from ask(ReadMarks(scope.resources))
    if resource in known:
        check_bound(known[resource], scope.lock)
    else:
        mark = Mark(resource, scope.lock)
        if source is not None and source.last_token:
            mark = Mark(resource, scope.lock, source.last_token, source.source_id, source.history_id)
        elif source is None and (yield from ask(WasProtected(resource))):
            raise GuardError(
                f"resource {resource!r} at {scope.url} was protected before, and its mark is gone: creating it again "
                f"raises it to the last token of its source, so say which: source=… (or --source URL)"
            )
        why = "no source was named" if source is None else f"after the last token of source {source.source_id}"
        yield ChangeMark(mark, AuditEntry("protect", resource, 0, mark.token, who, why))
    yield Commit()


def hold(scope: Scope) -> GuardFlow[None]:
    """Lock the marks in the caller's own transaction, before its DDL."""
    yield HoldMarks(scope.resources)
    for mark in (yield from read_marks(scope)):
        check_bound(mark, scope.lock)


def restore(scope: Scope, tables: tuple[str, ...]) -> GuardFlow[None]:
    """Protect rebuilt tables again, in the caller's own transaction."""
    (resource,) = scope.resources
    yield from _inside(scope, ask(Restore(resource, tables)))


def _inside(scope: Scope, change: GuardFlow[None]) -> GuardFlow[None]:
    """Make a change in the caller's own transaction after locking the marks: all of it, or nothing if it is refused."""
    # The marks before any table, as guarded blocks lock them: otherwise the two could wait for each other.
    yield HoldMarks(scope.resources)
    yield SetSavepoint()
    try:
        yield from change
    except FencelockError:
        yield UndoToSavepoint()
        raise


def _switch(
    mark: Mark, changed: tuple[Protection, ...], mode: str, source: SourceInfo | None, who: str
) -> GuardFlow[None]:
    reason = ", ".join(f"{table.table}: {table.mode} to {mode}" for table in changed)
    if mode == OBSERVE:
        yield WriteAudit(_entry("mode", mark, mark.token, who, reason))
        return
    if source is None:
        first = changed[0]
        why = (
            "has triggers of fencelock without a record: fencelock's own tables were dropped, perhaps with the mark. "
            "Protecting it again"
            if first.mode == ORPHANED
            else "was only observed: enforcing now"
        )
        raise GuardError(
            f"table {first.table!r} of resource {mark.resource!r} {why} raises the mark to the last token of its "
            f"source, so say which: source=… (or --source URL)"
        )
    yield from _raise(mark, source, "mode", who, reason)


@retry_on_conflict
def unprotect(scope: Scope, tables: tuple[str, ...], who: str, reason: str) -> GuardFlow[None]:
    """Stop protecting these tables, or all tables of the guard's one resource if none is named."""
    yield Begin()
    yield from _unprotect(scope, tables, who, reason)
    yield Commit()


def unprotect_inside(scope: Scope, tables: tuple[str, ...], who: str, reason: str) -> GuardFlow[None]:
    """`unprotect` inside the caller's own transaction."""
    yield from _inside(scope, _unprotect(scope, tables, who, reason))


def _unprotect(scope: Scope, tables: tuple[str, ...], who: str, reason: str) -> GuardFlow[None]:
    (mark,) = yield from read_marks(scope)
    check_bound(mark, scope.lock)
    removed = yield from ask(Unprotect(mark.resource, tables))
    if removed:
        named = ", ".join(protection.table for protection in removed)
        yield WriteAudit(_entry("unprotect", mark, mark.token, who, f"{reason} ({named})"))


@retry_on_conflict
def lower(scope: Scope, token: int, who: str, reason: str) -> GuardFlow[None]:
    """Set the mark of the guard's one resource to a lower token: the remedy for a poisoned mark."""
    yield Begin()
    (mark,) = yield from read_marks(scope)
    check_bound(mark, scope.lock)
    if token >= mark.token:
        raise GuardError(
            f"resource {mark.resource!r} has mark {mark.token}, which {token} is not below: nothing to lower"
        )
    yield ChangeMark(_operators(mark, token), _entry("lower", mark, token, who, reason))
    yield Commit()


@retry_on_conflict
def raise_to(
    scope: Scope, to: SourceInfo | int, who: str, reason: str, *, is_implausible: bool = False
) -> GuardFlow[None]:
    """Raise every mark of the guard to a token, or to the last one of the source.

    The step after a restore (G9). A lease that holds exactly this token is refused as well, because the restore may
    have undone what it has read.
    """
    if isinstance(to, SourceInfo):
        check_lasts(scope, to.source_id)
    yield Begin()
    for mark in (yield from read_marks(scope, is_to_create=True)):
        check_bound(mark, scope.lock)
        if isinstance(to, SourceInfo):
            yield from _raise(mark, to, "raise-to", who, reason, is_implausible=is_implausible)
        else:
            _check_not_below(mark, to, "use lower")
            entry = _entry("raise-to", mark, to, who, reason)
            yield ChangeMark(_operators(mark, to), entry, is_implausible=is_implausible)
    yield Commit()


def rebind(scope: Scope, lock: str, source: SourceInfo, who: str, reason: str) -> GuardFlow[None]:
    """Bind every resource of the guard to another lock or source, whose next token its mark admits (G5).

    A resource may once have had a mark of that source, which was purged: then its mark becomes the floor (G15).
    """
    check_lasts(scope, source.source_id)
    try:
        yield from _rebind(scope, lock, source, 0, who, reason)
    except StaleTokenError as below_floor:
        yield from _rebind(scope, lock, source, below_floor.mark, who, reason)


@retry_on_conflict
def _rebind(scope: Scope, lock: str, source: SourceInfo, at_least: int, who: str, reason: str) -> GuardFlow[None]:
    yield Begin()
    for mark in (yield from read_marks(scope)):
        check_bound(mark, scope.lock)
        _check_not_below(mark, source.last_token, "run `fencelock epoch --raise` on that source")
        token = max(mark.token, at_least)
        moved = Mark(mark.resource, lock, token, source.source_id, source.history_id)
        why = f"{reason} (from lock {mark.lock!r} to {lock!r})"
        yield ChangeMark(moved, _entry("rebind", mark, token, who, why))
    yield Commit()


@retry_on_conflict
def outrank(scope: Scope, sequencer: Sequencer, who: str, reason: str) -> GuardFlow[None]:
    """Raise every mark of the guard to a token that was minted by breaking its lock (G10).

    The broken lease is stale afterwards; the mark belongs to no lease, and the next holder gets a higher token.
    """
    check_lock(scope, sequencer)
    yield Begin()
    for mark in (yield from read_marks(scope)):
        check_bound(mark, scope.lock)
        _check_source(mark, sequencer.source_id)
        is_equal = mark.token == sequencer.token
        if is_equal and mark.digest not in (None, sequencer.digest):
            # Another holder has the token that was just minted; an unchanged mark would let that holder go on.
            admit(mark, sequencer, was_sealed=False)
        if mark.token < sequencer.token or (is_equal and mark.digest is not None):
            raised = Mark(
                mark.resource,
                mark.lock,
                sequencer.token,
                sequencer.source_id,
                sequencer.history_id,
            )
            yield ChangeMark(raised, _entry("break", mark, sequencer.token, who, reason), sequencer)
    yield Commit()


def _raise(
    mark: Mark, source: SourceInfo, action: str, who: str, reason: str, *, is_implausible: bool = False
) -> GuardFlow[None]:
    """Raise a mark over every token that its source has issued."""
    _check_source(mark, source.source_id)
    # The source answered before this transaction began: a newer holder may have sealed the resource in between.
    _check_not_below(
        mark,
        source.last_token,
        "try again, for a new holder may have sealed it just now. If it stays so, the source lost tokens: run "
        "`fencelock epoch --raise` on it",
    )
    if source.last_token == 0:
        yield WriteAudit(_entry(action, mark, mark.token, who, reason))
        return
    raised = Mark(mark.resource, mark.lock, source.last_token, source.source_id, source.history_id)
    entry = _entry(action, mark, source.last_token, who, reason)
    yield ChangeMark(raised, entry, is_implausible=is_implausible)


def _check_source(mark: Mark, source_id: str) -> None:
    if mark.source_id not in (None, source_id):
        raise WrongLockError(
            f"resource {mark.resource!r} is bound to source {mark.source_id}, not to {source_id}, whose "
            f"tokens cannot be compared: name the first, or move the resource by `fencelock rebind`"
        )


def _check_not_below(mark: Mark, token: int, remedy: str) -> None:
    if token < mark.token:
        raise GuardError(f"resource {mark.resource!r} has mark {mark.token}, and {token} is below it: {remedy}")


def _operators(mark: Mark, token: int) -> Mark:
    return Mark(mark.resource, mark.lock, token, mark.source_id, mark.history_id)


def _entry(action: str, mark: Mark, to_token: int, who: str, reason: str) -> AuditEntry:
    return AuditEntry(action, mark.resource, mark.token, to_token, who, reason)
