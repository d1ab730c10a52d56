"""Operators' requests to a source in documents: install, break, purge, epochs, and inspection.

Promise: a break mints a token as a grant does, and a repeated one is answered as the first. A purge deletes documents
that nobody holds or waits for, if they are still the ones that were read: tokens come from the source's one counter, so
a lock that is taken again goes on above (T6). A new epoch begins above every token of the old one, and ends every lease
(T7); of two operators one raises it.
"""

import logging
from functools import partial
from typing import Any, NamedTuple

from fencelock.model import Finding, LockInfo, SourceInfo, draw_claim, one_way
from fencelock.protocol import source_requests as ask
from fencelock.stores.document.grants import EXPIRED
from fencelock.stores.document.layout import (
    MAX_BREAKS,
    BreakRecord,
    SourceDocument,
    decode_source,
    write_lock,
    write_source,
)
from fencelock.stores.document.operations import (
    LOCK,
    SOURCE_KEY,
    CreateCounter,
    Delete,
    FoundDocuments,
    Key,
    Operations,
    ReadDocuments,
    ReadLocation,
    ReadLocks,
)
from fencelock.stores.document.reading import View, decide, draw_token, look, view_locks
from fencelock.stores.document.state import DocumentState
from fencelock.stores.errors import unsupported
from fencelock.stores.source_clock import start_of_new_history

logger = logging.getLogger("fencelock")
PAGE_LOCKS = 100
HISTORY_ID_LENGTH = 16
UNBLOCKING = "do what the message says. The other locks work; `fencelock locks` and `purge` leave this one out"


# --- install and epochs -----------------------------------------------------------------------------------------------
def install(state: DocumentState) -> Operations[None]:
    """Write the source's document if there is none; safe when run concurrently."""
    found: FoundDocuments = yield ReadDocuments((SOURCE_KEY,))
    if found.documents[0] is None:
        location: str | None = yield ReadLocation()
        source = SourceDocument(draw_claim(), 1, draw_claim()[:HISTORY_ID_LENGTH], 0, "", location)
        # The counter first: a source without one grants nothing.
        yield CreateCounter(source.counter)
        yield write_source(source, None)  # Refused if another process has just written it.
        found = yield ReadDocuments((SOURCE_KEY,))
    decode_source(found.documents[0], state.url)


def read_source(state: DocumentState, _: ask.ReadSource) -> Operations[SourceInfo]:
    """Return the source's identity and counter."""
    source, _version, last_token = yield from _read(state)
    return SourceInfo(source.source_id, source.epoch, source.history_id, last_token, last_token)


def _read(state: DocumentState) -> Operations[tuple[SourceDocument, str, int]]:
    """Return the source, its document's version, and the last token of its history."""
    before = state.identity.seen
    found: FoundDocuments = yield ReadDocuments((SOURCE_KEY,))
    (document,) = found.documents
    source = decode_source(document, state.url)
    state.identity.check(source.state, before)
    assert document is not None
    counted: FoundDocuments = yield ReadDocuments((source.counter,))
    (counter,) = counted.documents
    count = 0 if counter is None else int(counter.body)
    return source, document.version, source.start + count


def raise_epoch(state: DocumentState, request: ask.RaiseEpoch) -> Operations[SourceInfo | None]:
    """Begin a new history above every token of the old one, here."""
    source, version, _ = yield from _read(state)
    if source.history_id != request.history_id:
        return None
    # The counter may be lost: then the end of its range is above what it had issued.
    start = start_of_new_history(source.next_start - 1)
    location: str | None = yield ReadLocation()
    history_id = draw_claim()[:HISTORY_ID_LENGTH]
    raised = SourceDocument(source.source_id, source.epoch + 1, history_id, start, request.reason, location)
    # The counter first: a history without one grants nothing.
    yield CreateCounter(raised.counter)
    if not (yield write_source(raised, version)):
        # Something in between may have sent the write twice, and only the second copy's refusal was heard.
        found: FoundDocuments = yield ReadDocuments((SOURCE_KEY,))
        if decode_source(found.documents[0], state.url) != raised:
            return None
    state.location_due_ms = None
    return SourceInfo(raised.source_id, raised.epoch, raised.history_id, start, start)


# --- break and purge --------------------------------------------------------------------------------------------------
def break_lock(state: DocumentState, request: ask.Break) -> Operations[ask.Broken]:
    """End the lock's present lease, and mint a token for the breaker."""
    return (yield from decide(state, request.lock, partial(_break, request)))


