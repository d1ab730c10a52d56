"""Reading locks together with their source, and drawing a token: how every request to a source in documents begins.

Promise: a view is checked before it is used: the source is the one that this process knows, and has not gone back (T7);
of a lock of an older history only the last token is left, and one of a later history than the source's is not used. A
token is drawn after the document that the grant replaces was read, so it is above every token in it.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from fencelock.errors import SourceError, SourceUnavailableError
from fencelock.protocol.source_requests import SourceReply
from fencelock.stores.document.layout import (
    Entry,
    LockDocument,
    LockDocumentError,
    SourceDocument,
    decode_lock,
    decode_source,
    write_lock,
)
from fencelock.stores.document.operations import (
    LOCK,
    MAX_KEYS,
    SOURCE_KEY,
    Document,
    FoundDocuments,
    Increment,
    Key,
    Operations,
    ReadDocuments,
    ReadLocation,
)
from fencelock.stores.document.state import DocumentState
from fencelock.stores.pauses import growing_pauses

MAX_DECISIONS = 100
"""How often a request decides again because others have written the lock's document meanwhile."""
DECISIONS_MS = 4000
"""And for how long."""
Answer = TypeVar("Answer", bound=SourceReply)


class View(NamedTuple):
    """A lock as it was read. `version` None: it has no document. `since_ms`, `now_ms`: this process's time before the
    reading and after it, the moment as of which all entries are judged: a process may be frozen between two judgements.
    """

    state: DocumentState
    source: SourceDocument
    name: str
    lock: LockDocument
    version: str | None
    since_ms: int
    now_ms: int
    date_ms: int | None

    def left_ms(self, entry: Entry | None) -> int:
        """Return the most time that the holder of an entry may count on; 0: it is over, or there is none."""
        return 0 if entry is None else self.state.sightings.at_most_ms(entry, self.now_ms, self.date_ms)

    @property
    def is_free(self) -> bool:
        """True if nobody holds the lock, or the lease has expired."""
        return not self.left_ms(self.lock.holder)

    @property
    def living(self) -> tuple[Entry, ...]:
        """The places in the queue that have not expired."""
        return tuple(entry for entry in self.lock.queue if self.left_ms(entry))


def look(state: DocumentState, name: str) -> Operations[View]:
    """Read the source and one lock; LockDocumentError if the lock's document cannot be read."""
    (view,) = yield from look_at_each(state, (name,))
    if isinstance(view, str):
        raise LockDocumentError(view)
    return view


def look_at_each(state: DocumentState, names: Sequence[str]) -> Operations[list[View | str]]:
    """Read the source and these locks, fewer than MAX_KEYS."""
    assert len(names) < MAX_KEYS, "too many locks for one reading"
    # Before the reading: a deadline counts from here, and other threads may learn of a newer state meanwhile.
    since_ms, before = state.now_ms(), state.identity.seen
    found: FoundDocuments = yield ReadDocuments((SOURCE_KEY, *(Key(LOCK, name) for name in names)))
    source = decode_source(found.documents[0], state.url)
    state.identity.check(source.state, before)
    if state.location_due_ms is None or state.now_ms() >= state.location_due_ms:
        state.check_location(source, (yield ReadLocation()))
    return view_locks(state, source, names, found.documents[1:], since_ms, found.date_ms)


def view_locks(
    state: DocumentState,
    source: SourceDocument,
    names: Sequence[str],
    documents: Sequence[Document | None],
    since_ms: int,
    date_ms: int | None,
) -> list[View | str]:
    """Return what was read of these locks, and remember that it was seen; of a lock whose document cannot be read why,
    which says nothing of the others.
    """
    views: list[View | str] = []
    now_ms = state.now_ms()
    for name, document in zip(names, documents, strict=True):
        try:
            lock = LockDocument(source.history_id) if document is None else decode_lock(document, state.url)
        except LockDocumentError as error:
            views.append(str(error))
            continue
        if lock.history_id != source.history_id and lock.token >= source.next_start:
            # The source was read first. In a history that is over, nobody would hold this lock, or wait for it.
            raise SourceUnavailableError(
                f"{state.url}: the source was in epoch {source.epoch} when it was read, and lock {name!r} has had a "
                f"token of a later one: the epoch was raised meanwhile. Try again; if it stays so, an older state of "
                f"the source was restored: stop everything that uses it, then run `fencelock epoch --raise --reason …`"
            )
        lock = lock.in_history(source)
        state.sightings.see(lock.queue if lock.holder is None else (lock.holder, *lock.queue), now_ms)
        version = None if document is None else document.version
        views.append(View(state, source, name, lock, version, since_ms, now_ms, date_ms))
    return views


def decide(
    state: DocumentState, name: str, decision: Callable[[View], Operations[Answer | None]], *, creates: bool = True
) -> Operations[Answer]:
    """Look at a lock and decide, until the decision is written, or needs none. `creates`: the lock gets a document
    first, because a grant replaces a version that never comes back.
    """
    give_up_ms, pauses = state.now_ms() + DECISIONS_MS, growing_pauses(state.random)
    for number in range(MAX_DECISIONS):
        view = yield from look(state, name)
        # A grant must not create the document: it could arrive late, after a purge, and find none once more.
        if creates and view.version is None:
            yield write_lock(name, view.lock, None)
            continue
        reply = yield from decision(view)
        if reply is not None:
            return reply
        # Twice at least: a process that was frozen has met nobody.
        if number and state.now_ms() > give_up_ms:
            break
        yield next(pauses)
    raise SourceUnavailableError(
        f"{state.url}: others have changed lock {name!r} each time before this process could: try again"
    )


def draw_token(view: View) -> Operations[int]:
    """Return a token above every other; SourceError if the source's counter is gone, or has gone back."""
    state, source = view.state, view.source
    # Before the request: other threads may draw higher tokens while this one is on its way.
    highest_before = state.identity.highest_token
    count: Any = yield Increment(source.counter)
    if count is None:
        raise SourceError(
            f"{state.url}: the counter of tokens is gone: it was deleted, or the source was restored in part. No lock "
            f"is granted: stop everything that uses it, then run `fencelock epoch --raise --reason …`"
        )
    token = state.check_token(source, count, highest_before)
    if token <= view.lock.token:
        raise SourceError(
            f"{state.url}: the counter of tokens is at {token}, and lock {view.name!r} has had token "
            f"{view.lock.token}: the counter was changed or restored. No lock is granted: stop everything that uses "
            f"it, then run `fencelock epoch --raise --reason …`"
        )
    return token
