"""The guard's operations at a store with optimistic transactions (etcd, ZooKeeper): pure.

Such a store takes no lock while a transaction runs. It answers reads at once and takes all writes in one request, on
the condition that the values read before have not changed. Each generator here yields operations, one round trip
each, and is sent the answers.

Promise: a mark is stored in one value, as JSON, with no claim and no proof. Every write of a mark,
an audit entry or the user's data carries the condition that all marks read before it are unchanged.
Never: a decision about a token.
"""

import json
import os
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from fencelock._flows.guarding import sealed_mark
from fencelock.errors import GuardError, SchemaError, UnsupportedError
from fencelock.model import Mark, Sequencer, digest_of_claim
from fencelock.protocol import guard_requests as ask
from fencelock.stores.errors import GUARD_PART, check_plausible, check_schema_number, nothing_protected, unsupported
from fencelock.stores.quorum.effects import EffectsCodec, Operations, StoredValue
from fencelock.stores.quorum.encoding import decode_object, has_members

SCHEMA_NUMBER = 3
_MEMBERS = {
    "schema": int,
    "lock": str,
    "token": str,
    "source_id": str | None,
    "history_id": str | None,
    "digest": str | None,
    "closed": bool,
}
_TOKEN = re.compile(r"[0-9]{1,19}")


@dataclass(slots=True)
class PendingChanges:
    """What a short transaction has read, and what it will write."""

    seen: dict[str, StoredValue] = field(default_factory=dict[str, StoredValue])
    marks: dict[str, Mark] = field(default_factory=dict[str, Mark])
    entries: list[ask.AuditEntry] = field(default_factory=list[ask.AuditEntry])


class OptimisticGuardCodec(EffectsCodec):
    """The operations of one connection; a store implements the abstract ones."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._changes = PendingChanges()
        self._process_id = 0
        self.work: Any = None
        """The object that `guard.transaction` yields, while a block has it."""

    def operations(self, request: Any) -> Operations:
        """Return the operations for a request."""
        return self._ANSWERS[type(request)](self, request)  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Discard the pending writes: the transaction is over."""
        self._changes = PendingChanges()
        self._forget_effects()
        if self.work is not None:
            self.work.end()
            self.work = None

    # --- implemented by the store ---
    @abstractmethod
    def _read(self, resources: Iterable[str]) -> Operations:
        """Return the stored marks of these resources by name, from a linearizable read."""

    @abstractmethod
    def _read_all(self) -> Operations:
        """Return the stored mark of every resource."""

    @abstractmethod
    def _find_conflict(self) -> Operations:
        """Return how the guard's prefix conflicts with a source, as the end of a sentence; None if it does not."""

    @abstractmethod
    def _write(self, changes: PendingChanges) -> Operations:
        """Write marks and audit entries; ConflictError if a value read before has changed."""

    @abstractmethod
    def _open_work(self, request: ask.Open, seen: Mapping[str, StoredValue]) -> Operations:
        """Return the object that the user's block gets, after checking that its lease is not over."""

    @abstractmethod
    def _write_work(self, work: Any) -> Operations:
        """Write what the block has collected; ConflictError if a value that it relies on has changed."""

    # --- the requests ---
    def _begin(self, _: ask.Begin) -> Operations:
        self.forget()
        yield from ()

    def _read_marks(self, request: ask.ReadMarks) -> Operations:
        found: dict[str, StoredValue] = yield from self._read(request.resources)
        self._changes.seen.update(found)
        return self._marks(found)

    def _marks(self, found: Mapping[str, StoredValue]) -> dict[str, Mark]:
        return {
            resource: decode_mark(self._url, resource, stored.value)
            for resource, stored in found.items()
            if stored.value is not None
        }

    def _raise_marks(self, request: ask.RaiseMarks) -> Operations:
        changes = self._changes
        for resource in request.resources:
            check_plausible(resource, request.sequencer.token, self._token_before(resource), time.time())
            changes.marks[resource] = sealed_mark(resource, request.sequencer)
        yield from ()

    def _token_before(self, resource: str) -> int:
        stored = self._changes.seen[resource].value
        return 0 if stored is None else decode_mark(self._url, resource, stored).token

    def _close_marks(self, request: ask.CloseMarks) -> Operations:
        """Close marks that this transaction has read, or raised."""
        changes, digest = self._changes, digest_of_claim(request.claim)
        for resource in request.resources:
            stored = changes.seen[resource].value
            mark = changes.marks.get(resource)
            if mark is None and stored is not None:
                mark = decode_mark(self._url, resource, stored)
            if mark is not None and mark.digest == digest:
                changes.marks[resource] = replace(mark, is_closed=True)
        yield from ()

    def _change_mark(self, request: ask.ChangeMark) -> Operations:
        mark = request.mark
        if not request.is_implausible:
            check_plausible(mark.resource, mark.token, self._token_before(mark.resource), time.time())
        self._changes.marks[mark.resource] = mark
        self._changes.entries.append(request.entry)
        yield from ()

    def _write_audit(self, request: ask.WriteAudit) -> Operations:
        self._changes.entries.append(request.entry)
        yield from ()

    def _commit(self, _: ask.Commit) -> Operations:
        changes = self._changes
        self.forget()
        if any(changes.seen[name].value is None for name in changes.marks):
            clash: str | None = yield from self._find_conflict()
            if clash is not None:
                raise GuardError(
                    f"{self._url} {clash}, so queues and guarded data would conflict: name another path for the guard "
                    f"in its URL"
                )
        if changes.marks or changes.entries:
            yield from self._write(changes)

    def _open(self, request: ask.Open) -> Operations:
        self.forget()
        found: dict[str, StoredValue] = yield from self._read(request.resources)
        marks = self._marks(found)
        not_ours = tuple(name for name in request.resources if not _is_own(marks.get(name), request.sequencer))
        if not not_ours:
            self.work = yield from self._open_work(request, found)
            self._process_id = os.getpid()
            self._presented = request
        return not_ours

    def _finish(self, _: ask.Finish) -> Operations:
        work, self.work = self.work, None
        assert work is not None, "Finish without Open"
        try:
            if self._process_id != os.getpid():
                raise UnsupportedError(
                    "the guarded transaction was inherited by fork: only the process that opened it may write it. In "
                    "the child use guard.transaction(lease.sequencer)"
                )
            yield from self._write_work(work)
        finally:
            work.end()

    def _read_protections(self, _: ask.ReadProtections) -> Operations:
        """Return nothing: the store itself protects nothing, so the guard refuses every stale lease."""
        yield from ()
        return ()

    def _protect(self, request: ask.Protect) -> Operations:
        yield from ()
        raise UnsupportedError(
            f"{self._url} has no triggers, so it cannot refuse a write by itself and {request.tables[0]!r} cannot be "
            f"protected. The first seal binds resource {request.resource!r} to lock {request.lock!r}. Use the store's "
            f"own access control: give the right to write there only to the user whose code writes inside "
            f"`with guard.transaction(lease)`"
        )

    def _unprotect(self, request: ask.Unprotect) -> Operations:
        yield from ()
        raise nothing_protected(request.resource)

    def _refuse(self, request: Any) -> Operations:
        yield from ()
        raise unsupported(request, self._url)

    def _look(self, request: ask.InspectResources) -> Operations:
        wanted = request.resource
        found = yield from (self._read_all() if wanted is None else self._read((wanted,)))
        marks = self._marks(found)
        return ask.ResourceReport(tuple(marks[name] for name in sorted(marks)), (), ())

    _ANSWERS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        ask.Begin: _begin,
        ask.Commit: _commit,
        ask.Open: _open,
        ask.Finish: _finish,
        ask.ReadMarks: _read_marks,
        ask.RaiseMarks: _raise_marks,
        ask.CloseMarks: _close_marks,
        ask.ChangeMark: _change_mark,
        ask.WriteAudit: _write_audit,
        **EffectsCodec.ANSWERS,
        ask.ReadProtections: _read_protections,
        ask.Protect: _protect,
        ask.Unprotect: _unprotect,
        ask.GrantRight: _refuse,
        ask.RevokeRights: _refuse,
        ask.EndSessions: _refuse,
        ask.WriteKeys: _refuse,
        ask.RequireSignatures: _refuse,
        ask.InspectResources: _look,
    }


