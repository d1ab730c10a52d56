"""What a guard says at a store that holds nothing still, and only compares at the end (etcd, ZooKeeper): pure.

Such a store answers reads at once, and takes all writes of a transaction in one request, on the condition that what was
read is still as it was. A talk yields what the store's connection can do in one trip each, and is sent the answer.

Promise: a mark is kept in one value, as JSON, with a digest of its claim instead of the claim. Whatever is written, a
mark, an audit entry or the user's data, is written with the condition that every mark that was read has not changed.
Never: a decision about a token.
"""

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, ClassVar, NamedTuple

from fencelock._flows.guarding import sealed_mark
from fencelock.errors import GuardError, SchemaError, UnsupportedError
from fencelock.model import Mark, Sequencer
from fencelock.protocol import guard_requests as ask
from fencelock.stores.unprotecting import nothing_protected
from fencelock.stores.untrusted_json import fits, json_object

SCHEMA_NUMBER = 1
_KINDS = {
    "schema": int,
    "lock": str,
    "token": str,
    "source_id": str | None,
    "history_id": str | None,
    "claim": str | None,
    "closed": bool,
}
_TOKEN = re.compile(r"[0-9]{1,19}")
RESERVED = ".fencelock"
"""The part of a place that belongs to the guard: no name of a lock or a resource is spelt like this."""
Talk = Generator[Any, Any, Any]


class Stored(NamedTuple):
    """A value as the store has it (None: there is none), and the version that changes with each write of it."""

    value: bytes | None
    version: int


@dataclass(slots=True)
class Changes:
    """What a brief transaction has read and is going to write."""

    seen: dict[str, Stored] = field(default_factory=dict[str, Stored])
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])
    entries: list[ask.AuditEntry] = field(default_factory=list[ask.AuditEntry])


class OptimisticGuardCodec(ABC):
    """What is said over one connection, of which a store says how."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._changes = Changes()
        self._process_id = 0
        self.work: Any = None
        """What `guard.transaction` yields, while a block has it."""

    def operations(self, request: Any) -> Talk:
        """Return the talk for a request."""
        return self._TALKS[type(request)](self, request)  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Drop what was to be written: the transaction is over."""
        self._changes = Changes()
        if self.work is not None:
            self.work.end()
            self.work = None

    # --- said by the store ---
    @abstractmethod
    def _read(self, resources: Iterable[str]) -> Talk:
        """Return what is stored of these resources' marks, as of now and not as of a moment ago, by their names."""

    @abstractmethod
    def _read_all(self) -> Talk:
        """Return what is stored of every resource's mark."""

    @abstractmethod
    def _find_clash(self) -> Talk:
        """Return what the guard's own place is to a source of locks that would be in its way; None if there is none."""

    @abstractmethod
    def _write(self, changes: Changes) -> Talk:
        """Write marks and audit entries, if nothing that was seen has changed; ConflictError if something has."""

    @abstractmethod
    def _lend(self, request: ask.Open, seen: Mapping[str, Stored]) -> Talk:
        """Return what the user's block gets, once its lock is known not to be over."""

    @abstractmethod
    def _write_work(self, work: Any) -> Talk:
        """Write what the block has collected, if nothing that it relies on has changed; ConflictError if something
        has.
        """

    # --- the requests ---
    def _begin(self, _: ask.Begin) -> Talk:
        self.forget()
        yield from ()

    def _read_marks(self, request: ask.ReadMarks) -> Talk:
        found: dict[str, Stored] = yield from self._read(request.resources)
        self._changes.seen.update(found)
        return self._marks(found, request.claim)

    def _marks(self, found: Mapping[str, Stored], claim: str | None) -> dict[str, Mark]:
        return {
            resource: mark_in(self._url, resource, stored.value, claim)
            for resource, stored in found.items()
            if stored.value is not None
        }

    def _write_marks(self, request: ask.WriteMarks) -> Talk:
        self._changes.marks.update({mark.resource: mark for mark in request.marks})
        yield from ()

    def _change_mark(self, request: ask.ChangeMark) -> Talk:
        self._changes.marks[request.mark.resource] = request.mark
        self._changes.entries.append(request.entry)
        yield from ()

    def _write_audit(self, request: ask.WriteAudit) -> Talk:
        self._changes.entries.append(request.entry)
        yield from ()

    def _commit(self, _: ask.Commit) -> Talk:
        changes = self._changes
        self.forget()
        if any(changes.seen[name].value is None for name in changes.marks):
            clash: str | None = yield from self._find_clash()
            if clash is not None:
                raise GuardError(
                    f"{self._url} {clash}, and queues and guarded data would be in each other's way: name another "
                    f"place for the guard, in its URL's path"
                )
        if changes.marks or changes.entries:
            yield from self._write(changes)

    def _open(self, request: ask.Open) -> Talk:
        self.forget()
        found: dict[str, Stored] = yield from self._read(request.resources)
        marks = self._marks(found, request.sequencer.claim)
        not_ours = tuple(name for name in request.resources if not _is_own(marks.get(name), request.sequencer))
        if not not_ours:
            self.work = yield from self._lend(request, found)
            self._process_id = os.getpid()
        return not_ours

    def _finish(self, _: ask.Finish) -> Talk:
        work, self.work = self.work, None
        assert work is not None, "Open comes first"
        try:
            if self._process_id != os.getpid():
                raise UnsupportedError(
                    "the guarded transaction was inherited by fork: only the process that opened it writes it. In the "
                    "child use guard.transaction(lease.sequencer)"
                )
            yield from self._write_work(work)
        finally:
            work.end()

    def _read_protections(self, _: ask.ReadProtections) -> Talk:
        """Nothing is protected by the store itself, so every refusal is one."""
        yield from ()
        return ()

    def _protect(self, request: ask.Protect) -> Talk:
        yield from ()
        raise UnsupportedError(
            f"{self._url} cannot refuse a write by itself, so there is nothing to protect {request.tables[0]!r} with: "
            f"it knows no triggers. Resource {request.resource!r} is bound to lock {request.lock!r} by its first seal. "
            f"Let only the user of code that writes inside `with guard.transaction(lease)` have the right to write "
            f"there, by the store's own access control"
        )

    def _unprotect(self, request: ask.Unprotect) -> Talk:
        yield from ()
        raise nothing_protected(request.resource)

    def _look(self, request: ask.Look) -> Talk:
        wanted = request.resource
        found = yield from (self._read_all() if wanted is None else self._read((wanted,)))
        marks = self._marks(found, None)
        return ask.Seen(tuple(marks[name] for name in sorted(marks)), (), ())

    _TALKS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        ask.Begin: _begin,
        ask.Commit: _commit,
        ask.Open: _open,
        ask.Finish: _finish,
        ask.ReadMarks: _read_marks,
        ask.WriteMarks: _write_marks,
        ask.ChangeMark: _change_mark,
        ask.WriteAudit: _write_audit,
        ask.ReadProtections: _read_protections,
        ask.Protect: _protect,
        ask.Unprotect: _unprotect,
        ask.Look: _look,
    }


