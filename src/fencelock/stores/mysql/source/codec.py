"""What is said to a MySQL source for each request, and what its answers mean: pure, one statement a request.

Promise: the same for the synchronous and the asynchronous connection. Lock names are sent as the bytes of their UTF-8.
Never: a decision about who holds a lock; those are made in the database, in `source_routines.sql`.
"""

import json
import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from fencelock.errors import SourceError
from fencelock.model import LockInfo, SourceInfo, default_holder
from fencelock.protocol import source_requests as ask
from fencelock.stores.source_clock import Seen
from fencelock.stores.statements import statements

SQL = statements(__package__, "source.sql")
MAX_WAITERS = 10_000
PAGE_LOCKS = 500
SHORT_ANSWER = 4
"""Columns of an answer of the common case."""
GRANTED = "granted"
HELD = "held"
Row = tuple[Any, ...]
Rows = Sequence[Row]


class MySQLOperation(NamedTuple):
    """A statement with its parameters, what its rows mean as a reply, and in which column the source says its clock."""

    statement: str
    parameters: Sequence[Any]
    hear: Callable[[Rows], ask.SourceReply]
    clock_column: int | None = None


class MySQLDescription(NamedTuple):
    """One row of `describe`: the source as a connection finds it."""

    schema: int
    now_us: int
    source_id: str
    epoch: int
    history_id: str
    last_token: int

    def info(self) -> SourceInfo:
        """Return it as people see it: what was issued is what is durable, since each token is flushed by its grant."""
        return SourceInfo(self.source_id, self.epoch, self.history_id, self.last_token, self.last_token)


class MySQLAnswer(NamedTuple):
    """One row of `acquire`. The common case tells nothing of the source: it is the one that was named."""

    outcome: str
    token: int
    time_ms: int
    now_us: int
    source_id: str
    epoch: int
    history_id: str


class MySQLSourceCodec(NamedTuple):
    """Who says it: the source that it knows, the last token that it saw, and its clock as the source's."""

    seen: Seen
    highest_token: int
    source_us: Callable[[int], int]
    now_us: int

    def saying(self, request: Any) -> MySQLOperation:
        """Return what to say for a request of `protocol/source_requests.py`."""
        return _SAYINGS[type(request)](self, request)

    def acquire(self, request: ask.Acquire) -> MySQLOperation:
        """Take the lock or queue for it."""
        mode = "wait" if request.may_wait else "try"
        born_us = self.source_us(request.born_us)
        return self._deciding(request.lock, request.claim, request.holder, request.ttl_ms, born_us, mode)

    def poll(self, request: ask.Poll) -> MySQLOperation:
        """Look whether its turn has come."""
        return self._deciding(request.lock, request.claim, None, None, None, "poll")

    def _deciding(self, lock: str, *claim: Any) -> MySQLOperation:
        parameters = (lock.encode(), *claim, MAX_WAITERS, self.seen.epoch, self.seen.history_id)
        return MySQLOperation(SQL.acquire, parameters, partial(_hear_acquire, lock, self.seen), clock_column=3)

    def release(self, request: ask.Release) -> MySQLOperation:
        """End a claim, which is not younger on the source's clock than this moment."""
        parameters = (request.lock.encode(), request.claim, self.source_us(self.now_us))
        return MySQLOperation(SQL.release, parameters, _hear_release, clock_column=1)

    def renew(self, request: ask.Renew) -> MySQLOperation:
        """Extend a batch, in the order of the locks' names."""
        leases = sorted((lock.encode(), claim) for lock, claim in request.leases)
        return MySQLOperation(SQL.renew, (json.dumps([(name.hex(), claim) for name, claim in leases]),), _hear_renew)

    def raise_epoch(self, request: ask.RaiseEpoch) -> MySQLOperation:
        """Begin a new history."""
        parameters = (request.history_id, draw_id(), self.highest_token, default_holder(), request.reason)
        return MySQLOperation(
            SQL.raise_epoch, parameters, lambda rows: MySQLDescription(*rows[0]).info() if rows else None
        )

    def break_lease(self, request: ask.Break) -> MySQLOperation:
        """End a lease, whoever has it."""
        parameters = (request.lock.encode(), request.claim, request.holder, request.reason)
        return MySQLOperation(SQL.break_lease, parameters, lambda rows: ask.Broken(*rows[0]))

    def purge(self, request: ask.Purge) -> MySQLOperation:
        """Forget what is free."""
        return MySQLOperation(SQL.purge, (), lambda rows: rows[0][0], clock_column=1)

    def inspect(self, request: ask.Inspect) -> MySQLOperation:
        """Look at one lock."""
        return MySQLOperation(SQL.inspect, (request.lock.encode(),), partial(_hear_inspect, request.lock))

    def page(self, request: ask.ListLocks) -> MySQLOperation:
        """Look at the next locks."""
        return MySQLOperation(SQL.inspect_page, ((request.after or "").encode(), PAGE_LOCKS), _hear_page)


