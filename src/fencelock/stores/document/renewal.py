"""Renew the leases of a process: one reading of 99 documents at most, and one write for each lease, 25 at a time.

Promise: a lease is extended by a write that its document accepted, from before the reading that preceded it. A document
that others have written meanwhile, to queue for example, is read again. A lease that is not the document's any more is
lost, for a reason. What could not be found out is an error: the next beat asks again.
Never: a lease renewed after it had expired (T4), though nobody took it over.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from fencelock.errors import OutcomeUnknownError
from fencelock.protocol import source_requests as ask
from fencelock.stores.document.codec import EXPIRED
from fencelock.stores.document.layout import write_lock
from fencelock.stores.document.operations import MAX_KEYS, MAX_WRITES, Operations, WriteDocument, WriteEach
from fencelock.stores.document.reading import MAX_ROUNDS, ROUNDS_MS, View, look
from fencelock.stores.document.state import DocumentState

Item = TypeVar("Item")
Lease = tuple[str, str]
"""A lock and the digest of a claim."""


class RenewalWrite(NamedTuple):
    """One lease that is being renewed."""

    lease: Lease
    ttl_ms: int
    write: WriteDocument


def renew(state: DocumentState, request: ask.Renew) -> Operations[ask.SourceReply]:
    """Renew every lease of the batch, named by the digest of its claim, also in the reply."""
    remaining_ms: dict[str, int] = {}
    lost: dict[str, str] = {}
    to_renew: Sequence[Lease] = request.leases
    give_up_ms = state.now_ms() + ROUNDS_MS
    for number in range(MAX_ROUNDS):
        refused: list[Lease] = []
        for leases in _batches(to_renew, MAX_KEYS - 1):
            beats = yield from _decide(state, leases, lost)
            refused += yield from _send(beats, remaining_ms)
        to_renew = refused
        if not to_renew:
            return ask.Renewed(remaining_ms, lost)
        if number and state.now_ms() > give_up_ms:  # Twice at least: a holder that was frozen learns of its loss.
            break
    raise OutcomeUnknownError(f"{state.url}: {len(to_renew)} lease(s) could not be renewed, because others wrote first")


def _decide(state: DocumentState, leases: Sequence[Lease], lost: dict[str, str]) -> Operations[list[RenewalWrite]]:
    """Return the writes that renew these leases; those that are lost go to `lost`."""
    names = list(dict.fromkeys(lock for lock, _ in leases))
    views = dict(zip(names, (yield from look(state, names)), strict=True))
    beats = []
    for name, claim in leases:
        view = views[name]
        holder, version = view.lock.holder, view.version
        if holder is None or holder.digest != claim or not view.left_ms(holder):
            lost[claim] = _why_lost(view, claim)
            state.end(claim, lost[claim])
            continue
        renewed = holder.extended(view.date_ms)
        state.sightings.send(renewed, view.since_ms)
        beats.append(
            RenewalWrite((name, claim), holder.ttl_ms, write_lock(name, view.lock._replace(holder=renewed), version))
        )
    return beats


def _send(beats: list[RenewalWrite], remaining_ms: dict[str, int]) -> Operations[list[Lease]]:
    """Write these leases; return those whose document was not the one that was read any more."""
    refused, in_doubt = [], 0
    for batch in _batches(beats, MAX_WRITES):
        outcomes: tuple[bool | None, ...] = yield WriteEach(tuple(beat.write for beat in batch))
        for beat, is_written in zip(batch, outcomes, strict=True):
            if is_written:
                remaining_ms[beat.lease[1]] = beat.ttl_ms
            elif is_written is None:
                in_doubt += 1
            else:
                refused.append(beat.lease)
    if in_doubt:
        raise OutcomeUnknownError(f"the source did not answer for {in_doubt} of {len(beats)} lease(s)")
    return refused


def _why_lost(view: View, claim: str) -> str:
    holder, lock = view.lock.holder, view.lock
    if view.version is None:
        return "the source no longer knows the lock"
    if holder is None:
        return lock.ended or "it ended at the source"
    return EXPIRED if holder.digest == claim else f"{holder.holder} holds the lock now, with token {lock.token}"


def _batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
