"""A guarded resource in memory: marks, data and one writer at a time, as a database has them.

Promise: a session's transaction works on a copy of the state; `Commit` or `Finish` publishes the copy, and anything
else drops it. While one session is in a write transaction, no other begins one. Never: a decision about a token, which
`admit` makes; durable, so no URL leads here.
"""

import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from fencelock._flows.guarding import sealed_mark
from fencelock.errors import GuardError, SourceUnavailableError, UnfencedWriteError
from fencelock.model import Mark, Protection, Sequencer, digest_of_claim
from fencelock.protocol import guard_requests as ask
from fencelock.stores.errors import check_plausible, unsupported
from fencelock.testing.memory_state import MemoryResourceState

_WHEN = "1970-01-01T00:00:00Z"
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class MemoryResource:
    """The committed state, and the session that is in a write transaction. `unix_s` is its clock, for the ceiling."""

    def __init__(self, *, unix_s: Callable[[], float] = time.time) -> None:
        self.state = MemoryResourceState()
        self.unix_s = unix_s
        self._writer: weakref.ref[MemoryResourceSession] | None = None

    @property
    def writer(self) -> "MemoryResourceSession | None":
        """The session in a write transaction; a database ends the transaction of a client that is gone."""
        return None if self._writer is None else self._writer()

    @writer.setter
    def writer(self, session: "MemoryResourceSession | None") -> None:
        self._writer = None if session is None else weakref.ref(session)


