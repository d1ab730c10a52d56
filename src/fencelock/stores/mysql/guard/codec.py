"""Encodes each request to a MySQL guard as round trips of one statement each, and decodes their answers.

Promise: pure, and the same for synchronous and asynchronous connections, the guard's own and the caller's, and every
client, since the values are literals that no SQL mode and no character set can misread. An encoder is a generator: it
yields the statement of one round trip, is sent the rows of each of its results, and returns the reply. A seal takes two
trips, opening a guarded transaction one, ending it one. Never makes a decision about a token.
"""

import math
from collections.abc import Generator, Iterable
from typing import Any, ClassVar, NamedTuple

from fencelock.model import Sequencer
from fencelock.protocol import guard_requests as ask
from fencelock.stores.mysql.connection.masks import SharedMask
from fencelock.stores.mysql.connection.wire import Rows, Value, decode_text, literals, quoted
from fencelock.stores.mysql.guard.answers import (
    decode_observation,
    marks_in,
    other_reply_error,
    other_resources,
    text_or_none,
)
from fencelock.stores.mysql.guard.effects import MySQLEffectsCodec
from fencelock.stores.mysql.guard.protection import Protector, protections_in
from fencelock.stores.mysql.guard.purging import MySQLPurgingCodec, floors_in
from fencelock.stores.mysql.guard.trips import SeparateConnection, Trip, Trips
from fencelock.stores.sql.guard import UNKNOWN_MS, check_guard_schema
from fencelock.stores.statements import statements

SQL = statements(__package__, "guard.sql")
BRIEF_S = 5
"""The idle limit of the guard's own transaction: a process that freezes inside it must not block the marks."""
_MS_PER_S = 1000


class Unwritten(NamedTuple):
    """What a commit writes to marks: the resources to raise and the sequencer, those to close and the claim."""

    raised: str | None = None
    sequencer: Sequencer | None = None
    closed: str | None = None
    claim: str | None = None


class MySQLGuardCodec(MySQLEffectsCodec):
    """The requests that are the same on every connection."""

    def __init__(self, database: str, shared: SharedMask) -> None:
        self._database = database
        self._here = quoted(database)
        self._shared = shared

    def fill(self, template: str, **values: Value) -> str:
        """Return a statement with its values."""
        return template.format(here=self._here, **literals(values))

    def _draw_mask(self) -> Trips:
        """Have the server draw a mask, unless it has done so for this process."""
        if not self._shared.is_asked:
            answers = yield lambda number: self.fill(SQL.draw_mask, number=number)
            self._learn(*answers[0][0])

    def _learn(self, ticket: Any, key: Any) -> None:
        self._shared.learn(text_or_none(ticket), text_or_none(key))

    def _offered(self, template: str, request: ask.Open | ask.Present, number: int | None) -> str:
        proof = self._shared.mask(request.sequencer.proof, number)
        return self.fill(template, proof=proof, **_offered(request))

    def _read_protections(self, request: ask.ReadProtections) -> Trips:
        answers = yield self.fill(SQL.show_triggers, resource=request.resource)
        return protections_in(answers[0], self._database)

    def _record_refusal(self, request: ask.RecordRefusal) -> Trips:
        yield self.fill(SQL.record_refusal, resource=request.resource, kind=request.kind)

    ENCODERS: ClassVar = {
        **MySQLEffectsCodec.ENCODERS,
        ask.ReadProtections: _read_protections,
        ask.RecordRefusal: _record_refusal,
    }