def _is_own(mark: Mark | None, sequencer: Sequencer) -> bool:
    return mark is not None and mark == sealed_mark(mark.resource, sequencer)


# --- what is stored -----------------------------------------------------------------------------------
def mark_value(mark: Mark) -> bytes:
    """Return what is stored of a mark."""
    return _json(
        {
            "schema": SCHEMA_NUMBER,
            "lock": mark.lock,
            "token": str(mark.token),
            "source_id": mark.source_id,
            "history_id": mark.history_id,
            "claim": None if mark.claim is None else _digest(mark.claim),
            "closed": mark.is_closed,
        }
    )


def mark_in(url: str, resource: str, value: bytes, claim: str | None) -> Mark:
    """Return the mark that is stored as this; SchemaError if it is none. Its claim is `claim` if the mark is of that
    one, and else a digest, which nobody can present as a claim.
    """
    said = json_object(value)
    if (number := said.get("schema")) != SCHEMA_NUMBER and isinstance(number, int):
        raise SchemaError(
            f"{url}: the mark of resource {resource!r} has schema {number}, and this fencelock knows schema "
            f"{SCHEMA_NUMBER} only: use the version of fencelock that made it"
        )
    if not fits(said, _KINDS) or not _TOKEN.fullmatch(said["token"]):
        raise SchemaError(
            f"{url}: what is kept as the mark of resource {resource!r} is none, so nobody can tell whom it refuses: "
            f"find out who wrote there, and put the mark back from a backup"
        )
    mark = Mark(resource, said["lock"], int(said["token"]), said["source_id"], said["history_id"])
    digest = said["claim"]
    is_this = claim is not None and digest == _digest(claim)
    return replace(mark, claim=claim if is_this else digest, is_closed=said["closed"])


def entry_value(entry: ask.AuditEntry) -> bytes:
    """Return what is stored of an audit entry, with the time on this machine's clock."""
    said = entry._asdict() | {"at": datetime.now(UTC).isoformat(timespec="seconds")}
    return _json(said | {"from_token": str(entry.from_token), "to_token": str(entry.to_token)})


def _json(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":")).encode()


def _digest(claim: str) -> str:
    """A claim is 128 random bits, so nobody finds it by trying; with its colon a digest is no claim."""
    return f"sha256:{sha256(claim.encode()).hexdigest()}"
