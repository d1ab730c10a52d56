"""Jobs that are done once per key and resource: in a guarded block (`once=`), or outside of every guard (`dispatch`).

Promise: the key is kept under the newest token before the work begins. In a guarded block it is committed together with
the work or not at all; for `dispatch` its commit is flushed before the effect. A later caller, a stale holder too,
is told what was recorded. Never: the work of one key committed twice. What cannot be promised: that an effect outside,
whose holder froze in the middle, happened, or that it did not.
"""

from contextlib import suppress
from typing import NamedTuple, TypeVar

from fencelock._flows.conflicts import retry_on_conflict
from fencelock._flows.doubts import note_repeatable
from fencelock._flows.guarding import Opened, explain_conflict, finish, open_transaction, present, withdraw
from fencelock._flows.tenure import Scope, Tenure
from fencelock.errors import (
    AlreadyDoneError,
    EffectInDoubtError,
    FencelockError,
    KeyReusedError,
    OutcomeUnknownError,
    StaleTokenError,
)
from fencelock.model import Sequencer
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import (
    BeginEffect,
    ConflictError,
    Effect,
    Finish,
    GuardFlow,
    ReadEffect,
    WriteEffect,
)

Result = TypeVar("Result")


def note_done_once(error: OutcomeUnknownError, key: str) -> None:
    """Note on an unknown outcome that the block may be repeated with this key."""
    note_repeatable(error, f"repeat the block with its key {key!r}: its work is done once")


class Begun(NamedTuple):
    """The transaction that wrote an intent, and whether an earlier intent stood there: then the effect stays in doubt
    even if this one does not begin.
    """

    opened: Opened
    was_in_doubt: bool


# --- in a guarded block -----------------------------------------------------------------------------------------------
@retry_on_conflict
def open_once(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None, effect: Effect
) -> GuardFlow[Opened]:
    """Begin the block's transaction, and keep the intent in it; AlreadyDoneError or EffectInDoubtError if the resource
    keeps one under this key already.
    """
    opened = yield from open_transaction(scope, sequencer, tenure, limit_ms)
    yield from _begin_in(scope, effect, opened)
    return opened


def present_once(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None, effect: Effect
) -> GuardFlow[Opened]:
    """Present the lease in the caller's transaction, and keep the intent in it.

    A store that does not show what another transaction has begun raises GuardError: the caller begins again.
    """
    opened = yield from present(scope, sequencer, tenure, limit_ms)
    try:
        yield from _begin_in(scope, effect, opened)
    except FencelockError:
        with suppress(FencelockError):  # The transaction may have failed, and then presents nothing.
            yield from withdraw(opened.presented)
        raise
    return opened


def finish_once(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, presented: tuple[str, ...], done: Effect
) -> GuardFlow[None]:
    """Record the result, and commit the block's transaction; AlreadyDoneError if another block was faster."""
    try:
        yield WriteEffect(scope.resources[0], done)
        yield Finish(presented)
    except ConflictError as conflict:
        # First, because of two blocks with one key the slower one meets its conflict for just that reason.
        yield from tell_if_done(scope, done, conflict)
        yield from explain_conflict(scope, sequencer, tenure, conflict)
    except OutcomeUnknownError as unknown:
        note_done_once(unknown, done.key)
        raise


def withdraw_once(scope: Scope, presented: tuple[str, ...], done: Effect) -> GuardFlow[None]:
    """Record the result, and stop admitting writes, before the caller commits."""
    yield WriteEffect(scope.resources[0], done)
    yield from withdraw(presented)


def told_if_done(flow: GuardFlow[Result], scope: Scope, effect: Effect) -> GuardFlow[Result]:
    """Run the flow; if its token is stale by now, raise AlreadyDoneError in that error's place if a result is kept."""
    try:
        return (yield from flow)
    except StaleTokenError as stale:
        yield from tell_if_done(scope, effect, stale)
        raise


