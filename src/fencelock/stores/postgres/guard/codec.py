"""Encodes each request to a PostgreSQL guard as round trips of one or more statements, and decodes their answers.

Promise: pure, and the same for synchronous and asynchronous connections, the guard's own and the caller's. An encoder
is a generator: it yields the statements of one round trip, is sent their answers, and returns the reply. A statement
whose answer is not needed waits for the next round trip: a seal takes two trips, opening a guarded transaction one,
ending it one. Never makes a decision about a token.
"""

from collections.abc import Iterable
from typing import ClassVar

from psycopg.errors import InvalidSqlStatementName, SerializationFailure

from fencelock.errors import GuardError
from fencelock.model import Protection, Sequencer
from fencelock.protocol import guard_requests as ask
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Statement
from fencelock.stores.postgres.guard.effects import PostgresEffectsCodec
from fencelock.stores.postgres.guard.errors import failed_inside
from fencelock.stores.postgres.guard.protection import PostgresMigrationCodec, PostgresProtectionCodec, change_of
from fencelock.stores.postgres.guard.purging import BRIEF_MS, WHICH_SCHEMA, PostgresPurgingCodec, marks_in
from fencelock.stores.postgres.guard.rights import SQL, Trips, entry_row, ordered
from fencelock.stores.sql.guard import UNKNOWN_MS, check_guard_schema

WAITING_MS = 50_000
"""How long the guard's own transaction waits for a mark: less than its client waits for the answer, so that the session
does not keep waiting after its client has gone.
"""
MAX_OPENS = 5
"""Attempts to begin with a snapshot that is not older than a concurrent seal."""
OF_EACH_BLOCK = (SQL.offer, SQL.confirm)
"""The statements of each block, which are worth preparing; the one that opens the block is first."""


class PostgresGuardCodec(PostgresEffectsCodec):
    """The requests that are the same on every connection."""

    def _read_protections(self, request: ask.ReadProtections) -> Trips:
        answers = yield (Statement(SQL.read_protections, (request.resource,)),)
        return tuple(Protection(*row) for row in answers[-1].rows)

    def _record_refusal(self, request: ask.RecordRefusal) -> Trips:
        yield (Statement(SQL.record_refusal, (request.resource, request.kind)),)

    ENCODERS: ClassVar = {
        **PostgresEffectsCodec.ENCODERS,
        ask.ReadProtections: _read_protections,
        ask.RecordRefusal: _record_refusal,
    }


class PostgresBlockCodec(PostgresPurgingCodec, PostgresProtectionCodec, PostgresGuardCodec):
    """Requests over the guard's own connection, which begins and ends its transactions."""

    def __init__(self) -> None:
        super().__init__()
        self._is_brief = False

    def forget(self) -> None:
        """Drop the unsent statements: the transaction is over."""
        self._unsent = []
        self._unwritten = None
        self._is_brief = False

    # --- transactions ---
    def _begin(self, _: ask.Begin) -> Trips:
        self._unsent = [Statement(SQL.begin_briefly), WHICH_SCHEMA, Statement(SQL.limit_waiting, (WAITING_MS,))]
        self._is_brief = True
        yield from ()

    def _commit(self, _: ask.Commit) -> Trips:
        self._is_brief = False
        yield self._flush(Statement(SQL.commit))

    def _open(self, request: ask.Open) -> Trips:
        # BEGIN and the offer share one round trip, so a retry sends both again.
        offer = _offer(request.resources, request.sequencer, _limit_ms(request))
        for tries_left in reversed(range(MAX_OPENS)):
            try:
                answers = yield (Statement(SQL.begin), offer)
            except (SerializationFailure, InvalidSqlStatementName):
                # At REPEATABLE READ and SERIALIZABLE another seal committed between the snapshot and the check of the
                # mark; or the block before has deallocated the prepared statements.
                if not tries_left:
                    raise
                yield (Statement(SQL.rollback),)
            else:
                return _others(request.resources, answers[-1])
        raise AssertionError("the loop ends by its return or its raise")

    def _finish(self, request: ask.Finish) -> Trips:
        try:
            # Confirmed in the trip that commits: what a block wrote after its own COMMIT and BEGIN is not committed.
            answers = yield (*self._end(request.resources), Statement(SQL.commit))
        except InvalidSqlStatementName as error:
            raise GuardError(
                "the guarded block has discarded the session's prepared statements (DEALLOCATE ALL), including the "
                "guard's, so its end could not be confirmed: nothing of it was written. Deallocate your own by name"
            ) from error
        if answers[-1].tag != "COMMIT":
            raise failed_inside()

    # --- marks ---
    def _read_marks(self, request: ask.ReadMarks) -> Trips:
        limit_ms = BRIEF_MS if self._is_brief else None
        hold = _hold(request, is_exclusive=self._is_brief)
        parameters = (ordered(request.resources), request.shared_by, hold, limit_ms)
        answers = yield self._flush(Statement(SQL.read_marks, parameters))
        if self._is_brief:
            # The second statement of a brief transaction, after its BEGIN, reads the schema's number.
            check_guard_schema(answers[1].rows)
        return marks_in(answers[-1].rows)

    def _raise_marks(self, request: ask.RaiseMarks) -> Trips:
        self._unsent.append(_raise(request))
        yield from ()

    def _close_marks(self, request: ask.CloseMarks) -> Trips:
        self._unsent.append(Statement(SQL.close_marks, (request.claim, ordered(request.resources))))
        yield from ()

    def _change_mark(self, request: ask.ChangeMark) -> Trips:
        self._unsent.append(change_of(request))
        yield from ()

    def _write_audit(self, request: ask.WriteAudit) -> Trips:
        self._unsent.append(Statement(SQL.write_audit, entry_row(request.entry)))
        yield from ()

    # --- effects ---
    def _begun_meanwhile(self, key: str) -> Exception:
        return ask.ConflictError(f"key {key!r} was begun in another transaction")

    def _look(self, request: ask.InspectResources) -> Trips:
        wanted = (request.resource,)
        looks = (SQL.show_marks, SQL.read_protections, SQL.show_observations, SQL.show_rights)
        answers = yield (WHICH_SCHEMA, *(Statement(look, wanted) for look in looks), Statement(SQL.show_floors))
        check_guard_schema(answers[0].rows)
        marks, protections, observations, rights, floors = (answer.rows for answer in answers[1:])
        return ask.ResourceReport(
            tuple(marks_in(row[:-1] for row in marks).values()),
            tuple(Protection(*row) for row in protections),
            tuple(ask.Observation(*row) for row in observations),
            tuple(ask.Right(*row) for row in rights),
            tuple(resource for resource, *_, is_signed in marks if is_signed),
            keeps_rights=True,
            floors=tuple(ask.Floor(*row) for row in floors),
        )

    ENCODERS: ClassVar = {
        **PostgresGuardCodec.ENCODERS,
        **PostgresPurgingCodec.ENCODERS,
        **PostgresProtectionCodec.ENCODERS,
        ask.Begin: _begin,
        ask.Commit: _commit,
        ask.Open: _open,
        ask.Finish: _finish,
        ask.ReadMarks: _read_marks,
        ask.RaiseMarks: _raise_marks,
        ask.CloseMarks: _close_marks,
        ask.ChangeMark: _change_mark,
        ask.WriteAudit: _write_audit,
        ask.InspectResources: _look,
    }


