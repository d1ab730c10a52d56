"""What is said to a PostgreSQL source for each request, and what its answers mean: pure, one statement a request.

Promise: the same for the synchronous and the asynchronous connection. Lock names are sent as the bytes of their UTF-8.
Never: a decision about who holds a lock; those are made in the database, in `source_functions.sql`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from fenceline._flows import requests as ask
from fenceline.errors import SourceError
from fenceline.model import LockInfo, SourceInfo, default_holder
from fenceline.stores.statements import statements

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


class Saying(NamedTuple):
    """A statement with its parameters, what its rows mean as a reply, and in which column the source says its clock."""

    statement: str
    parameters: Sequence[Any]
    hear: Callable[[Rows], ask.SourceReply]
    clock_column: int | None = None


class Described(NamedTuple):
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


class Answer(NamedTuple):
    """One row of `acquire`."""

    outcome: str
    token: int | None
    time_ms: int | None
    now_us: int
    source_id: str
    epoch: int
    history_id: str


class Speaker(NamedTuple):
    """Who says it: where the process listens (None: it does not), the last token that it saw, and its clock as the
    source's.
    """

    channel: str | None
    highest_token: int
    source_us: Callable[[int], int]
    now_us: int

    def saying(self, request: Any) -> Saying:
        """Return what to say for a request of `_flows/requests.py`."""
        return _SAYINGS[type(request)](self, request)

    def acquire(self, request: ask.Acquire) -> Saying:
        """Take the lock or queue for it."""
        mode = "wait" if request.may_wait else "try"
        born_us = self.source_us(request.born_us)
        return self._deciding(request.lock, request.claim, request.holder, request.ttl_ms, born_us, mode)

    def poll(self, request: ask.Poll) -> Saying:
        """Look whether its turn has come."""
        return self._deciding(request.lock, request.claim, None, None, None, "poll")

    def _deciding(self, lock: str, *claim: Any) -> Saying:
        parameters = (lock.encode(), *claim, self.channel, HEAD_WAIT_MS, MAX_WAITERS)
        return Saying(SQL.acquire, parameters, partial(_hear_acquire, lock, self.channel is not None), clock_column=3)

    def release(self, request: ask.Release) -> Saying:
        """End a claim, which is not younger on the source's clock than this moment."""
        parameters = (request.lock.encode(), request.claim, self.source_us(self.now_us))
        return Saying(SQL.release, parameters, lambda rows: ask.Released(was_held=rows[0][0]), clock_column=1)

    def renew(self, request: ask.Renew) -> Saying:
        """Extend a batch."""
        locks = [lock.encode() for lock, _ in request.leases]
        return Saying(SQL.renew, (locks, [claim for _, claim in request.leases]), _hear_renew)

    def reserve(self, request: ask.ReserveBlock) -> Saying:
        """Reserve tokens."""
        return Saying(SQL.reserve, (default_holder(),), lambda _: None)

    def raise_epoch(self, request: ask.RaiseEpoch) -> Saying:
        """Begin a new history."""
        parameters = (request.history_id, self.highest_token, default_holder(), request.reason)
        return Saying(SQL.raise_epoch, parameters, lambda rows: SourceInfo(*rows[0]) if rows else None)

    def break_lease(self, request: ask.Break) -> Saying:
        """End a lease, whoever has it."""
        parameters = (request.lock.encode(), request.lock, request.claim, request.holder, request.reason)
        return Saying(SQL.break_lease, parameters, _hear_break)

    def purge(self, request: ask.Purge) -> Saying:
        """Forget what is free."""
        return Saying(SQL.purge, (), lambda rows: rows[0][0], clock_column=1)

    def inspect(self, request: ask.Inspect) -> Saying:
        """Look at one lock."""
        return Saying(SQL.inspect, (request.lock.encode(),), partial(_hear_inspect, request.lock))

    def page(self, request: ask.ListLocks) -> Saying:
        """Look at the next locks."""
        parameters = ((request.after or "").encode(), PAGE_LOCKS)
        return Saying(SQL.inspect_page, parameters, lambda rows: tuple(map(_lock_info, rows)))


_SAYINGS: dict[type, Callable[[Speaker, Any], Saying]] = {
    ask.Acquire: Speaker.acquire,
    ask.Poll: Speaker.poll,
    ask.Renew: Speaker.renew,
    ask.Release: Speaker.release,
    ask.ReserveBlock: Speaker.reserve,
    ask.Break: Speaker.break_lease,
    ask.Purge: Speaker.purge,
    ask.RaiseEpoch: Speaker.raise_epoch,
    ask.Inspect: Speaker.inspect,
    ask.ListLocks: Speaker.page,
}


def _hear_acquire(lock: str, is_told: bool, rows: Rows) -> ask.SourceReply:
    answer = Answer._make(rows[0])
    outcome = answer.outcome
    if outcome in {GRANTED, HELD} and answer.token is not None and answer.time_ms is not None:
        return ask.Granted(answer.token, answer.time_ms, answer.source_id, answer.history_id)
    if outcome == "queued" and answer.time_ms is not None:
        return ask.Queued(answer.time_ms if is_told else min(answer.time_ms, POLL_MS))
    if outcome == "full":
        raise SourceError(f"lock {lock!r} has {MAX_WAITERS} waiters, the most that it may have: try again later")
    return _PLAIN[outcome]


_PLAIN: dict[str, ask.SourceReply] = {"busy": ask.Busy(), "ended": ask.ClaimEnded(), SPENT: ask.BlockSpent()}


def _hear_renew(rows: Rows) -> ask.Renewed:
    remaining_ms = {claim: time_ms for claim, time_ms, _ in rows if time_ms is not None}
    return ask.Renewed(remaining_ms, {claim: reason for claim, _, reason in rows if reason is not None})


def _hear_break(rows: Rows) -> ask.SourceReply:
    token, source_id, _, history_id, holder = rows[0]
    return ask.BlockSpent() if token is None else ask.Broken(token, source_id, history_id, holder)


def _hear_inspect(lock: str, rows: Rows) -> LockInfo:
    if not rows:
        return LockInfo(lock, token=None, holder=None, remaining=0.0, ttl=None, waiters=())
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