def tell_if_done(scope: Scope, effect: Effect, refused: Exception) -> GuardFlow[None]:
    """Raise AlreadyDoneError if the resource keeps a result under this key; the refusal is its cause."""
    resource = scope.resources[0]
    try:
        before = yield from ask(ReadEffect(resource, effect.key))
    except FencelockError:
        return  # The refusal itself is certain.
    if before is not None and before.result is not None:
        _check_request(resource, before, effect)
        raise _already_done(resource, before, before.result) from refused


def _begin_in(scope: Scope, effect: Effect, opened: Opened) -> GuardFlow[None]:
    """Keep the intent. Observe mode lets no stale lease pass here, because it could not keep one."""
    if opened.refused:
        raise opened.refused[0].error
    resource = scope.resources[0]
    check_not_begun(resource, (yield from ask(BeginEffect(resource, effect))), effect)


# --- outside of every guard -------------------------------------------------------------------------------------------
def begin_effect(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None, effect: Effect, *, may_repeat: bool
) -> GuardFlow[Begun]:
    """Write the intent; AlreadyDoneError or EffectInDoubtError if the resource keeps one under this key already."""
    flow = _begin_effect(scope, sequencer, tenure, limit_ms, effect, may_repeat=may_repeat)
    return (yield from told_if_done(flow, scope, effect))


@retry_on_conflict
def _begin_effect(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None, effect: Effect, *, may_repeat: bool
) -> GuardFlow[Begun]:
    opened = yield from _open_flushed(scope, sequencer, tenure, limit_ms)
    resource = scope.resources[0]
    before = yield from ask(BeginEffect(resource, effect))
    if before is not None:
        _check_may_repeat(resource, before, may_repeat=may_repeat)
        yield WriteEffect(resource, effect)
    yield from finish(scope, sequencer, tenure, opened.presented)
    return Begun(opened, before is not None)


def end_effect(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None, effect: Effect
) -> GuardFlow[None]:
    """Write the result, or take back the intent of an effect that was never begun (without a holder)."""
    opened = yield from _open_flushed(scope, sequencer, tenure, limit_ms)
    yield WriteEffect(scope.resources[0], effect)
    yield from finish(scope, sequencer, tenure, opened.presented)


def _open_flushed(scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None) -> GuardFlow[Opened]:
    """Begin a transaction that is flushed. Observe mode lets no stale lease pass here: there is no write to observe."""
    opened = yield from open_transaction(scope, sequencer, tenure, limit_ms, is_flushed=True)
    if opened.refused:
        raise opened.refused[0].error
    return opened


# --- what an earlier one means ----------------------------------------------------------------------------------------
def check_not_begun(resource: str, before: Effect | None, effect: Effect) -> None:
    """Raise the error for what the resource keeps under the key already; None: nothing."""
    if before is not None:
        _check_request(resource, before, effect)
        _check_may_repeat(resource, before, may_repeat=False)


def _check_request(resource: str, before: Effect, effect: Effect) -> None:
    if before.request_digest != effect.request_digest:
        raise KeyReusedError(
            f"key {before.key!r} of resource {resource!r} stands for another request, which {before.holder} began at "
            f"{before.began_at} with token {before.token}; nothing of this one was done. Give each request a key of "
            f"its own, or write the request as it was",
            token=before.token,
            holder=before.holder,
        )


def _check_may_repeat(resource: str, before: Effect, *, may_repeat: bool) -> None:
    if before.result is not None:
        raise _already_done(resource, before, before.result)
    if not may_repeat:
        raise EffectInDoubtError(
            f"{before.holder} began {before.key!r} at {before.began_at} with token {before.token}, and recorded no "
            f"result: it may have happened. Find out at the other side; then dispatch with may_repeat=True, to do it "
            f"now or only to record the result",
            token=before.token,
            holder=before.holder,
            began_at=before.began_at,
        )


def _already_done(resource: str, before: Effect, result: str) -> AlreadyDoneError:
    return AlreadyDoneError(
        f"{before.key!r} was done at resource {resource!r} before, by {before.holder} with token {before.token}; "
        f"the error's .result is what was recorded",
        result=result,
        token=before.token,
    )
