"""Renew the leases of a process: one reading of 99 documents at most, and one write for each lease, in batches of 24.

Promise: a lease is extended by a write that its document accepted, from before the reading that preceded it. A document
that others have written meanwhile, to queue for example, is read again. A lease that is not the document's any more is
lost, for a reason. What could not be found out, or was refused, is in doubt, whatever becomes of the others: the
keeper's next round asks again. An error takes nothing from what was settled before it.
Never: a lease renewed after it had expired (T4), though nobody took it over.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from fencelock.errors import FencelockError, OutcomeUnknownError, SourceUnavailableError
from fencelock.protocol import source_requests as ask
from fencelock.stores.document.grants import EXPIRED
from fencelock.stores.document.layout import write_lock
from fencelock.stores.document.operations import MAX_KEYS, MAX_WRITES, Operations, WriteDocument, WriteEach
from fencelock.stores.document.reading import DECISIONS_MS, MAX_DECISIONS, View, look_at_each
from fencelock.stores.document.state import DocumentState
from fencelock.stores.pauses import growing_pauses

Item = TypeVar("Item")
Lease = tuple[str, str]
"""A lock and the digest of a claim."""
_SILENCE = (OutcomeUnknownError, SourceUnavailableError)


class RenewalWrite(NamedTuple):
    """One lease that is being renewed."""

    lease: Lease
    ttl_ms: int
    write: WriteDocument


class RenewedSoFar:
    """What became of the leases of one request, as far as it is known. `error` ended the request before its end."""

    def __init__(self) -> None:
        self.remaining_ms: dict[str, int] = {}
        self.lost: dict[str, str] = {}
        self.in_doubt: dict[str, str] = {}
        self.error: FencelockError | None = None

    def doubt_rest(self, leases: Sequence[Lease], url: str) -> None:
        """Doubt what is not settled; raise if nothing is."""
        reason = "others wrote first" if self.error is None else str(self.error)
        for _, claim in leases:
            if claim not in self.remaining_ms and claim not in self.lost:
                self.in_doubt.setdefault(claim, reason)
        if not self.in_doubt or self.remaining_ms or self.lost:
            return
        if self.error is not None:
            raise self.error
        reasons = "; ".join(sorted(set(self.in_doubt.values())))
        raise OutcomeUnknownError(f"{url}: {len(self.in_doubt)} lease(s) could not be renewed: {reasons}")


def renew(state: DocumentState, request: ask.Renew) -> Operations[ask.SourceReply]:
    """Renew every lease of the batch, named by the digest of its claim, also in the reply."""
    found = RenewedSoFar()
    try:
        yield from _renew(state, request.leases, found)
    except FencelockError as error:
        # It takes nothing from what was written before it.
        found.error = error
    try:
        found.doubt_rest(request.leases, state.url)
    finally:
        found.error = None  # Its traceback refers to this frame.
    return ask.Renewed(found.remaining_ms, found.lost, frozenset(found.in_doubt))


def _renew(state: DocumentState, to_renew: Sequence[Lease], found: RenewedSoFar) -> Operations[None]:
    """Renew these leases, until others have written first for too long."""
    give_up_ms, pauses = state.now_ms() + DECISIONS_MS, growing_pauses(state.random)
    for number in range(MAX_DECISIONS):
        refused: list[Lease] = []
        for leases in _batches(to_renew, MAX_KEYS - 1):
            writes = yield from _decide(state, leases, found)
            refused += yield from _send(writes, found)
        to_renew = refused
        # Twice at least: a holder that was frozen learns of its loss.
        if not to_renew or (number and state.now_ms() > give_up_ms):
            return
        yield next(pauses)


def _decide(state: DocumentState, leases: Sequence[Lease], found: RenewedSoFar) -> Operations[list[RenewalWrite]]:
    """Return the writes that renew these leases; note those that are lost, or whose document cannot be read."""
    names = list(dict.fromkeys(lock for lock, _ in leases))
    views = dict(zip(names, (yield from look_at_each(state, names)), strict=True))
    writes = []
    for name, claim in leases:
        view = views[name]
        if isinstance(view, str):
            found.in_doubt[claim] = view
            continue
        holder, version = view.lock.holder, view.version
        if holder is None or holder.digest != claim or not view.left_ms(holder):
            found.lost[claim] = _why_lost(view, claim)
            state.end(claim, found.lost[claim])
            continue
        renewed = holder.extended(view.date_ms)
        # Before it is written: a thread that reads the new beat before this write's reply would count from then.
        state.sightings.send(renewed, view.since_ms)
        writes.append(
            RenewalWrite((name, claim), holder.ttl_ms, write_lock(name, view.lock._replace(holder=renewed), version))
        )
    return writes


def _send(writes: list[RenewalWrite], found: RenewedSoFar) -> Operations[list[Lease]]:
    """Write these leases; return those whose document was not the one that was read any more."""
    refused = []
    for batch in _batches(writes, MAX_WRITES):
        outcomes: tuple[bool | FencelockError, ...] = yield WriteEach(tuple(one.write for one in batch))
        for one, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, FencelockError):
                found.in_doubt[one.lease[1]] = str(outcome)
            elif outcome:
                found.remaining_ms[one.lease[1]] = one.ttl_ms
            else:
                refused.append(one.lease)
        if all(isinstance(outcome, _SILENCE) for outcome in outcomes):
            # The next batches would wait for it as long.
            raise OutcomeUnknownError(str(outcomes[0]))
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
