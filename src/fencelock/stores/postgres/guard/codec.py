"""What is said to a PostgreSQL guard for each request, and what its answers mean: pure.

Promise: the same for synchronous and asynchronous connections, and for the guard's own and the caller's. A talk
yields statements that go in one round trip, is sent their answers, and returns the reply. Statements whose answer
nobody needs wait for the next trip: a seal takes two, opening a guarded transaction takes one, ending it one. Never: a
decision about a token.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, ClassVar

from psycopg.errors import (  # PostgreSQL's SyntaxError, not Python's.
    InvalidName,
    InvalidSqlStatementName,
    SerializationFailure,
    SyntaxError,  # noqa: A004
)

from fencelock.errors import GuardError, SchemaError
from fencelock.model import Mark, Protection, Sequencer
from fencelock.protocol import guard_requests as ask
from fencelock.stores.errors import not_protected, nothing_protected
from fencelock.stores.postgres.connection.wire import PostgresAnswer, Row, Statement
from fencelock.stores.statements import statements

SQL = statements(__package__, "guard.sql")
SCHEMA_NUMBER = 1
BRIEF_MS = 5_000
"""How long the guard's own transaction may be idle: whoever is frozen inside it must not keep others from the marks."""
WAITING_MS = 50_000
"""How long the guard's own transaction waits for a mark: less than the patience of its connections, so that the session
does not go on waiting when its client has gone.
"""
UNKNOWN_MS = 30_000
"""How long a guarded transaction may be idle whose lease is somewhere else: as long as a lease is by default."""
MAX_OPENS = 5
"""Attempts to begin on a snapshot that no seal has overtaken meanwhile."""
OF_EACH_BLOCK = (SQL.offer, SQL.confirm)
"""Statements that are worth preparing, the one that opens a block first."""
_WHICH_SCHEMA = Statement(SQL.read_schema_number)
Talk = Generator[Sequence[Statement], list[PostgresAnswer], Any]


class PostgresGuardCodec:
    """What both kinds of connection say alike."""

    def operations(self, request: Any) -> Talk:
        """Return the talk for a request."""
        return self._TALKS[type(request)](self, request)  # type: ignore[no-any-return]

    def _read_protections(self, request: ask.ReadProtections) -> Talk:
        answers = yield (Statement(SQL.read_protections, (request.resource,)),)
        return tuple(Protection(*row) for row in answers[-1].rows)

    def _record_refusal(self, request: ask.RecordRefusal) -> Talk:
        yield (Statement(SQL.record_refusal, (request.resource, request.kind)),)

    _TALKS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        ask.ReadProtections: _read_protections,
        ask.RecordRefusal: _record_refusal,
    }


