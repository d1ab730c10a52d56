"""Decide whether a guard admits a sequencer: the rules G1, G2, G5 and G9 as one pure function.

Promise: `admit` either returns what to do with the mark or raises the error that says why not; equal input gives equal
output, and the simulator runs the same function as every store. Never: a mark lowered, a seal of one tenure made twice.
"""

from enum import Enum

from fencelock.errors import (
    SealLostError,
    StaleTokenError,
    TokenCollisionError,
    WrongLockError,
)
from fencelock.model import Mark, Sequencer


class Verdict(Enum):
    """RAISE: raise the mark to this token, durably, before reading anything. PASS: the mark is this tenure's."""

    RAISE = "raise"
    PASS = "pass"


def admit(mark: Mark, sequencer: Sequencer, *, was_sealed: bool) -> Verdict:
    """Return what to do with the mark, or raise. `was_sealed`: this tenure has sealed this resource before (G9)."""
    # First, because tokens of two sources cannot be compared: a lower number would prove nothing.
    _check_binding(mark, sequencer)
    if sequencer.token < mark.token:
        raise _stale(mark, sequencer, "a newer holder has sealed the resource")
    if sequencer.token == mark.token:
        _check_same_tenure(mark, sequencer)
        return Verdict.PASS
    if was_sealed:
        raise SealLostError(
            f"resource {mark.resource!r}: this tenure sealed it with token {sequencer.token}, and now its mark is "
            f"{mark.token}: the resource went back in time (rolled back, restored or failed over), or the lease is "
            "over and its mark was purged. All that was read from it is void: drop it, and acquire the lock again. "
            "Unless it was a purge, first run `fencelock marks URL --raise-to SOURCE --reason …` for every URL "
            f"of lock {mark.lock!r}"
        )
    return Verdict.RAISE


def _check_binding(mark: Mark, sequencer: Sequencer) -> None:
    if mark.lock != sequencer.lock:
        raise WrongLockError(
            f"resource {mark.resource!r} is bound to lock {mark.lock!r}; the sequencer is of lock {sequencer.lock!r}. "
            f"Acquire lock {mark.lock!r}, or move the resource by `fencelock rebind`"
        )
    if mark.source_id is not None and mark.source_id != sequencer.source_id:
        raise WrongLockError(
            f"resource {mark.resource!r} is bound to source {mark.source_id}; the sequencer is of source "
            f"{sequencer.source_id}, whose tokens cannot be compared. Use the first source, or move the resource by "
            f"`fencelock rebind`"
        )


def _check_same_tenure(mark: Mark, sequencer: Sequencer) -> None:
    if mark.digest is None:
        raise _stale(mark, sequencer, "the mark was raised over every token issued until then")
    if (mark.digest, mark.history_id) != (sequencer.digest, sequencer.history_id):
        raise TokenCollisionError(
            f"resource {mark.resource!r}: token {sequencer.token} of lock {mark.lock!r} was sealed by another lease. "
            "The source issued one token twice, so its history is broken: stop its users and run "
            "`fencelock epoch --raise`"
        )
    if mark.is_closed:
        raise _stale(mark, sequencer, "its own holder closed it")


def _stale(mark: Mark, sequencer: Sequencer, why: str) -> StaleTokenError:
    return StaleTokenError(
        f"resource {mark.resource!r} refuses token {sequencer.token} of lock {mark.lock!r}: its mark is {mark.token}, "
        f"{why}. Nothing was written now; earlier writes without an answer are unknown until read. Stop, and acquire "
        "the lock again",
        token=sequencer.token,
        mark=mark.token,
        resource=mark.resource,
    )
