"""Renew, check and end leases: the keeper's beat, a release, an operator's break, and the raise of an epoch.

Promise: a renewal's deadlines count from before the request was sent (H1); release is idempotent (H4), and tells a
lease that had ended before (H3). Never: a lease extended by a reply that arrived after its deadline;
`_keeper/keeper.py` ensures that.
"""

from typing import NamedTuple

from fencelock._flows.retry import ask_source
from fencelock.errors import FencelockError, WrongLockError
from fencelock.model import LeaseCheck, Sequencer, SourceInfo
from fencelock.protocol.generators import ask
from fencelock.protocol.source_requests import (
    NOW,
    Break,
    Broken,
    Check,
    Inspect,
    RaiseEpoch,
    ReadSource,
    Release,
    Released,
    Renew,
    Renewed,
    SourceFlow,
)


class Beat(NamedTuple):
    """The result of one batch of renewals: when it was sent, and the source's reply."""

    sent_ms: int
    reply: Renewed


def renew(leases: tuple[tuple[str, str], ...]) -> SourceFlow[Beat]:
    """Renew a batch of (lock, claim) pairs in one request. The next beat resolves an unknown outcome (H2)."""
    sent_ms = yield from ask(NOW)
    reply = yield from ask(Renew(leases))
    return Beat(sent_ms, reply)


def release(lock: str, claim: str) -> SourceFlow[Released]:
    """End the claim wherever it is, and return whether it held the lock."""
    return ask_source(Release(lock, claim))


def end_lease(lock: str, claim: str) -> SourceFlow[str | None]:
    """Release a lease; return why it was lost if the source had ended it before, else None (H3)."""
    if (yield from release(lock, claim)).was_held:
        return None
    found = "the source had ended it before it was released"
    try:
        info = yield from ask_source(Inspect(lock))
    except FencelockError:
        return found
    now = "nobody holds" if info.holder is None else f"with token {info.token}, {info.holder} holds"
    return f"{found}; {now} the lock now"


def check(sequencer: Sequencer) -> SourceFlow[LeaseCheck]:
    """Return whether the sequencer's lease holds its lock now; WrongLockError if it is another source's."""
    reply = yield from ask_source(Check(sequencer.lock, sequencer.history_id, sequencer.proof))
    # A true proof with another token is not current.
    remaining_ms = reply.remaining_ms if reply.last_token == sequencer.token else 0
    if not remaining_ms:
        here = yield from ask_source(ReadSource())
        if here.source_id != sequencer.source_id:
            raise WrongLockError(
                f"the sequencer of lock {sequencer.lock!r} is of source {sequencer.source_id}, and this is source "
                f"{here.source_id}, which cannot know of that lease: ask the first one"
            )
    return LeaseCheck(sequencer.lock, sequencer.token, remaining_ms / 1000, reply.last_token)


def break_lock(lock: str, claim: str, holder: str, reason: str) -> SourceFlow[Broken]:
    """End the lock's present lease, and mint a token for the breaker."""
    return ask_source(Break(lock, claim, holder, reason))


def raise_epoch(reason: str) -> SourceFlow[SourceInfo | None]:
    """Begin a new history above every token of the present one; None if another process did so at the same time."""
    before = yield from ask_source(ReadSource())
    # Not repeated: a second try would find the history that the first one began, and report another process's raise.
    return (yield from ask(RaiseEpoch(before.history_id, reason)))