class PostgresBlockCodec(PostgresGuardCodec):
    """Over the guard's own connection, which begins and ends its transactions."""

    def __init__(self) -> None:
        self._unsent: list[Statement] = []
        self._is_brief = False

    def forget(self) -> None:
        """Leave unsaid what was to be said: the transaction is over."""
        self._unsent = []
        self._is_brief = False

    def _now(self, *more: Statement) -> tuple[Statement, ...]:
        """Return what was to be said, and this."""
        unsent, self._unsent = self._unsent, []
        return (*unsent, *more)

    # --- transactions ---
    def _begin(self, _: ask.Begin) -> Talk:
        self._unsent = [Statement(SQL.begin_briefly), _WHICH_SCHEMA, Statement(SQL.limit_waiting, (WAITING_MS,))]
        self._is_brief = True
        yield from ()

    def _commit(self, _: ask.Commit) -> Talk:
        self._is_brief = False
        yield self._now(Statement(SQL.commit))

    def _open(self, request: ask.Open) -> Talk:
        offer = _offer(request.resources, request.sequencer, _limit_ms(request))
        for tries_left in reversed(range(MAX_OPENS)):
            try:
                answers = yield (Statement(SQL.begin), offer)
            except (SerializationFailure, InvalidSqlStatementName):
                # At REPEATABLE READ and SERIALIZABLE a seal came between the snapshot and the look at the mark; or the
                # block before has thrown away what was prepared.
                if not tries_left:
                    raise
                yield (Statement(SQL.rollback),)
            else:
                return _others(request.resources, answers[-1])
        raise AssertionError("the loop ends by its return or its raise")

    def _finish(self, request: ask.Finish) -> Talk:
        # One speaks for all: they were presented together, and the end of the transaction takes them away together.
        confirm = [Statement(SQL.confirm, (resource,)) for resource in request.resources[:1]]
        try:
            answers = yield (*confirm, Statement(SQL.commit))
        except InvalidSqlStatementName as error:
            raise GuardError(
                "the guarded block has thrown away the session's prepared statements (DEALLOCATE ALL), the guard's own "
                "among them, so its end could not be confirmed: nothing of it was written. Name those of your own"
            ) from error
        if answers[-1].tag != "COMMIT":
            raise failed_inside()

    # --- marks ---
    def _read_marks(self, request: ask.ReadMarks) -> Talk:
        limit_ms = BRIEF_MS if self._is_brief else None
        hold = _hold(request, is_alone=self._is_brief)
        parameters = (ordered(request.resources), request.claim, hold, limit_ms)
        answers = yield self._now(Statement(SQL.read_marks, parameters))
        if self._is_brief:
            _check_schema(answers[1])
        return marks_in(answers[-1].rows)

    def _write_marks(self, request: ask.WriteMarks) -> Talk:
        self._unsent += written(request.marks)
        yield from ()

    def _change_mark(self, request: ask.ChangeMark) -> Talk:
        self._unsent.append(Statement(SQL.change_mark, (*_columns(request.mark), *_entry(request.entry))))
        yield from ()

    def _write_audit(self, request: ask.WriteAudit) -> Talk:
        self._unsent.append(Statement(SQL.write_audit, _entry(request.entry)))
        yield from ()

    # --- protection ---
    def _protect(self, request: ask.Protect) -> Talk:
        tables = yield from self._tables(request.tables)
        making = [Statement(SQL.make_mark, (request.resource, request.lock.encode()))]
        making += [Statement(SQL.protect_table, (table, request.resource, request.mode)) for table in tables]
        answers = yield self._now(*making)
        rows = [answer.rows[0] for answer in answers[-len(tables) :]]
        changed = [Protection(name, request.resource, mode) for mode, name in rows if mode not in (None, request.mode)]
        return ask.Protected(tuple(changed))

    def _unprotect(self, request: ask.Unprotect) -> Talk:
        wanted = yield from self._tables(request.tables)
        answers = yield self._now(Statement(SQL.read_protected, (request.resource,)))
        known = {table: Protection(name, request.resource, mode) for table, name, mode in answers[-1].rows}
        if not known:
            raise nothing_protected(request.resource)
        for table, name in wanted.items():
            if table not in known:
                raise not_protected(name, request.resource)
        chosen = {table: known[table] for table in wanted or known}
        yield self._now(*(Statement(SQL.unprotect_table, (table,)) for table in chosen))
        return tuple(chosen.values())

    def _tables(self, names: Sequence[str]) -> Generator[Sequence[Statement], list[PostgresAnswer], dict[int, str]]:
        """Find the tables that the names mean to this session."""
        if not names:
            return {}
        try:
            answers = yield self._now(Statement(SQL.find_tables, (list(names),)))
        except (InvalidName, SyntaxError) as error:
            raise _no_table(" or ".join(map(repr, names))) from error
        found = {}
        for name, table in answers[-1].rows:
            if table is None:
                raise _no_table(repr(name))
            found[table] = name
        return found

    def _look(self, request: ask.Look) -> Talk:
        wanted = (request.resource,)
        looks = (SQL.show_marks, SQL.read_protections, SQL.show_observations)
        answers = yield (_WHICH_SCHEMA, *(Statement(look, wanted) for look in looks))
        _check_schema(answers[0])
        marks, protections, observations = (answer.rows for answer in answers[-len(looks) :])
        return ask.Seen(
            tuple(marks_in(marks).values()),
            tuple(Protection(*row) for row in protections),
            tuple(ask.Observation(*row) for row in observations),
        )

    _TALKS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        **PostgresGuardCodec._TALKS,  # noqa: SLF001 - the base class's own.
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


