"""A guarded place in memory: marks, data and one writer at a time, as a database has them.

Promise: a session's transaction works on a copy, which `Commit` or `Finish` puts in the place's whole and anything else
drops; while one session is inside, no other begins. Marks compare and refuse as `guard_requests.py` asks of a store.
The simulator drives sessions in virtual time; the conformance kit breaks them one rule at a time.
Never: a decision about a token, which is `admit`'s; durable, so no URL leads here.
"""

from typing import Any, ClassVar

from fencelock.errors import GuardError, SourceUnavailableError, UnfencedWriteError
from fencelock.model import Mark, Protection, Sequencer
from fencelock.protocol import guard_requests as ask

_WHEN = "1970-01-01T00:00:00Z"


class MemoryResourceState:
    """All that a place keeps."""

    def __init__(self) -> None:
        self.marks: dict[str, Mark] = {}
        self.tables: dict[str, Protection] = {}
        self.observed: dict[tuple[str, str, str], int] = {}
        self.audit: list[ask.AuditEntry] = []
        self.data: dict[tuple[str, str], Any] = {}

    def copy(self) -> "MemoryResourceState":
        """Return an equal state that changes apart from this one."""
        twin = type(self)()
        for name, value in vars(self).items():
            setattr(twin, name, value.copy())
        return twin

    def observe(self, resource: str, table: str, kind: str) -> None:
        """Count what enforcement would have refused."""
        key = (resource, table, kind)
        self.observed[key] = self.observed.get(key, 0) + 1


class MemoryResource:
    """The committed state, and who is inside a write transaction."""

    def __init__(self) -> None:
        self.state = MemoryResourceState()
        self.writer: MemoryResourceSession | None = None


class MemoryResourceSession:
    """One client of a place: answers guard requests, and is the native connection that users write through."""

    def __init__(self, place: MemoryResource) -> None:
        self.place = place
        self.work: MemoryResourceState | None = None
        self.presented: dict[str, Sequencer] = {}

    @property
    def native(self) -> "MemoryResourceSession":
        """The client's own object."""
        return self

    @property
    def inside(self) -> MemoryResourceState:
        """The state as the open transaction sees it; SourceUnavailableError if there is none any more."""
        if self.work is None:
            raise SourceUnavailableError("the place has ended this transaction, and undone what it wrote")
        return self.work

    def perform(self, request: ask.GuardRequest) -> ask.GuardReply:
        """Answer one request; anything but success leaves no transaction open."""
        try:
            reply: ask.GuardReply = getattr(self, self.ANSWERS[type(request)])(request)
        except BaseException:
            self.rollback()
            raise
        return reply

    def enter(self) -> None:
        """Begin a write transaction; SourceUnavailableError while another session is inside one."""
        if self.place.writer not in (None, self):
            raise SourceUnavailableError("the place was locked by another client for too long: try again")
        self.place.writer = self
        self.work = self.place.state.copy()
        self.presented = {}

    def publish(self) -> None:
        """Commit the transaction."""
        self.place.state = self.inside
        self.rollback()

    def rollback(self) -> None:
        """Leave the transaction, if there is one, without a trace; never raises."""
        self.work = None
        self.presented = {}
        if self.place.writer is self:
            self.place.writer = None

    def map_error(self, error: BaseException) -> GuardError | None:
        """Errors here are of the tree already."""
        return None

    def close(self) -> None:
        """Undo what is open."""
        self.rollback()

    # --- what a user does with the native connection ------------------------------------------------------------------
    def get(self, table: str, key: str) -> Any:
        """Return a value as the open transaction sees it, or as it was committed last."""
        return (self.work or self.place.state).data.get((table, key))

    def put(self, table: str, key: str, value: Any) -> None:
        """Write a value inside the open transaction; UnfencedWriteError if the table's resource was not presented."""
        state = self.inside
        protection = state.tables.get(table)
        if protection is not None and not self.is_presented(protection.resource):
            if protection.mode == ask.ENFORCE:
                raise UnfencedWriteError(
                    f"table {table!r} belongs to resource {protection.resource!r} and takes writes only from the "
                    f"holder of its lock: write inside `with guard.transaction(lease)`"
                )
            state.observe(protection.resource, table, "update")
        state.data[table, key] = value

    def put_alone(self, table: str, key: str, value: Any) -> None:
        """Write a value in a transaction of its own, as a client does that knows no guard."""
        self.enter()
        try:
            self.put(table, key, value)
            self.publish()
        finally:
            self.rollback()

    def is_presented(self, resource: str) -> bool:
        """Tell whether this transaction presents the open mark of the resource."""
        sequencer = self.presented.get(resource)
        return sequencer is not None and self.is_own(resource, sequencer)

    def is_own(self, resource: str, sequencer: Sequencer) -> bool:
        """Compare the resource's mark with the lease."""
        mark = self.inside.marks.get(resource)
        if mark is None or mark.is_closed or mark.claim is None:
            return False
        ours = (sequencer.lock, sequencer.token, sequencer.source_id, sequencer.history_id, sequencer.claim)
        return (mark.lock, mark.token, mark.source_id, mark.history_id, mark.claim) == ours

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
            raise GuardError("the connection is in no transaction: begin one first")
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

    # --- marks and protection -----------------------------------------------------------------------------------------
    def _read_marks(self, request: ask.ReadMarks) -> dict[str, Mark]:
        marks = self.inside.marks
        return {resource: marks[resource] for resource in request.resources if resource in marks}

    def _write_marks(self, request: ask.WriteMarks) -> None:
        for mark in request.marks:
            self.inside.marks[mark.resource] = mark

    def _change_mark(self, request: ask.ChangeMark) -> None:
        self.inside.audit.append(request.entry)
        self.inside.marks[request.mark.resource] = request.mark

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
        state, wanted = self.place.state, request.resource
        return ask.ResourceReport(
            tuple(mark for name, mark in sorted(state.marks.items()) if wanted in (None, name)),
            tuple(one for one in state.tables.values() if wanted in (None, one.resource)),
            tuple(
                ask.Observation(*key, times, _WHEN, _WHEN)
                for key, times in state.observed.items()
                if wanted in (None, key[0])
            ),
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
        ask.WriteMarks: "_write_marks",
        ask.ChangeMark: "_change_mark",
        ask.WriteAudit: "_write_audit",
        ask.ReadProtections: "_read_protections",
        ask.Protect: "_protect",
        ask.Unprotect: "_unprotect",
        ask.RecordRefusal: "_record_refusal",
        ask.InspectResources: "_look",
    }
