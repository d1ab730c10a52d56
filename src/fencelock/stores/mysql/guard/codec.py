"""What is said to a MySQL guard for each request, and what its answers mean: pure.

Promise: the same for synchronous and asynchronous connections, for the guard's own and for the caller's, and for every
client, since each trip is one statement and its values are literals that no mode and no character set can misread. A
seal takes two trips, opening a guarded transaction one, ending it one. Never: a decision about a token.
"""

import math
from collections.abc import Callable, Generator, Iterable
from typing import Any, ClassVar, NamedTuple

from fencelock.errors import SchemaError
from fencelock.model import Mark, Sequencer
from fencelock.protocol import guard_requests as ask
from fencelock.stores.mysql.connection.wire import Row, Rows, literals, quoted
from fencelock.stores.mysql.guard.protection import Protector, protections_in
from fencelock.stores.statements import statements

SQL = statements(__package__, "guard.sql")
SCHEMA_NUMBER = 1
BRIEF_S = 5
"""How long the guard's own transaction may be idle: whoever is frozen inside it must not keep others from the marks."""
UNKNOWN_MS = 30_000
"""How long a guarded transaction may be idle whose lease is somewhere else: as long as a lease is by default."""
_MS_PER_S = 1000


class SeparateConnection(NamedTuple):
    """A statement for another connection than the one with the open transaction: DDL would commit that one."""

    text: str


Talk = Generator[str | SeparateConnection, list[Rows], Any]
"""Yields one statement for each trip, and is sent the rows of each of its results."""


class MySQLGuardCodec:
    """What both kinds of connection say alike."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._here = quoted(database)

    def operations(self, request: Any) -> Talk:
        """Return the talk for a request."""
        return self._TALKS[type(request)](self, request)  # type: ignore[no-any-return]

    def said(self, template: str, **values: Any) -> str:
        """Return a statement with its values."""
        return template.format(here=self._here, **literals(values))

    def _read_protections(self, request: ask.ReadProtections) -> Talk:
        answers = yield self.said(SQL.show_triggers, resource=request.resource)
        return protections_in(answers[0], self._database)

    def _record_refusal(self, request: ask.RecordRefusal) -> Talk:
        yield self.said(SQL.record_refusal, resource=request.resource, kind=request.kind)

    _TALKS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        ask.ReadProtections: _read_protections,
        ask.RecordRefusal: _record_refusal,
    }


class MySQLBlockCodec(MySQLGuardCodec):
    """Over the guard's own connection, which begins and ends its transactions."""

    def __init__(self, database: str) -> None:
        super().__init__(database)
        self._is_to_begin = False
        self._unwritten: tuple[Mark, ...] = ()
        self._protector = Protector(database)

    def forget(self) -> list[str]:
        """Leave unsaid what was to be said: the transaction is over. Return what undoes the DDL that went with it."""
        undoing = self._protector.undoing
        self._is_to_begin = False
        self._unwritten = ()
        self._protector = Protector(self._database)
        return undoing

    # --- transactions ---
    def _begin(self, _: ask.Begin) -> Talk:
        self._is_to_begin = True
        yield from ()

    def _commit(self, _: ask.Commit) -> Talk:
        protector, self._protector = self._protector, Protector(self._database)
        marks, self._unwritten = self._unwritten, ()
        if not marks:
            yield self.said(SQL.commit)
        else:
            mark = marks[0]
            yield self.said(
                SQL.write_and_commit,
                resources=listed(one.resource for one in marks),
                lock=mark.lock,
                token=mark.token,
                claim=mark.claim,
                source_id=mark.source_id,
                history_id=mark.history_id,
                is_closed=mark.is_closed,
            )
        for statement in protector.afterwards:
            yield SeparateConnection(statement)

    def _open(self, request: ask.Open) -> Talk:
        answers = yield self.said(SQL.open, **_offered(request))
        return _others(answers)

    def _finish(self, _: ask.Finish) -> Talk:
        yield self.said(SQL.finish)

    # --- marks ---
    def _read_marks(self, request: ask.ReadMarks) -> Talk:
        resources = listed(request.resources)
        if not self._is_to_begin:
            answers = yield self.said(SQL.read_marks, resources=resources, claim=request.claim)
            return marks_in(answers)
        hold = "alone unless ours" if request.may_share else "alone"
        answers = yield self.said(SQL.begin, resources=resources, claim=request.claim, hold=hold, limit_s=BRIEF_S)
        self._is_to_begin = False
        check_schema(answers[0])
        return marks_in(answers[1:])

    def _write_marks(self, request: ask.WriteMarks) -> Talk:
        self._unwritten += request.marks
        yield from ()

    def _change_mark(self, request: ask.ChangeMark) -> Talk:
        mark = request.mark
        yield self.said(SQL.write_audit, **request.entry._asdict())
        yield self.said(
            SQL.change_mark,
            resource=mark.resource,
            lock=mark.lock,
            token=mark.token,
            source_id=mark.source_id,
            history_id=mark.history_id,
            claim=mark.claim,
            is_closed=mark.is_closed,
        )

    def _write_audit(self, request: ask.WriteAudit) -> Talk:
        yield self.said(SQL.write_audit, **request.entry._asdict())

    # --- protection, whose DDL runs aside: the open transaction keeps the mark meanwhile ---
    def _protect(self, request: ask.Protect) -> Talk:
        yield self.said(SQL.make_mark, resource=request.resource, lock=request.lock)
        return (yield from _aside(self._protector.protect(request.resource, request.tables, request.mode)))

    def _unprotect(self, request: ask.Unprotect) -> Talk:
        return (yield from _aside(self._protector.unprotect(request.resource, request.tables)))

    def _look(self, request: ask.Look) -> Talk:
        yield SQL.look_without_locks
        found = []
        for look in (SQL.show_marks, SQL.show_triggers, SQL.show_observations):
            found.append((yield self.said(look, resource=request.resource))[0])
        yield SQL.rollback
        marks, triggers, observations = found
        return ask.Seen(
            tuple(marks_in([marks]).values()),
            protections_in(triggers, self._database),
            tuple(_observation(row) for row in observations),
        )

    _TALKS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        **MySQLGuardCodec._TALKS,  # noqa: SLF001 - the base class's own.
        ask.Begin: _begin,
        ask.Commit: _commit,
        ask.Open: _open,
        ask.Finish: _finish,
        ask.ReadMarks: _read_marks,
        ask.WriteMarks: _write_marks,
        ask.ChangeMark: _change_mark,
        ask.WriteAudit: _write_audit,
        ask.Protect: _protect,
        ask.Unprotect: _unprotect,
        ask.Look: _look,
    }