class PostgresCallerCodec(PostgresGuardCodec):
    """Inside the caller's own transaction, which is neither begun nor ended here."""

    def __init__(self) -> None:
        self._is_alone = False
        self._limit_ms: int | None = None

    def _join(self, request: ask.Join) -> Talk:
        """The marks are held by the statement that reads them next."""
        self._limit_ms = _limit_ms(request)
        if request.is_to_raise:
            answers = yield (Statement(SQL.isolation),)
            self._is_alone = answers[-1].rows[0][0] in ("read committed", "read uncommitted")
        return self._is_alone

    def _read_marks(self, request: ask.ReadMarks) -> Talk:
        hold = _hold(request, is_alone=self._is_alone)
        parameters = (ordered(request.resources), request.claim, hold, self._limit_ms)
        answers = yield (Statement(SQL.read_marks, parameters),)
        return marks_in(answers[-1].rows)

    def _write_marks(self, request: ask.WriteMarks) -> Talk:
        yield tuple(written(request.marks))

    def _present(self, request: ask.Present) -> Talk:
        answers = yield (_offer(request.resources, request.sequencer, _limit_ms(request)),)
        return _others(request.resources, answers[-1])

    def _withdraw(self, request: ask.Unpresent) -> Talk:
        if request.resources:
            yield (Statement(SQL.withdraw, (ordered(request.resources),)),)

    _TALKS: ClassVar[dict[type, Callable[[Any, Any], Any]]] = {
        **PostgresGuardCodec._TALKS,  # noqa: SLF001 - the base class's own.
        ask.Join: _join,
        ask.ReadMarks: _read_marks,
        ask.WriteMarks: _write_marks,
        ask.Present: _present,
        ask.Unpresent: _withdraw,
    }


def failed_inside() -> GuardError:
    """Return the error for a block whose transaction had failed before its end."""
    return GuardError(
        "a statement of the guarded block failed and its error was caught, but PostgreSQL had ended the transaction "
        "with it: nothing of the block was written. What may fail goes into `with connection.transaction():`"
    )


def _no_table(named: str) -> GuardError:
    return GuardError(
        f"there is no table {named} in this database: write it as SQL does, schema.table, with quotes if the name "
        f"needs them; create it first, then protect it"
    )


def _check_schema(answer: PostgresAnswer) -> None:
    """Raise SchemaError unless the database holds the schema that this version speaks to."""
    found = answer.rows[0][0] if answer.rows else None
    if found != SCHEMA_NUMBER:
        raise SchemaError(
            f"the database holds guard schema {found}, and this fencelock knows schema {SCHEMA_NUMBER} only: use the "
            f"version of fencelock that made it"
        )


def ordered(resources: Iterable[str]) -> list[str]:
    """Return the resources in the order of their bytes, in which everybody waits for them."""
    return sorted(resources)


def _hold(request: ask.ReadMarks, *, is_alone: bool) -> str:
    """Return how the marks are to be held: together with all who present them, or alone, to be written."""
    if not is_alone:
        return "shared"
    return "alone unless ours" if request.may_share else "alone"


def _limit_ms(request: ask.Open | ask.Join | ask.Present) -> int:
    return UNKNOWN_MS if request.limit_ms is None else max(1, request.limit_ms)


def _offer(resources: Iterable[str], sequencer: Sequencer, limit_ms: int) -> Statement:
    proof = (sequencer.token, sequencer.claim, sequencer.source_id, sequencer.history_id)
    return Statement(SQL.offer, (ordered(resources), sequencer.lock.encode(), *proof, limit_ms))


def _others(resources: Iterable[str], answer: PostgresAnswer) -> tuple[str, ...]:
    """Return the resources that `offer` did not admit."""
    offered = ordered(resources)
    return tuple(offered[place - 1] for place in answer.rows[0][0])


def marks_in(rows: Iterable[Row]) -> dict[str, Mark]:
    """Return marks by their resources."""
    return {
        resource: Mark(resource, bytes(lock).decode(), token, source_id, history_id, claim, is_closed)
        for resource, lock, token, source_id, history_id, claim, is_closed in rows
    }


def written(marks: Iterable[Mark]) -> list[Statement]:
    """Return the statements that write marks, in the order in which everybody waits for them."""
    return [Statement(SQL.write_mark, _columns(mark)) for mark in sorted(marks, key=lambda mark: mark.resource)]


def _columns(mark: Mark) -> Row:
    identity = (mark.source_id, mark.history_id, mark.claim, mark.is_closed)
    return (mark.resource, mark.lock.encode(), mark.token, *identity)


def _entry(entry: ask.AuditEntry) -> Row:
    return (entry.who, entry.action, entry.resource, entry.from_token, entry.to_token, entry.reason)