_SAYINGS: dict[type, Callable[[MySQLSourceCodec, Any], MySQLOperation]] = {
    ask.Acquire: MySQLSourceCodec.acquire,
    ask.Poll: MySQLSourceCodec.poll,
    ask.Renew: MySQLSourceCodec.renew,
    ask.Release: MySQLSourceCodec.release,
    ask.Break: MySQLSourceCodec.break_lease,
    ask.Purge: MySQLSourceCodec.purge,
    ask.RaiseEpoch: MySQLSourceCodec.raise_epoch,
    ask.Inspect: MySQLSourceCodec.inspect,
    ask.ListLocks: MySQLSourceCodec.page,
}


def draw_id() -> str:
    """Return a new source id or history id."""
    return os.urandom(8).hex()


def answer_of(row: Row, seen: Seen) -> MySQLAnswer:
    """Return one row of `acquire` as what it means to somebody who named the source `seen`."""
    return MySQLAnswer._make((*row, *seen) if len(row) == SHORT_ANSWER else row)


def _hear_acquire(lock: str, seen: Seen, rows: Rows) -> ask.SourceReply:
    answer = answer_of(rows[0], seen)
    outcome = answer.outcome
    if outcome in {GRANTED, HELD}:
        return ask.Granted(answer.token, answer.time_ms, answer.source_id, answer.history_id)
    if outcome == "queued":
        return ask.Queued(answer.time_ms)
    if outcome == "full":
        raise SourceError(f"lock {lock!r} has {MAX_WAITERS} waiters, the most that it may have: try again later")
    return _PLAIN[outcome]


_PLAIN: dict[str, ask.SourceReply] = {"busy": ask.Busy(), "ended": ask.ClaimEnded()}


def _hear_release(rows: Rows) -> ask.Released:
    """Nothing is said of the common case: it held the lock."""
    return ask.Released(was_held=not rows or bool(rows[0][0]))


def _hear_renew(rows: Rows) -> ask.Renewed:
    remaining_ms = {claim: time_ms for claim, time_ms, _ in rows if time_ms is not None}
    return ask.Renewed(remaining_ms, {claim: reason for claim, time_ms, reason in rows if time_ms is None})


def _hear_inspect(lock: str, rows: Rows) -> LockInfo:
    found = _hear_page(rows)
    return found[0] if found else LockInfo(lock, token=None, holder=None, remaining=0.0, ttl=None, waiters=())


def _hear_page(rows: Rows) -> tuple[LockInfo, ...]:
    """Return the locks of rows that repeat each lock for each of its waiters."""
    return tuple(
        LockInfo(
            name.decode(),
            token=token,
            holder=holder if remaining_ms else None,
            remaining=remaining_ms / 1000,
            ttl=ttl_ms / 1000 if remaining_ms else None,
            waiters=tuple(row[5] for row in of_lock if row[5] is not None),
        )
        for (name, token, holder, remaining_ms, ttl_ms), of_lock in groupby(rows, key=lambda row: row[:5])
    )