def _break(request: ask.Break, view: View) -> Operations[ask.Broken | None]:
    lock, source = view.lock, view.source
    for record in lock.breaks:
        if record.digest == request.claim:
            return ask.Broken(record.token, source.source_id, record.history_id, record.holder)
    holder = None if lock.holder is None or view.is_free else lock.holder.holder
    token = yield from draw_token(view)
    record = BreakRecord(request.claim, token, source.history_id, holder)
    ended = f"{request.holder} broke it: {request.reason}"
    breaks = (*lock.breaks, record)[-MAX_BREAKS:]
    broken = lock._replace(token=token, holder=None, ended=ended, breaks=breaks)
    if not (yield write_lock(view.name, broken, view.version)):
        return None
    if lock.holder is not None:
        view.state.end(lock.holder.digest, ended)
    return ask.Broken(token, source.source_id, source.history_id, holder)


def purge(state: DocumentState, _: ask.Purge) -> Operations[int]:
    """Delete the documents of the locks that are free and have no waiters, and return how many."""
    purged, page = 0, FIRST_PAGE
    while page.is_more:
        page = yield from _read_page(state, page.last)
        page.warn()
        for view in page.views:
            purged += yield from _purge(view)
    return purged


def _purge(view: View) -> Operations[bool]:
    if not view.is_free or view.living or view.version is None:
        return False
    if not (yield Delete(Key(LOCK, view.name), view.version)):
        return False
    if view.lock.holder is not None:
        view.state.end(view.lock.holder.digest, EXPIRED)
    return True


# --- inspection -------------------------------------------------------------------------------------------------------
def inspect(state: DocumentState, request: ask.Inspect) -> Operations[LockInfo]:
    """Return what the source knows of one lock."""
    view = yield from look(state, request.lock)
    return _info(view)


def check(state: DocumentState, request: ask.Check) -> Operations[ask.Checked]:
    """Return how long the lease of this proof holds the lock for certain."""
    view = yield from look(state, request.lock)
    holder = view.lock.holder
    if holder is None or holder.digest != one_way(request.proof) or request.history_id != view.source.history_id:
        return ask.Checked(0, view.lock.token or None)
    left_ms = state.sightings.at_least_ms(holder, state.now_ms(), view.date_ms)
    return ask.Checked(left_ms, view.lock.token)


def list_locks(state: DocumentState, request: ask.ListLocks) -> Operations[tuple[LockInfo, ...]]:
    """Return one page of the locks, in the order of `ReadLocks`. An empty one is the last: what cannot be read is left
    out, and never makes a page empty.
    """
    page = FIRST_PAGE._replace(last=request.after or "")
    while page.is_more and not page.views:
        page = yield from _read_page(state, page.last)
        page.warn()
    return tuple(map(_info, page.views))


def examine(state: DocumentState) -> Operations[list[Finding]]:
    """Report each lock whose document cannot be read."""
    found, page = list[Finding](), FIRST_PAGE
    while page.is_more:
        page = yield from _read_page(state, page.last)
        found += [Finding("blocked-queue", problem, UNBLOCKING) for problem in page.problems]
    return found


class Page(NamedTuple):
    """A page of the locks: those that can be read, and of each other one why it cannot be. `last`: the last name."""

    views: list[View]
    problems: list[str]
    last: str
    is_more: bool

    def warn(self) -> None:
        """Log what is left out."""
        for problem in self.problems:
            logger.warning("a lock was left out: %s", problem)


FIRST_PAGE = Page([], [], "", is_more=True)
"""What is before the first page."""


def _read_page(state: DocumentState, after: str) -> Operations[Page]:
    since_ms, before = state.now_ms(), state.identity.seen
    found: FoundDocuments = yield ReadDocuments((SOURCE_KEY,))
    source = decode_source(found.documents[0], state.url)
    state.identity.check(source.state, before)
    read: FoundDocuments = yield ReadLocks(after, PAGE_LOCKS)
    documents = [document for document in read.documents if document is not None]
    names = [document.key.name for document in documents]
    views = view_locks(state, source, names, documents, since_ms, read.date_ms)
    return Page(
        [view for view in views if isinstance(view, View)],
        [problem for problem in views if isinstance(problem, str)],
        names[-1] if names else after,
        len(names) == PAGE_LOCKS,
    )


def _info(view: View) -> LockInfo:
    lock = view.lock
    waiters = tuple(entry.holder for entry in view.living)
    token = lock.token or None
    if lock.holder is None or view.is_free:
        return LockInfo(view.name, token, None, 0.0, None, waiters)
    left_s, ttl_s = view.left_ms(lock.holder) / 1000, lock.holder.ttl_ms / 1000
    return LockInfo(view.name, token, lock.holder.holder, left_s, ttl_s, waiters)


# --- what this source does not need, or cannot ------------------------------------------------------------------------
def reserve(_: DocumentState, __: ask.ReserveBlock) -> Operations[None]:
    """Do nothing: the counter is durable at each step."""
    yield from ()


def refuse_keys(state: DocumentState, request: Any) -> Operations[None]:
    """Refuse keys: clients reach the store itself."""
    yield from ()
    raise unsupported(request, state.url)