class PostgresCallerCodec(PostgresMigrationCodec, PostgresGuardCodec):
    """Requests inside the caller's own transaction, which is neither begun nor ended here."""

    def __init__(self) -> None:
        self._is_exclusive = False
        self._limit_ms: int | None = None

    def _join(self, request: ask.Join) -> Trips:
        """Take note of the limit: the next statement, which reads the marks, locks them."""
        self._limit_ms = _limit_ms(request)
        if request.is_to_raise:
            answers = yield (Statement(SQL.isolation),)
            # At the other levels all statements read by the first one's snapshot, which may be older than the raise.
            self._is_exclusive = answers[-1].rows[0][0] in ("read committed", "read uncommitted")
        return self._is_exclusive

    def _read_marks(self, request: ask.ReadMarks) -> Trips:
        hold = _hold(request, is_exclusive=self._is_exclusive)
        parameters = (ordered(request.resources), request.shared_by, hold, self._limit_ms)
        answers = yield (Statement(SQL.read_marks, parameters),)
        return marks_in(answers[-1].rows)

    def _raise_marks(self, request: ask.RaiseMarks) -> Trips:
        yield (_raise(request),)

    def _present(self, request: ask.Present) -> Trips:
        answers = yield (_offer(request.resources, request.sequencer, _limit_ms(request)),)
        return _others(request.resources, answers[-1])

    def _unpresent(self, request: ask.Unpresent) -> Trips:
        resources = ordered(request.resources)
        if self._unwritten is not None:
            yield (Statement(SQL.write_effect_and_withdraw, (*self._unwritten, resources)),)
        elif resources:
            yield (Statement(SQL.withdraw, (resources,)),)

    ENCODERS: ClassVar = {
        **PostgresGuardCodec.ENCODERS,
        **PostgresMigrationCodec.ENCODERS,
        ask.Join: _join,
        ask.ReadMarks: _read_marks,
        ask.RaiseMarks: _raise_marks,
        ask.Present: _present,
        ask.Unpresent: _unpresent,
    }


class PostgresFrameworkCodec(PostgresCallerCodec):
    """Requests inside a framework's transaction, which the framework commits right after `Unpresent`."""

    def _unpresent(self, request: ask.Unpresent) -> Trips:
        """Confirm, but withdraw nothing: triggers that COMMIT defers may write, and the transaction ends anyway."""
        # Without a resource, which only observe mode permits, any statement fails in a transaction that has failed.
        yield self._end(request.resources) or (Statement(SQL.isolation),)

    ENCODERS: ClassVar = {
        **PostgresCallerCodec.ENCODERS,
        ask.Unpresent: _unpresent,
    }


def _hold(request: ask.ReadMarks, *, is_exclusive: bool) -> str:
    """Return how to lock the marks: shared with all who present them, or alone, to write them."""
    if not is_exclusive:
        return "shared"
    return "alone" if request.shared_by is None else "alone unless ours"


def _limit_ms(request: ask.Open | ask.Join | ask.Present) -> int:
    return UNKNOWN_MS if request.limit_ms is None else max(1, request.limit_ms)


def _offer(resources: Iterable[str], sequencer: Sequencer, limit_ms: int) -> Statement:
    identity = (sequencer.token, sequencer.proof, sequencer.source_id, sequencer.history_id)
    return Statement(SQL.offer, (ordered(resources), sequencer.lock.encode(), *identity, limit_ms))


def _others(resources: Iterable[str], answer: PostgresAnswer) -> tuple[str, ...]:
    """Return the resources that `offer` did not admit."""
    offered = ordered(resources)
    return tuple(offered[position - 1] for position in answer.rows[0][0])


def _raise(request: ask.RaiseMarks) -> Statement:
    return Statement(SQL.raise_marks, (str(request.sequencer), ordered(request.resources)))
