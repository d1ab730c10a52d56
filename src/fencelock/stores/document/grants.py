"""Acquire, Poll and Release over documents: the operations of each request, for threads and loops alike.

Promise: a lease begins and is extended only by a write that its own process has sent after it had read the document,
and its deadline counts from before that reading (H1). So nobody takes a lock over before its holder's deadline, and
nobody hands a lock to a claim that may be dead: the claim whose turn it is takes it by itself, in the order of the
queue (H7), unless its own place has expired (H8). A claim is granted once (H4): the version that its last write was to
replace tells whether a write in doubt can still arrive.
Never: a claim granted, queued or kept by a reading alone; a reply that states more time than the write has given.
"""

from functools import partial

from fencelock.errors import SourceError
from fencelock.model import draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.document.layout import Entry, LockDocument, write_lock
from fencelock.stores.document.operations import MAX_BODY_BYTES, Operations
from fencelock.stores.document.reading import View, decide, draw_token
from fencelock.stores.document.state import FIRST_WAIT_MS, DocumentState, OwnClaim

MAX_WAITERS = 500
POLLS_PER_TTL = 3
EXPIRED = "it expired at the source before it was renewed"
RELEASED = "it was released"
_NEVER_BORN_US = 2**63
"""For a claim that another source object of this process has drawn: this one remembers no end of it."""


# --- acquire ----------------------------------------------------------------------------------------------------------
def acquire(state: DocumentState, request: ask.Acquire) -> Operations[ask.SourceReply]:
    """Grant the lock to a claim, or queue it; the claim may have asked before."""
    if state.ended.is_over(request.claim, request.born_us):
        return ask.ClaimEnded()
    return (yield from decide(state, request.lock, partial(_acquire, request)))


def _acquire(request: ask.Acquire, view: View) -> Operations[ask.SourceReply | None]:
    claim, state = request.claim, view.state
    if view.lock.is_holder(claim):
        return _granted_before(view, claim)
    place = view.lock.place_of(claim)
    if place is not None:
        return (yield from _take_turn(view, place, keeps_place=True))
    own = state.own.get(claim)
    if own is not None and own.has_ended(view.version):
        state.end(claim, EXPIRED)
        return ask.ClaimEnded()
    entry = Entry(claim, request.holder, request.ttl_ms, draw_claim(), view.date_ms)
    living = view.living
    if view.is_free and not living:
        return (yield from _grant(view, entry, (), request.born_us))
    if not request.may_wait:
        return ask.Busy()
    if len(living) >= MAX_WAITERS:
        raise SourceError(
            f"lock {request.lock!r} has {MAX_WAITERS} waiters, the most that it may have: try again later"
        )
    queued = view.lock._replace(queue=(*living, entry))
    return (yield from _write_place(view, queued, entry, request.born_us, is_head=not living))


def _granted_before(view: View, claim: str) -> ask.SourceReply:
    """Answer a repeated request of the holder with the time that is left since the write that granted it."""
    state, holder, left_ms = view.state, view.lock.holder, view.left_ms(view.lock.holder)
    # The time left of a lease is known to the one who has sent its last write, and to nobody who has only read it.
    if holder is None or not left_ms or not state.sightings.is_own(holder):
        state.end(claim, EXPIRED)
        return ask.ClaimEnded()
    return ask.Granted(view.lock.token, left_ms, view.source.source_id, view.source.history_id)


def _grant(
    view: View, entry: Entry, queue: tuple[Entry, ...], born_us: int = _NEVER_BORN_US
) -> Operations[ask.SourceReply | None]:
    """Take the lock with a new token, if its document is still the one that was read."""
    before = view.lock.holder
    # After the reading, before the write: a grant in between has changed the version, an earlier one has drawn before.
    token = yield from draw_token(view)
    granted = view.lock._replace(token=token, holder=entry, ended="", queue=queue)
    is_written = yield from _write_claim(view, granted, entry, born_us)
    if is_written is not True:
        return ask.ClaimEnded() if is_written is None else None
    if before is not None:
        view.state.end(before.digest, EXPIRED)
    return ask.Granted(token, entry.ttl_ms, view.source.source_id, view.source.history_id)


def _write_claim(view: View, lock: LockDocument, entry: Entry, born_us: int) -> Operations[bool | None]:
    """Write the document with this claim's new entry; return None if the claim has ended meanwhile."""
    state, claim = view.state, entry.digest
    own = state.own.setdefault(claim, OwnClaim(born_us))
    earlier = own.doubt
    # Before the end is looked for. A release remembers the end first, and reads this afterwards: so either the end is
    # seen here, or the release sees that this write may arrive, and replaces the version that it needs.
    own.doubt = view.version
    if state.ended.is_over(claim, own.born_us):
        state.own.pop(claim, None)
        return None
    # Before it is written, so that this process never counts its own lease from when it first reads it.
    state.sightings.send(entry, view.since_ms)
    try:
        is_written = yield from _write(view, lock)
    except SourceError as error:
        if error.definite:
            own.doubt = earlier
        raise
    # An earlier write in doubt was to replace this version too, and may arrive as long as nothing has replaced it: a
    # store also refuses a write because another one is under way.
    own.doubt = None if is_written else earlier
    own.is_written |= is_written
    return is_written