class MySQLBlockCodec(MySQLGuardCodec, MySQLPurgingCodec):
    """Requests over the guard's own connection, which begins and ends its transactions."""

    def __init__(self, database: str, shared: SharedMask) -> None:
        super().__init__(database, shared)
        self._is_to_begin = False
        self._unwritten_marks = Unwritten()
        self._protector = Protector(database)

    def forget(self) -> list[str]:
        """Drop what was not sent yet: the transaction is over. Return the statements that undo its DDL."""
        undoing = self._protector.undoing
        self._is_to_begin = False
        self._unwritten_marks = Unwritten()
        self._unwritten = None
        self._protector = Protector(self._database)
        return undoing

    # --- transactions ---
    def _begin(self, _: ask.Begin) -> Trips:
        self._is_to_begin = True
        yield from ()

    def _commit(self, _: ask.Commit) -> Trips:
        protector, self._protector = self._protector, Protector(self._database)
        unwritten, self._unwritten_marks = self._unwritten_marks, Unwritten()
        if unwritten == Unwritten():
            yield self.fill(SQL.commit)
        else:
            yield lambda number: self.fill(SQL.write_and_commit, **self._masked(unwritten, number))
        # The old mode's triggers go after the commit: where both modes have some, enforcing is in force.
        for statement in protector.afterwards:
            yield SeparateConnection(statement)

    def _masked(self, unwritten: Unwritten, number: int | None) -> dict[str, Value]:
        sequencer, claim = unwritten.sequencer, unwritten.claim
        text = None
        if sequencer is not None:
            text = str(sequencer).replace(f".{sequencer.proof}.", f".{self._shared.mask(sequencer.proof, number)}.")
        return {
            "raised": unwritten.raised,
            "sequencer": text,
            "closed": unwritten.closed,
            "claim": None if claim is None else self._shared.mask(claim, number),
        }

    def _open(self, request: ask.Open) -> Trips:
        yield from self._draw_mask()
        answers = yield lambda number: self._offered(SQL.open, request, number)
        return other_resources(answers)

    def _finish(self, _: ask.Finish) -> Trips:
        yield self._end(SQL.finish, SQL.finish_effect)

    # --- marks ---
    def _read_marks(self, request: ask.ReadMarks) -> Trips:
        resources = listed(request.resources)
        if not self._is_to_begin:
            answers = yield self.fill(SQL.read_marks, resources=resources)
            return marks_in(answers)
        hold = "alone" if request.shared_by is None else "alone unless ours"
        answers = yield from self._begin_by(resources=resources, digest=request.shared_by, hold=hold)
        return marks_in(answers[1:])

    def _begin_now(self) -> Trips:
        """Begin the transaction, if a request comes before any mark is read."""
        if self._is_to_begin:
            yield from self._begin_by(resources="", digest=None, hold="shared")

    def _begin_by(self, **values: Value) -> Generator[Trip, list[Rows], list[Rows]]:
        answers = yield lambda number: self.fill(SQL.begin, limit_s=BRIEF_S, number=number, **values)
        self._is_to_begin = False
        check_guard_schema(answers[0])
        self._learn(*answers[0][0][1:])
        return answers

    def _raise_marks(self, request: ask.RaiseMarks) -> Trips:
        self._unwritten_marks = self._unwritten_marks._replace(
            raised=listed(request.resources), sequencer=request.sequencer
        )
        yield from ()

    def _close_marks(self, request: ask.CloseMarks) -> Trips:
        self._unwritten_marks = self._unwritten_marks._replace(closed=listed(request.resources), claim=request.claim)
        yield from ()

    def _change_mark(self, request: ask.ChangeMark) -> Trips:
        mark = request.mark
        yield self.fill(
            SQL.check_change,
            resource=mark.resource,
            token=mark.token,
            sequencer=None if request.sequencer is None else str(request.sequencer),
            is_implausible=request.is_implausible,
        )
        yield self.fill(SQL.write_audit, **request.entry._asdict())
        yield self.fill(
            SQL.change_mark,
            resource=mark.resource,
            lock=mark.lock,
            token=mark.token,
            source_id=mark.source_id,
            history_id=mark.history_id,
            digest=mark.digest,
            is_closed=mark.is_closed,
        )

    def _write_audit(self, request: ask.WriteAudit) -> Trips:
        yield self.fill(SQL.write_audit, **request.entry._asdict())

    # --- effects ---
    def _begun_meanwhile(self, key: str) -> Exception:
        return ask.ConflictError(f"key {key!r} was begun in another transaction")

    # --- protection: its DDL runs on a separate connection, while the open transaction keeps the mark locked ---
    def _protect(self, request: ask.Protect) -> Trips:
        yield self.fill(SQL.make_mark, resource=request.resource, lock=request.lock)
        return (yield from _separately(self._protector.protect(request.resource, request.tables, request.mode)))

    def _unprotect(self, request: ask.Unprotect) -> Trips:
        return (yield from _separately(self._protector.unprotect(request.resource, request.tables)))

    def _look(self, request: ask.InspectResources) -> Trips:
        # A consistent snapshot is not needed, and at SERIALIZABLE every SELECT would lock.
        yield SQL.look_without_locks
        found = []
        for look in (SQL.show_marks, SQL.show_triggers, SQL.show_observations, SQL.show_rights):
            found.append((yield self.fill(look, resource=request.resource))[0])
        floors = (yield self.fill(SQL.show_floors))[0]
        yield SQL.rollback
        marks, triggers, observations, rights = found
        return ask.ResourceReport(
            tuple(marks_in([[row[:-1] for row in marks]]).values()),
            protections_in(triggers, self._database),
            tuple(decode_observation(row) for row in observations),
            tuple(ask.Right(*map(decode_text, row)) for row in rights),
            tuple(decode_text(row[0]) for row in marks if row[-1]),
            keeps_rights=True,
            floors=floors_in(floors),
        )

    ENCODERS: ClassVar = {
        **MySQLGuardCodec.ENCODERS,
        **MySQLPurgingCodec.ENCODERS,
        ask.Begin: _begin,
        ask.Commit: _commit,
        ask.Open: _open,
        ask.Finish: _finish,
        ask.ReadMarks: _read_marks,
        ask.RaiseMarks: _raise_marks,
        ask.CloseMarks: _close_marks,
        ask.ChangeMark: _change_mark,
        ask.WriteAudit: _write_audit,
        ask.Protect: _protect,
        ask.Unprotect: _unprotect,
        ask.InspectResources: _look,
    }