def _is_own(mark: Mark | None, sequencer: Sequencer) -> bool:
    return mark is not None and mark == sealed_mark(mark.resource, sequencer)


# --- stored values ----------------------------------------------------------------------------------------------------
def encode_mark(mark: Mark) -> bytes:
    """Return the stored value of a mark."""
    return _json(
        {
            "schema": SCHEMA_NUMBER,
            "lock": mark.lock,
            "token": str(mark.token),
            "source_id": mark.source_id,
            "history_id": mark.history_id,
            "digest": mark.digest,
            "closed": mark.is_closed,
        }
    )


def decode_mark(url: str, resource: str, value: bytes) -> Mark:
    """Return the mark in a stored value; SchemaError if the value is not a mark."""
    found = decode_object(value)
    if isinstance(number := found.get("schema"), int):
        check_schema_number(url, GUARD_PART, number, SCHEMA_NUMBER)
    if not has_members(found, _MEMBERS) or not _TOKEN.fullmatch(found["token"]):
        raise SchemaError(
            f"{url}: the value stored as the mark of resource {resource!r} is not a mark, so the guard cannot tell "
            f"which tokens it refuses: find out who wrote there, and restore the mark from a backup"
        )
    identity = found["source_id"], found["history_id"], found["digest"]
    return Mark(resource, found["lock"], int(found["token"]), *identity, found["closed"])


def encode_entry(entry: ask.AuditEntry) -> bytes:
    """Return the stored value of an audit entry, with the time on this machine's clock."""
    members = entry._asdict() | {"at": datetime.now(UTC).isoformat(timespec="seconds")}
    return _json(members | {"from_token": str(entry.from_token), "to_token": str(entry.to_token)})


def _json(members: Mapping[str, Any]) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode()