def _write(view: View, lock: LockDocument) -> Operations[bool]:
    """Replace the lock's document, if it is still the one that was read."""
    write = write_lock(view.name, lock, view.version)
    if len(write.body.encode()) > MAX_BODY_BYTES:
        raise SourceError(
            f"lock {view.name!r} has {len(lock.queue)} waiters, and its document would exceed {MAX_BODY_BYTES} bytes: "
            f"try again later"
        )
    return bool((yield write))


# --- wait -------------------------------------------------------------------------------------------------------------
def poll(state: DocumentState, request: ask.Poll) -> Operations[ask.SourceReply]:
    """Grant the lock to a claim in the queue, if its turn has come; write its place anew if it asks for that."""
    return (yield from decide(state, request.lock, partial(_poll, request), creates=False))


def _poll(request: ask.Poll, view: View) -> Operations[ask.SourceReply | None]:
    if view.lock.is_holder(request.claim):
        return _granted_before(view, request.claim)
    place = view.lock.place_of(request.claim)
    if place is None:
        view.state.end(request.claim, EXPIRED)
        return ask.ClaimEnded()
    return (yield from _take_turn(view, place, keeps_place=request.keeps_place))


def _take_turn(view: View, place: Entry, *, keeps_place: bool) -> Operations[ask.SourceReply | None]:
    """Grant the lock to a claim whose turn it is; else keep its place, or only tell it when to poll again."""
    living = view.living
    # Its own process has not written the place for a whole ttl: others may have passed it already (H8).
    if place not in living:
        view.state.end(place.digest, EXPIRED)
        return ask.ClaimEnded()
    is_head = living[0] == place
    kept = place.extended(view.date_ms)
    if is_head and view.is_free:
        return (yield from _grant(view, kept, living[1:]))
    if not keeps_place:
        return _queued(view, place, is_head=is_head)
    queue = tuple(kept if entry.digest == kept.digest else entry for entry in living)
    return (yield from _write_place(view, view.lock._replace(queue=queue), kept, _NEVER_BORN_US, is_head=is_head))


def _write_place(
    view: View, lock: LockDocument, entry: Entry, born_us: int, *, is_head: bool
) -> Operations[ask.SourceReply | None]:
    is_written = yield from _write_claim(view, lock, entry, born_us)
    if is_written is not True:
        return ask.ClaimEnded() if is_written is None else None
    return _queued(view, entry, is_head=is_head)


def _queued(view: View, entry: Entry, *, is_head: bool) -> ask.Queued:
    """Return how long to sleep: longer each time, and only until the holder's lease may end."""
    state = view.state
    own = state.own.setdefault(entry.digest, OwnClaim(_NEVER_BORN_US, is_written=True))
    if is_head and not own.is_head:
        own.is_head, own.wait_ms = True, FIRST_WAIT_MS
    wait_ms = own.wait_ms
    own.wait_ms = min(2 * wait_ms, state.longest_wait_ms)
    # Waiters that began together do not go on polling together.
    wait_ms = int(wait_ms * (1 - state.random() / 2))
    if is_head:
        wait_ms = min(wait_ms, view.left_ms(view.lock.holder))
    return ask.Queued(max(1, min(wait_ms, entry.ttl_ms // POLLS_PER_TTL)))


# --- release ----------------------------------------------------------------------------------------------------------
def release(state: DocumentState, request: ask.Release) -> Operations[ask.SourceReply]:
    """End a claim for good, wherever it is."""
    state.ended.remember(request.claim, state.now_us(), RELEASED)
    return (yield from decide(state, request.lock, partial(_release, request.claim, []), creates=False))


def _release(claim: str, found_held: list[bool], view: View) -> Operations[ask.SourceReply | None]:
    """End the claim. `found_held` is of all rounds: what a round found held may be gone in the next one by this
    release's own write, if the network has doubled it, and only the second copy's refusal was heard.
    """
    state, lock = view.state, view.lock
    own = state.own.get(claim)
    if lock.is_holder(claim):
        found_held.append(not view.is_free)
        lock = lock._replace(holder=None, ended=RELEASED)
    elif lock.place_of(claim) is not None:
        lock = lock._replace(queue=tuple(entry for entry in lock.queue if entry.digest != claim))
    elif own is None or own.doubt is None or own.doubt != view.version:
        state.own.pop(claim, None)
        return ask.Released(any(found_held))
    # Else a write of this claim may be under way: another version refuses it.
    if not (yield from _write(view, lock)):
        return None
    state.own.pop(claim, None)
    return ask.Released(any(found_held))
