"""The guard's operations at a store with optimistic transactions (etcd, ZooKeeper, S3, DynamoDB, Redis, files): pure.

Such a store takes no lock while a transaction runs. It answers reads at once and takes all writes in one request, on
the condition that the values read before have not changed. Each generator here yields operations, one round trip
each, and is sent the answers.

Promise: a mark is stored in one value, as JSON, with no claim and no proof. Every write of a mark,
an audit entry or the user's data carries the condition that all marks read before it are unchanged. A mark that gets a
source carries the same condition about the floors, which are read along with the marks (G15).
Never: a decision about a token.
"""

import os
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from fencelock._flows.guarding import sealed_mark
from fencelock.errors import GuardError, UnsupportedError
from fencelock.model import Mark, Sequencer, digest_of_claim
from fencelock.protocol import guard_requests as ask
from fencelock.stores.errors import check_above_floor, check_plausible, nothing_protected, unsupported
from fencelock.stores.optimistic.effects import EffectsCodec, Operations
from fencelock.stores.optimistic.stored_values import (
    FLOORS,
    PendingChanges,
    StoredMark,
    StoredValue,
    decode_floors,
    decode_mark,
    encode_mark,
    now_text,
)
from fencelock.stores.optimistic.write_buffer import inherited_error


class OptimisticGuardCodec(EffectsCodec):
    """The operations of one connection; a store implements the abstract ones."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._changes = PendingChanges()
        self._sealed: Mapping[str, StoredValue] = {}
        """The marks as the last commit has left them, if nothing else was asked for since."""
        self._process_id = 0
        self.work: Any = None
        """The object that `guard.transaction` yields, while a block has it."""

    def operations(self, request: Any) -> Operations:
        """Return the operations for a request."""
        return self.ANSWERS[type(request)](self, request)  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Discard the pending writes: the transaction is over."""
        self._changes = PendingChanges()
        self._sealed = {}
        self._forget_effects()
        if self.work is not None:
            self.work.end()
            self.work = None

    # --- implemented by the store ---
    @abstractmethod
    def _read(self, resources: Iterable[str]) -> Operations:
        """Return the stored marks of these resources by name, and the floors if FLOORS is one of the names, from a
        linearizable read. A store without floors has no value for them.
        """

    @abstractmethod
    def _read_all(self) -> Operations:
        """Return the stored mark of every resource, and the floors."""

    @abstractmethod
    def _find_conflict(self) -> Operations:
        """Return how the guard's prefix conflicts with a source, as the end of a sentence; None if it does not."""

    @abstractmethod
    def _write(self, changes: PendingChanges) -> Operations:
        """Write what is pending, all or nothing; ConflictError if a value that was seen has changed.

        Return what is stored now of all that was seen or written, by name; None if its versions are not known.
        """

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
        # The floors along with the marks: a mark that gets a source relies on the floor that was read with it (G15).
        found: dict[str, StoredValue] = yield from self._read((*request.resources, FLOORS))
        self._changes.seen.update(found)
        return self._marks(found)

    def _marks(self, found: Mapping[str, StoredValue]) -> dict[str, Mark]:
        return {
            resource: decode_mark(self._url, resource, stored.value).mark
            for resource, stored in found.items()
            if stored.value is not None and resource != FLOORS
        }

    def _raise_marks(self, request: ask.RaiseMarks) -> Operations:
        for resource in request.resources:
            self._check_plausible(resource, request.sequencer.token)
            self._put(sealed_mark(resource, request.sequencer))
        yield from ()

    def _check_plausible(self, resource: str, token: int) -> None:
        before = self._mark(resource)
        check_plausible(resource, token, before.token if before else 0, time.time())

    def _close_marks(self, request: ask.CloseMarks) -> Operations:
        """Close marks that this transaction has read, or raised."""
        digest = digest_of_claim(request.claim)
        for mark in filter(None, map(self._mark, request.resources)):
            if mark.digest == digest:
                self._put(replace(mark, is_closed=True))
        yield from ()

    def _change_mark(self, request: ask.ChangeMark) -> Operations:
        if not request.is_implausible:
            self._check_plausible(request.mark.resource, request.mark.token)
        self._put(request.mark, is_rebound=request.entry.action == "rebind")
        self._changes.entries.append(request.entry)
        yield from ()

    def _mark(self, resource: str) -> Mark | None:
        """Return a mark that this transaction has read, as it leaves it."""
        stored = self._stored_mark(resource)
        return None if stored is None else stored.mark

    def _stored_mark(self, resource: str) -> StoredMark | None:
        value = self._changes.value(resource)
        return None if value is None else decode_mark(self._url, resource, value)

    def _put(self, mark: Mark, *, is_rebound: bool = False) -> None:
        """Write a mark; StaleTokenError if the floor of the source that it gets does not admit it."""
        before = self._stored_mark(mark.resource)
        if mark.source_id is not None and (before is None or before.mark.source_id != mark.source_id):
            self._changes.relies_on_floors = True
            check_above_floor(mark, self._floor(mark.source_id))
        after = StoredMark(mark, now_text(), is_rebound or (before is not None and before.is_rebound))
        if before is not None and before == after._replace(raised_at=before.raised_at):
            # A commit that was not confirmed is repeated with the same value, so that blocks that rely on it go on.
            after = before
        self._changes.writes[mark.resource] = encode_mark(after)

    def _floor(self, source_id: str) -> ask.Floor | None:
        token = decode_floors(self._url, self._changes.value(FLOORS)).get(source_id)
        return None if token is None else ask.Floor(source_id, token)

    def _write_audit(self, request: ask.WriteAudit) -> Operations:
        self._changes.entries.append(request.entry)
        yield from ()

    def _commit(self, _: ask.Commit) -> Operations:
        changes = self._changes
        self.forget()
        if not changes.relies_on_floors:
            # Else each purge of other marks would refuse this commit, for which no floor matters.
            changes.seen.pop(FLOORS, None)
        if any(changes.seen[name].value is None for name in changes.writes if name != FLOORS):
            clash: str | None = yield from self._find_conflict()
            if clash is not None:
                raise GuardError(
                    f"{self._url} {clash}, so queues and guarded data would conflict: name another path for the guard "
                    f"in its URL"
                )
        left: Mapping[str, StoredValue] | None = changes.seen
        if changes.writes or changes.entries:
            left = yield from self._write(changes)
        self._sealed = left or {}

    def _open(self, request: ask.Open) -> Operations:
        # The seal of this very block has just been confirmed: reading its marks once more would tell nothing new.
        found = {name: self._sealed[name] for name in request.resources if name in self._sealed}
        self.forget()
        if len(found) < len(request.resources):
            found = yield from self._read(request.resources)
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
                raise inherited_error()
            yield from self._write_work(work)
        finally:
            work.end()

    def _read_protections(self, _: ask.ReadProtections) -> Operations:
        """Return nothing: the store itself protects nothing, so the guard refuses every stale lease."""
        yield from ()
        return ()

    def _was_protected(self, request: ask.WasProtected) -> Operations:
        return (yield from self._find_traces(request.resource))

    def _find_traces(self, resource: str) -> Operations:
        """Return whether something shows that a resource without a mark had one: overridden by a store that can tell,
        by an audit entry with the action `protect` for example.
        """
        yield from ()
        return False

    def _unprotect(self, request: ask.Unprotect) -> Operations:
        yield from ()
        raise nothing_protected(request.resource)

    def _refuse(self, request: Any) -> Operations:
        yield from ()
        raise unsupported(request, self._url)

    def _refuse_purge(self, _: Any) -> Operations:
        yield from ()
        raise UnsupportedError(
            f"{self._url} purges no marks and keeps no floors: it writes one resource in one step, so it cannot delete "
            f"a mark and raise the floor of its source together. Its marks stay"
        )

    def _look(self, request: ask.InspectResources) -> Operations:
        wanted = request.resource
        found = yield from (self._read_all() if wanted is None else self._read((wanted, FLOORS)))
        marks, floors = self._marks(found), decode_floors(self._url, found[FLOORS].value)
        return ask.ResourceReport(
            tuple(marks[name] for name in sorted(marks)),
            (),
            (),
            floors=tuple(ask.Floor(*floor) for floor in sorted(floors.items())),
        )

    ANSWERS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
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
        ask.WasProtected: _was_protected,
        ask.Unprotect: _unprotect,
        ask.FindOldMarks: _refuse_purge,
        ask.PurgeMarks: _refuse_purge,
        ask.SetFloor: _refuse_purge,
        ask.GrantRight: _refuse,
        ask.RevokeRights: _refuse,
        ask.EndSessions: _refuse,
        ask.WriteKeys: _refuse,
        ask.RequireSignatures: _refuse,
        ask.InspectResources: _look,
    }


def _is_own(mark: Mark | None, sequencer: Sequencer) -> bool:
    return mark is not None and mark == sealed_mark(mark.resource, sequencer)