class MemoryResourceSession:
    """One client: answers guard requests, and is the native connection that users write through."""

    def __init__(self, target: MemoryResource) -> None:
        self.target = target
        self.work: MemoryResourceState | None = None
        self.presented: dict[str, Sequencer] = {}

    @property
    def native(self) -> "MemoryResourceSession":
        """The client's own object."""
        return self

    @property
    def inside(self) -> MemoryResourceState:
        """The state as the open transaction sees it; SourceUnavailableError if the transaction has ended."""
        if self.work is None:
            raise SourceUnavailableError("the resource has ended this transaction and rolled it back")
        return self.work

    def perform(self, request: ask.GuardRequest) -> ask.GuardReply:
        """Answer one request; if it raises, no transaction is open afterwards."""
        answer = self.ANSWERS.get(type(request))
        if answer is None:
            raise unsupported(request, "a resource in memory")
        try:
            reply: ask.GuardReply = getattr(self, answer)(request)
        except BaseException:
            self.rollback()
            raise
        return reply

    def enter(self) -> None:
        """Begin a write transaction; SourceUnavailableError while another session is inside one."""
        if self.target.writer not in (None, self):
            raise SourceUnavailableError("another client locked the resource for too long: try again")
        self.target.writer = self
        self.work = self.target.state.copy()
        self.presented = {}

    def publish(self) -> None:
        """Commit the transaction."""
        self.target.state = self.inside
        self.rollback()

    def rollback(self) -> None:
        """Roll back the open transaction, if there is one; never raises."""
        self.work = None
        self.presented = {}
        if self.target.writer is self:
            self.target.writer = None

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return None: errors here are fencelock's already."""
        return None

    def close(self) -> None:
        """Roll back the open transaction."""
        self.rollback()

    # --- for users of the native connection ---------------------------------------------------------------------------
    def get(self, table: str, key: str) -> Any:
        """Return a value as the open transaction sees it; the committed value outside of one."""
        return (self.work or self.target.state).data.get((table, key))

    def put(self, table: str, key: str, value: Any) -> None:
        """Write a value inside the open transaction; UnfencedWriteError if the table's resource was not presented."""
        state = self.inside
        protection = state.tables.get(table)
        if protection is not None and not self.is_presented(protection.resource):
            if protection.mode == ask.ENFORCE:
                raise UnfencedWriteError(
                    f"table {table!r} belongs to resource {protection.resource!r} and takes writes only with its "
                    f"newest sealed token: write inside `with guard.transaction(lease)`"
                )
            state.observe(protection.resource, table, "update")
        state.data[table, key] = value

    def put_alone(self, table: str, key: str, value: Any) -> None:
        """Write a value in a transaction of its own, as a client that does not use the guard does."""
        self.enter()
        try:
            self.put(table, key, value)
            self.publish()
        finally:
            self.rollback()

    def is_presented(self, resource: str) -> bool:
        """Return whether this transaction has presented the resource's mark, and that is not closed."""
        sequencer = self.presented.get(resource)
        return sequencer is not None and self.is_own(resource, sequencer)

    def is_own(self, resource: str, sequencer: Sequencer) -> bool:
        """Return whether the resource's mark belongs to the lease and is not closed."""
        mark = self.inside.marks.get(resource)
        if mark is None or mark.is_closed or mark.digest is None:
            return False
        ours = (sequencer.lock, sequencer.token, sequencer.source_id, sequencer.history_id, sequencer.digest)
        return (mark.lock, mark.token, mark.source_id, mark.history_id, mark.digest) == ours

    # --- transactions -------------------------------------------------------------------------------------------------
    def _begin(self, _: ask.Begin) -> None:
        self.enter()

    def _commit(self, _: ask.Commit) -> None:
        self.publish()

    def _open(self, request: ask.Open) -> tuple[str, ...]:
        self.enter()
        return self._present(request)

    def _finish(self, request: ask.Finish) -> None:
        if not all(resource in self.presented for resource in request.resources):
            raise GuardError("the guarded transaction ended inside its block: nothing of it was written")
        self.publish()

    def _join(self, _: ask.Join) -> bool:
        if self.work is None:
            raise GuardError("the connection is not in a transaction: begin one first")
        return False

    def _present(self, request: ask.Present | ask.Open) -> tuple[str, ...]:
        not_ours = []
        for resource in request.resources:
            if self.is_own(resource, request.sequencer):
                self.presented[resource] = request.sequencer
            else:
                not_ours.append(resource)
        return tuple(not_ours)

    def _unpresent(self, request: ask.Unpresent) -> None:
        for resource in request.resources:
            del self.presented[resource]

    # --- effects ------------------------------------------------------------------------------------------------------
    def _begin_effect(self, request: ask.BeginEffect) -> ask.Effect | None:
        before = self.inside.effects.get((request.resource, request.effect.key))
        if before is None:
            self._write_effect(ask.WriteEffect(*request))
        return before

    def _read_effect(self, request: ask.ReadEffect) -> ask.Effect | None:
        return (self.work or self.target.state).effects.get((request.resource, request.key))

    def _write_effect(self, request: ask.WriteEffect) -> None:
        if not self.is_presented(request.resource):
            raise GuardError(f"resource {request.resource!r} is not presented: its effects are kept inside its blocks")
        place, token = (request.resource, request.effect.key), self.presented[request.resource].token
        if request.effect.holder:
            began_at = datetime.fromtimestamp(self.target.unix_s(), UTC).strftime(_TIME)
            if request.effect.result is not None and place in self.inside.effects:
                began_at = self.inside.effects[place].began_at
            self.inside.effects[place] = request.effect._replace(token=token, began_at=began_at)
        else:
            self.inside.effects.pop(place, None)

    def _purge_effects(self, request: ask.PurgeEffects) -> int:
        state = self.target.state
        tokens = {resource: mark.token for resource, mark in state.marks.items()}
        until = self.target.unix_s() - request.older_than_ms / 1000
        old = [
            (resource, key)
            for (resource, key), effect in state.effects.items()
            if effect.result is not None
            and effect.token != tokens.get(resource)
            and datetime.strptime(effect.began_at, _TIME).replace(tzinfo=UTC).timestamp() <= until
        ]
        for place in old:
            del state.effects[place]
        return len(old)

    # --- marks and protection -----------------------------------------------------------------------------------------
    def _read_marks(self, request: ask.ReadMarks) -> dict[str, Mark]:
        marks = self.inside.marks
        return {resource: marks[resource] for resource in request.resources if resource in marks}

    def _raise_marks(self, request: ask.RaiseMarks) -> None:
        for resource in request.resources:
            self._write(sealed_mark(resource, request.sequencer))

    def _close_marks(self, request: ask.CloseMarks) -> None:
        marks, digest = self.inside.marks, digest_of_claim(request.claim)
        for resource in request.resources:
            if marks[resource].digest == digest:
                marks[resource] = replace(marks[resource], is_closed=True)

    def _change_mark(self, request: ask.ChangeMark) -> None:
        self.inside.audit.append(request.entry)
        self._write(request.mark, is_implausible=request.is_implausible)

    def _write(self, mark: Mark, *, is_implausible: bool = False) -> None:
        if not is_implausible:
            self._check_plausible(mark.resource, mark.token)
        self.inside.write_mark(mark, self.target.unix_s())

    def _check_plausible(self, resource: str, token: int) -> None:
        before = self.inside.marks.get(resource)
        check_plausible(resource, token, before.token if before else 0, self.target.unix_s())

    def _find_old_marks(self, request: ask.FindOldMarks) -> tuple[Mark, ...]:
        return self.target.state.find_old_marks(request, self.target.unix_s())

    def _purge_marks(self, request: ask.PurgeMarks) -> int:
        return self.inside.purge_marks(request)

    def _set_floor(self, request: ask.SetFloor) -> None:
        self.inside.set_floor(request)

    def _write_audit(self, request: ask.WriteAudit) -> None:
        self.inside.audit.append(request.entry)

    def _read_protections(self, request: ask.ReadProtections) -> tuple[Protection, ...]:
        return tuple(one for one in self.inside.tables.values() if one.resource == request.resource)

    def _protect(self, request: ask.Protect) -> ask.Protected:
        state = self.inside
        state.marks.setdefault(request.resource, Mark(request.resource, request.lock))
        changed = []
        for table in request.tables:
            before = state.tables.get(table)
            if before is not None and before.resource != request.resource:
                raise GuardError(f"table {table!r} belongs to resource {before.resource!r}: unprotect it there first")
            if before is not None and before.mode != request.mode:
                changed.append(before)
            state.tables[table] = Protection(table, request.resource, request.mode)
        return ask.Protected(tuple(changed))

    def _unprotect(self, request: ask.Unprotect) -> tuple[Protection, ...]:
        state = self.inside
        gone = tuple(
            one
            for one in state.tables.values()
            if one.resource == request.resource and (not request.tables or one.table in request.tables)
        )
        for one in gone:
            del state.tables[one.table]
        return gone

    def _record_refusal(self, request: ask.RecordRefusal) -> None:
        self.inside.observe(request.resource, "", request.kind)

    def _look(self, request: ask.InspectResources) -> ask.ResourceReport:
        state, wanted = self.target.state, request.resource
        return ask.ResourceReport(
            tuple(mark for name, mark in sorted(state.marks.items()) if wanted in (None, name)),
            tuple(one for one in state.tables.values() if wanted in (None, one.resource)),
            tuple(
                ask.Observation(*key, times, _WHEN, _WHEN)
                for key, times in state.observed.items()
                if wanted in (None, key[0])
            ),
            floors=tuple(ask.Floor(*floor) for floor in sorted(state.floors.items()) if floor[1]),
        )

    ANSWERS: ClassVar[dict[type, str]] = {
        ask.Begin: "_begin",
        ask.Commit: "_commit",
        ask.Open: "_open",
        ask.Finish: "_finish",
        ask.Join: "_join",
        ask.Present: "_present",
        ask.Unpresent: "_unpresent",
        ask.ReadMarks: "_read_marks",
        ask.BeginEffect: "_begin_effect",
        ask.ReadEffect: "_read_effect",
        ask.WriteEffect: "_write_effect",
        ask.PurgeEffects: "_purge_effects",
        ask.RaiseMarks: "_raise_marks",
        ask.CloseMarks: "_close_marks",
        ask.ChangeMark: "_change_mark",
        ask.WriteAudit: "_write_audit",
        ask.FindOldMarks: "_find_old_marks",
        ask.PurgeMarks: "_purge_marks",
        ask.SetFloor: "_set_floor",
        ask.ReadProtections: "_read_protections",
        ask.Protect: "_protect",
        ask.Unprotect: "_unprotect",
        ask.RecordRefusal: "_record_refusal",
        ask.InspectResources: "_look",
    }
