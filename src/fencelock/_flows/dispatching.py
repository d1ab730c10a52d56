"""An effect that nothing can fence (a mail, a payment): its intent before it, its result after it.

Promise: the intent is on the disk, under the newest token, before the effect begins; a later holder finds it.
Never: the effect twice under one key without somebody saying so. What cannot be promised: that an effect whose holder
froze in the middle happened, or that it did not.
"""

from typing import NamedTuple

from fencelock._flows.guarding import Opened, finish, open_transaction
from fencelock._flows.tenure import Scope, Tenure
from fencelock.errors import AlreadyDoneError, EffectInDoubtError
from fencelock.model import Sequencer
from fencelock.protocol.generators import ask
from fencelock.protocol.guard_requests import Effect, GuardFlow, ReadEffect, WriteEffect


class Begun(NamedTuple):
    """The transaction that wrote an intent, and whether an earlier intent stood there: then the effect stays in doubt
    even if this one does not begin.
    """

    opened: Opened
    was_in_doubt: bool


def begin_effect(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None, effect: Effect, *, may_repeat: bool
) -> GuardFlow[Begun]:
    """Write the intent; AlreadyDoneError or EffectInDoubtError if the resource keeps one under this key already."""
    opened = yield from _open(scope, sequencer, tenure, limit_ms)
    resource = scope.resources[0]
    before = yield from ask(ReadEffect(resource, effect.key))
    if before is not None:
        _check_may_repeat(resource, before, may_repeat=may_repeat)
    yield WriteEffect(resource, effect)
    yield from finish(scope, sequencer, tenure, opened.presented)
    return Begun(opened, before is not None)


def end_effect(
    scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None, effect: Effect
) -> GuardFlow[None]:
    """Write the result, or take back the intent of an effect that was never begun (without a holder)."""
    opened = yield from _open(scope, sequencer, tenure, limit_ms)
    resource = scope.resources[0]
    before = yield from ask(ReadEffect(resource, effect.key))
    yield WriteEffect(resource, effect._replace(began_at=before.began_at if before else ""))
    yield from finish(scope, sequencer, tenure, opened.presented)


def _open(scope: Scope, sequencer: Sequencer, tenure: Tenure, limit_ms: int | None) -> GuardFlow[Opened]:
    """Begin a transaction that is flushed. Observe mode lets no stale lease pass here: there is no write to observe."""
    opened = yield from open_transaction(scope, sequencer, tenure, limit_ms, is_flushed=True)
    if opened.refused:
        raise opened.refused[0].error
    return opened


def _check_may_repeat(resource: str, before: Effect, *, may_repeat: bool) -> None:
    if before.result is not None:
        raise AlreadyDoneError(
            f"{before.key!r} was done at resource {resource!r} before, by {before.holder} with token {before.token}; "
            f"the error's .result is what was recorded",
            result=before.result,
            token=before.token,
        )
    if not may_repeat:
        raise EffectInDoubtError(
            f"{before.holder} began {before.key!r} at {before.began_at} with token {before.token}, and recorded no "
            f"result: it may have happened. Find out at the other side; then dispatch with may_repeat=True, to do it "
            f"now or only to record the result",
            token=before.token,
            holder=before.holder,
            began_at=before.began_at,
        )
