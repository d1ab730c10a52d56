"""Keep and end leases: the keeper's renewal beat, release, and breaking somebody else's lease.

Promise: a renewal's deadlines count from before the request was sent (H1); release is idempotent (H4). Never: a lease
extended by a reply that arrived after its deadline; the keeper sees to that, see `_keeper/keeper.py`.
"""

from typing import NamedTuple

from fencelock._flows.retry import ask_source
from fencelock.model import SourceInfo
from fencelock.protocol.generators import ask
from fencelock.protocol.source_requests import (
    NOW,
    Break,
    Broken,
    RaiseEpoch,
    ReadSource,
    Release,
    Released,
    Renew,
    Renewed,
    SourceFlow,
)


class Beat(NamedTuple):
    """What one renewal of a batch brought: when it was sent, and what the source said."""

    sent_ms: int
    reply: Renewed


def renew(leases: tuple[tuple[str, str], ...]) -> SourceFlow[Beat]:
    """Renew a batch of (lock, claim) pairs in one request. An unknown outcome is left to the next beat (H2)."""
    sent_ms = yield from ask(NOW)
    reply = yield from ask(Renew(leases))
    return Beat(sent_ms, reply)


def release(lock: str, claim: str) -> SourceFlow[Released]:
    """End the claim wherever it is, and tell whether it held the lock."""
    return ask_source(Release(lock, claim))


def break_lock(lock: str, claim: str, holder: str, reason: str) -> SourceFlow[Broken]:
    """End the lock's lease, whoever has it, and mint a token for the breaker."""
    return ask_source(Break(lock, claim, holder, reason))


def raise_epoch(reason: str) -> SourceFlow[SourceInfo | None]:
    """Begin a new history above every token of the present one; None if somebody else did so at the same time."""
    before = yield from ask_source(ReadSource())
    return (yield from ask(RaiseEpoch(before.history_id, reason)))