class MySQLCallerCodec(MySQLGuardCodec):
    """Requests inside the caller's own transaction, which is neither begun nor ended here."""

    def _join(self, _: ask.Join) -> Trips:
        """Never raise a mark: MySQL does not show whether the transaction has a snapshot already, which may lack the
        last holder's writes. The next statement, which reads the marks, locks them.
        """
        yield from ()
        return False

    def _read_marks(self, request: ask.ReadMarks) -> Trips:
        found: list[Rows] = []
        for resource in sorted(request.resources):
            # One result at a time: some cursors cannot read a second one.
            found += yield self.fill(SQL.check_marks, resources=listed((resource,)))
        return marks_in(found)

    def _present(self, request: ask.Present) -> Trips:
        yield from self._draw_mask()
        answers = yield lambda number: self._offered(SQL.offer, request, number)
        if [len(row) for rows in answers for row in rows] != [1]:
            raise other_reply_error()
        return other_resources(answers)

    def _unpresent(self, request: ask.Unpresent) -> Trips:
        resources = listed(request.resources)
        answers = yield self._end(SQL.take_back, SQL.take_back_effect, resources=resources)
        if [tuple(map(decode_text, row)) for rows in answers for row in rows] != [("taken back", resources)]:
            raise other_reply_error()

    ENCODERS: ClassVar = {
        **MySQLGuardCodec.ENCODERS,
        ask.Join: _join,
        ask.ReadMarks: _read_marks,
        ask.Present: _present,
        ask.Unpresent: _unpresent,
    }


def _separately(operations: Generator[str, list[Rows], Any]) -> Trips:
    """Run every statement of the generator on the separate connection."""
    answers: list[Rows] = []
    try:
        statement = next(operations)
        while True:
            answers = yield SeparateConnection(statement)
            statement = operations.send(answers)
    except StopIteration as done:
        return done.value


def listed(resources: Iterable[str]) -> str:
    """Return resources as the routines take them, in the order in which every connection locks them."""
    return ",".join(sorted(resource.encode().hex().upper() for resource in resources))


def _offered(request: ask.Open | ask.Present) -> dict[str, Value]:
    sequencer: Sequencer = request.sequencer
    limit_ms = UNKNOWN_MS if request.limit_ms is None else request.limit_ms
    return {
        "resources": listed(request.resources),
        "lock": sequencer.lock,
        "token": sequencer.token,
        "source_id": sequencer.source_id,
        "history_id": sequencer.history_id,
        "limit_s": max(1, math.ceil(limit_ms / _MS_PER_S)),
    }