class MySQLCallerCodec(MySQLGuardCodec):
    """Inside the caller's own transaction, which is neither begun nor ended here."""

    def _join(self, _: ask.Join) -> Talk:
        """The marks are held by the statement that reads them next. They are not raised here: whether the transaction
        has a snapshot already, which the last holder's writes are not in, cannot be seen.
        """
        yield from ()
        return False

    def _read_marks(self, request: ask.ReadMarks) -> Talk:
        found: list[Rows] = []
        for resource in sorted(request.resources):
            # One result at a time: there are cursors that know of no second one.
            found += yield self.said(SQL.check_marks, resources=listed((resource,)), claim=request.claim)
        return marks_in(found)

    def _present(self, request: ask.Present) -> Talk:
        answers = yield self.said(SQL.offer, **_offered(request))
        return _others(answers)

    def _withdraw(self, request: ask.Unpresent) -> Talk:
        yield self.said(SQL.take_back, resources=listed(request.resources))

    _TALKS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        **MySQLGuardCodec._TALKS,  # noqa: SLF001 - the base class's own.
        ask.Join: _join,
        ask.ReadMarks: _read_marks,
        ask.Present: _present,
        ask.Unpresent: _withdraw,
    }


def _aside(operations: Generator[str, list[Rows], Any]) -> Talk:
    """Have every statement of a talk run aside."""
    answers: list[Rows] = []
    try:
        statement = next(operations)
        while True:
            answers = yield SeparateConnection(statement)
            statement = operations.send(answers)
    except StopIteration as done:
        return done.value


def check_schema(rows: Rows) -> None:
    """Raise SchemaError unless the database holds the schema that this version speaks to."""
    found = rows[0][0] if rows else None
    if found != SCHEMA_NUMBER:
        raise SchemaError(
            f"the database holds guard schema {found}, and this fencelock knows schema {SCHEMA_NUMBER} only: use the "
            f"version of fencelock that made it, or run `fencelock protect` again if its installation was broken off"
        )


def listed(resources: Iterable[str]) -> str:
    """Return resources as routines take them, in the order of their bytes, in which everybody waits for them."""
    return ",".join(sorted(resource.encode().hex().upper() for resource in resources))


def _offered(request: ask.Open | ask.Present) -> dict[str, Any]:
    proof: Sequencer = request.sequencer
    limit_ms = UNKNOWN_MS if request.limit_ms is None else request.limit_ms
    return {
        "resources": listed(request.resources),
        "lock": proof.lock,
        "token": proof.token,
        "claim": proof.claim,
        "source_id": proof.source_id,
        "history_id": proof.history_id,
        "limit_s": max(1, math.ceil(limit_ms / _MS_PER_S)),
    }


def _others(answers: list[Rows]) -> tuple[str, ...]:
    """Return the resources that were not admitted, if there are any."""
    text = _text(answers[0][0][0]) if answers else ""
    return tuple(bytes.fromhex(one).decode() for one in text.split(",") if one)


def marks_in(results: Iterable[Rows]) -> dict[str, Mark]:
    """Return marks by their resources; a row without a lock is none yet."""
    marks = {}
    for rows in results:
        for resource, lock, token, source_id, history_id, claim, is_closed in rows:
            if lock is not None:
                source, history, shown_claim = map(_text_or_none, (source_id, history_id, claim))
                name = _text(resource)
                marks[name] = Mark(name, _text(lock), int(token), source, history, shown_claim, bool(is_closed))
    return marks


def _observation(row: Row) -> ask.Observation:
    resource, table, kind, times, first_at, last_at, account, program = row
    user, _, host = _text(account).rpartition("@")
    return ask.Observation(
        _text(resource),
        _text(table),
        _text(kind),
        int(times),
        _text(first_at),
        _text(last_at),
        user,
        _text(program),
        host,
    )


def _text(value: Any) -> str:
    """Return a value as text; what an observed program sent that is none is shown by its bytes."""
    return (
        bytes(value).decode(errors="backslashreplace")
        if isinstance(value, (bytes, bytearray, memoryview))
        else str(value)
    )


def _text_or_none(value: Any) -> str | None:
    return None if value is None else _text(value)
