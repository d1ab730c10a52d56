"""What the documents of a source hold: one for the source itself, and one for each lock.

Promise: pure. Each body is JSON and carries its version, so two bodies are never equal. A body that another program
wrote is refused, never guessed. Bodies hold digests of claims, never a claim or a proof (G12).
"""

import json
from typing import Any, NamedTuple

from fencelock.errors import SchemaError, SourceError
from fencelock.model import EPOCH_STRIDE, draw_claim
from fencelock.stores.document.operations import COUNTER, LOCK, SOURCE_KEY, Document, Key, WriteDocument
from fencelock.stores.encoding import decode_object, has_members
from fencelock.stores.errors import SOURCE_PART, check_schema_number, not_installed
from fencelock.stores.source_clock import SourceState

SCHEMA = 1
MAX_BREAKS = 32
"""Breaks of one lock that are remembered, so that a repeated request breaks no later holder's lease."""
_SOURCE_MEMBERS = {
    "source_id": str,
    "epoch": int,
    "history_id": str,
    "start": int,
    "reason": str,
    "location": str | None,
}
_LOCK_MEMBERS = {
    "history_id": str,
    "token": int,
    "holder": list | None,
    "ended": str,
    "queue": list,
    "breaks": list,
}
_ENTRY_TYPES = (str, str, int, str, int | None)


class SourceDocument(NamedTuple):
    """The source's identity. The tokens of its history are `start` plus the numbers of the history's counter.

    `reason`: why the epoch was raised last. `location`: the store's own identity of the table or bucket where the
    source was installed, or where its epoch was raised last.
    """

    source_id: str
    epoch: int
    history_id: str
    start: int
    reason: str
    location: str | None

    @property
    def counter(self) -> Key:
        """The key of this history's counter."""
        return Key(COUNTER, self.history_id)

    @property
    def state(self) -> SourceState:
        """The part by which a process recognises the source."""
        return SourceState(self.source_id, self.epoch, self.history_id)

    @property
    def next_start(self) -> int:
        """The end of this history's range of tokens."""
        return self.start + EPOCH_STRIDE


class Entry(NamedTuple):
    """A claim in a lock's document: the holder, or a place in the queue.

    `beat` is drawn at random for each write by which the claim's own process makes or extends the entry. `dated_ms` is
    the store's time that this process had read before that write (None: the store tells none).
    """

    digest: str
    holder: str
    ttl_ms: int
    beat: str
    dated_ms: int | None

    def extended(self, date_ms: int | None) -> "Entry":
        """Return the entry with a beat of its own, for a write that is decided on a reading with this date."""
        return self._replace(beat=draw_claim(), dated_ms=date_ms)


class BreakRecord(NamedTuple):
    """What a break was answered, by the digest of its claim."""

    digest: str
    token: int
    history_id: str
    holder: str | None


class LockDocument(NamedTuple):
    """A lock: its last token, who holds it, who waits. `ended`: why the last lease ended, for the one that had it."""

    history_id: str
    token: int = 0
    holder: Entry | None = None
    ended: str = ""
    queue: tuple[Entry, ...] = ()
    breaks: tuple[BreakRecord, ...] = ()

    def place_of(self, digest: str) -> Entry | None:
        """Return a claim's place in the queue."""
        return next((entry for entry in self.queue if entry.digest == digest), None)

    def is_holder(self, digest: str) -> bool:
        """Return whether this claim was granted last, and has not ended."""
        return self.holder is not None and self.holder.digest == digest

    def in_history(self, source: SourceDocument) -> "LockDocument":
        """Return what is left of it in the present history: a raise of the epoch ends every lease and every wait."""
        if self.history_id == source.history_id:
            return self
        ended = f"the source's epoch was raised: {source.reason}"
        return self._replace(history_id=source.history_id, holder=None, queue=(), ended=ended)


# --- encoding ---------------------------------------------------------------------------------------------------------
def write_source(source: SourceDocument, seen: str | None) -> WriteDocument:
    """Return the write of the source's document."""
    version = draw_claim()
    return WriteDocument(SOURCE_KEY, _encode(version, source), version, seen)


def write_lock(name: str, lock: LockDocument, seen: str | None) -> WriteDocument:
    """Return the write of a lock's document."""
    version = draw_claim()
    return WriteDocument(Key(LOCK, name), _encode(version, lock), version, seen)


def _encode(version: str, value: SourceDocument | LockDocument) -> str:
    # JSON writes named tuples as lists.
    return json.dumps({"schema": SCHEMA, "version": version} | value._asdict(), ensure_ascii=False)


# --- decoding ---------------------------------------------------------------------------------------------------------
def decode_source(document: Document | None, url: str) -> SourceDocument:
    """Return the source; SchemaError if there is none, or another version's."""
    if document is None:
        raise not_installed(url, SOURCE_PART)
    fields = _decode(document, url)
    if not has_members(fields, _SOURCE_MEMBERS):
        raise SchemaError(
            f"{url}: the source's document is not one of fencelock's, so no token can be computed: find out who wrote "
            f"there, and put the document back from a backup"
        )
    return SourceDocument(**{name: fields[name] for name in _SOURCE_MEMBERS})


class LockDocumentError(SourceError):
    """The document of one lock is not one of this fencelock's: that says nothing of the other locks."""


def decode_lock(document: Document, url: str) -> LockDocument:
    """Return the lock; LockDocumentError if another program, or another version, has changed its document."""
    if document.problem:
        raise LockDocumentError(document.problem)
    try:
        fields = _decode(document, url)
    except SchemaError as error:
        raise LockDocumentError(str(error)) from error
    if has_members(fields, _LOCK_MEMBERS):
        try:
            return LockDocument(
                fields["history_id"],
                fields["token"],
                None if fields["holder"] is None else _entry(fields["holder"]),
                fields["ended"],
                tuple(map(_entry, fields["queue"])),
                tuple(BreakRecord(*broken) for broken in fields["breaks"]),
            )
        except (TypeError, ValueError):
            pass
    raise LockDocumentError(
        f"{url}: the document of lock {document.key.name!r} is not one of fencelock's. The lock is not granted: find "
        f"out who wrote there, and then delete the document"
    )


def _decode(document: Document, url: str) -> dict[str, Any]:
    fields = decode_object(document.body.encode(errors="replace"))
    if isinstance(number := fields.get("schema"), int):
        check_schema_number(url, SOURCE_PART, number, SCHEMA)
    return fields


def _entry(fields: list[Any]) -> Entry:
    if len(fields) != len(_ENTRY_TYPES) or not all(map(isinstance, fields, _ENTRY_TYPES)):
        raise TypeError("not an entry")
    return Entry(*fields)
