"""What is said to a PostgreSQL source for each request, and what its answers mean: pure, one statement a request.

Promise: the same for the synchronous and the asynchronous connection. Lock names are sent as the bytes of their UTF-8.
Never: a decision about who holds a lock; those are made in the database, in `source_functions.sql`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fencelock.errors import SourceError
from fencelock.model import LockInfo, SourceInfo, default_holder
from fencelock.protocol import source_requests as ask
from fencelock.stores.statements import statements

SQL = statements(__package__, "source.sql")
MAX_WAITERS = 10_000
HEAD_WAIT_MS = 1000
"""How long the head of a queue sleeps at most: covers a notification that was lost with its connection."""
POLL_MS = 100
"""How often a waiter looks where nothing is told, behind a pooler."""
PAGE_LOCKS = 500
LOW_TOKENS = 2**25
"""With no more left of the 2**26 that were reserved, a connection reserves more before it is granted anything."""
GRANTED = "granted"
HELD = "held"
SPENT = "spent"
Row = tuple[Any, ...]
Rows = Sequence[Row]


class PostgresDescription(NamedTuple):
    """One row of `describe`: the source as a connection finds it."""

    schema: int
    is_whole: bool
    now_us: int
    source_id: str
    epoch: int
    history_id: str
    last_token: int
    bound: int

    @property
    def may_grant(self) -> bool:
        """Whether its history goes on unbroken, with tokens enough for a connection's whole life."""
        return self.is_whole and self.bound - self.last_token > LOW_TOKENS

    def info(self) -> SourceInfo:
        """Return it as people see it."""
        return SourceInfo(self.source_id, self.epoch, self.history_id, self.last_token, self.bound)


class PostgresSourceCodec(NamedTuple):
    """Who says it: where the process listens (None: it does not), the last token that it saw, and its clock as the
    source's.
    """

    channel: str | None
    highest_token: int
    source_us: Callable[[int], int]
    now_us: Callable[[], int]


class PostgresOperation(NamedTuple):
    """How a request is said: by which statement, with which parameters, what its rows mean as a reply, and in which
    column the source says its clock.
    """

    statement: str
    parameters: Callable[[PostgresSourceCodec, Any], Row]
    hear: Callable[[PostgresSourceCodec, Any, Rows], ask.SourceReply]
    clock_column: int | None = None


def _say_acquire(speaker: PostgresSourceCodec, request: ask.Acquire) -> Row:
    lock, claim, holder, ttl_ms, born_us, may_wait = request
    mode = "wait" if may_wait else "try"
    born_us = speaker.source_us(born_us)
    return lock.encode(), claim, holder, ttl_ms, born_us, mode, speaker.channel, HEAD_WAIT_MS, MAX_WAITERS


def _say_poll(speaker: PostgresSourceCodec, request: ask.Poll) -> Row:
    lock, claim = request
    return lock.encode(), claim, None, None, None, "poll", speaker.channel, HEAD_WAIT_MS, MAX_WAITERS


def _hear_acquire(speaker: PostgresSourceCodec, request: ask.Acquire | ask.Poll, rows: Rows) -> ask.SourceReply:
    outcome, token, time_ms, _, source_id, _, history_id = rows[0]
    if outcome in {GRANTED, HELD}:
        return ask.Granted(token, time_ms, source_id, history_id)
    if outcome == "queued":
        return ask.Queued(time_ms if speaker.channel is not None else min(time_ms, POLL_MS))
    if outcome == "full":
        raise SourceError(
            f"lock {request.lock!r} has {MAX_WAITERS} waiters, the most that it may have: try again later"
        )
    return _PLAIN[outcome]


_PLAIN: dict[str, ask.SourceReply] = {"busy": ask.Busy(), "ended": ask.ClaimEnded(), SPENT: ask.BlockSpent()}


def _say_release(speaker: PostgresSourceCodec, request: ask.Release) -> Row:
    """End a claim, which is not younger on the source's clock than this moment."""
    return request.lock.encode(), request.claim, speaker.source_us(speaker.now_us())


def _say_renew(_: PostgresSourceCodec, request: ask.Renew) -> Row:
    return [lock.encode() for lock, _ in request.leases], [claim for _, claim in request.leases]


def _hear_renew(_: PostgresSourceCodec, __: ask.Renew, rows: Rows) -> ask.Renewed:
    remaining_ms = {claim: time_ms for claim, time_ms, _ in rows if time_ms is not None}
    return ask.Renewed(remaining_ms, {claim: reason for claim, _, reason in rows if reason is not None})


def _say_break(_: PostgresSourceCodec, request: ask.Break) -> Row:
    return request.lock.encode(), request.lock, request.claim, request.holder, request.reason


def _hear_break(_: PostgresSourceCodec, __: ask.Break, rows: Rows) -> ask.SourceReply:
    token, source_id, _, history_id, holder = rows[0]
    return ask.BlockSpent() if token is None else ask.Broken(token, source_id, history_id, holder)


def _hear_inspect(_: PostgresSourceCodec, request: ask.Inspect, rows: Rows) -> LockInfo:
    if not rows:
        return LockInfo(request.lock, token=None, holder=None, remaining=0.0, ttl=None, waiters=())
    return _lock_info(rows[0])


def _lock_info(row: Row) -> LockInfo:
    name, token, holder, remaining_ms, ttl_ms, waiters = row
    return LockInfo(
        bytes(name).decode(),
        token=token,
        holder=holder if remaining_ms else None,
        remaining=remaining_ms / 1000,
        ttl=ttl_ms / 1000 if remaining_ms else None,
        waiters=tuple(waiters),
    )


FORMS: dict[type, PostgresOperation] = {
    ask.Acquire: PostgresOperation(SQL.acquire, _say_acquire, _hear_acquire, clock_column=3),
    ask.Poll: PostgresOperation(SQL.acquire, _say_poll, _hear_acquire, clock_column=3),
    ask.Release: PostgresOperation(
        SQL.release, _say_release, lambda _, __, rows: ask.Released(was_held=rows[0][0]), clock_column=1
    ),
    ask.Renew: PostgresOperation(SQL.renew, _say_renew, _hear_renew),
    ask.ReserveBlock: PostgresOperation(SQL.reserve, lambda _, __: (default_holder(),), lambda _, __, ___: None),
    ask.RaiseEpoch: PostgresOperation(
        SQL.raise_epoch,
        lambda speaker, request: (request.history_id, speaker.highest_token, default_holder(), request.reason),
        lambda _, __, rows: SourceInfo(*rows[0]) if rows else None,
    ),
    ask.Break: PostgresOperation(SQL.break_lease, _say_break, _hear_break),
    ask.Purge: PostgresOperation(SQL.purge, lambda _, __: (), lambda _, __, rows: rows[0][0], clock_column=1),
    ask.Inspect: PostgresOperation(SQL.inspect, lambda _, request: (request.lock.encode(),), _hear_inspect),
    ask.ListLocks: PostgresOperation(
        SQL.inspect_page,
        lambda _, request: ((request.after or "").encode(), PAGE_LOCKS),
        lambda _, __, rows: tuple(map(_lock_info, rows)),
    ),
}
"""How each source request is encoded; ReadSource is `describe`, with which a connection begins."""
