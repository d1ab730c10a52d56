"""Encodes each request to a PostgreSQL source as one statement, and decodes its rows.

Promise: pure, and the same for synchronous and asynchronous connections. Lock names travel as their UTF-8 bytes.
Never decides who holds a lock: the database does, in `functions_lease.sql`.
"""

from functools import partial
from typing import ClassVar, NamedTuple

from fencelock.model import LockInfo, SourceInfo, default_holder, digest_of_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.sql.source import (
    MAX_WAITERS,
    PAGE_LOCKS,
    AcquireAnswer,
    Row,
    Rows,
    SourceCodecBase,
    SourceOperation,
    SourceView,
    decode_renewed,
    lock_info,
    signature_in,
    unknown_lock,
)
from fencelock.stores.statements import statements

SQL = statements(__package__, "source.sql")
HEAD_WAIT_MS = 1000
"""The longest sleep of the head of a queue: covers a notification that was lost with its connection."""
POLL_MS = 100
"""How often a waiter polls behind a pooler, where no notification arrives."""
LOW_TOKENS = 2**25
"""With no more than these left of the 2**26 reserved tokens, a connection reserves more before its first grant."""


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
        """Whether its history is unbroken, with tokens enough for a connection's whole life."""
        return self.is_whole and self.bound - self.last_token > LOW_TOKENS

    def info(self) -> SourceInfo:
        """Return the identity and the counter."""
        return SourceInfo(self.source_id, self.epoch, self.history_id, self.last_token, self.bound)


class PostgresSourceCodec(SourceCodecBase):
    """`channel` is where this process listens; None behind a pooler, where it polls."""

    SQL = SQL

    def __init__(self, view: SourceView, channel: str | None) -> None:
        super().__init__(view)
        self._channel = channel

    def _acquire(self, request: ask.Acquire) -> SourceOperation:
        lock, claim, holder, ttl_ms, born_us, may_wait = request
        mode = "wait" if may_wait else "try"
        return self._decide(lock, claim, holder, ttl_ms, self._view.source_us(born_us), mode)

    def _poll(self, request: ask.Poll) -> SourceOperation:
        return self._decide(request.lock, request.claim, None, None, None, "poll")

    def _decide(self, lock: str, claim: str, *rest: object) -> SourceOperation:
        parameters = (lock.encode(), digest_of_claim(claim), *rest, self._channel, HEAD_WAIT_MS, MAX_WAITERS)
        return SourceOperation(SQL.acquire, parameters, partial(self._decode_answer, lock), clock_column=3)

    def _decode_answer(self, lock: str, rows: Rows) -> ask.SourceReply:
        reply = AcquireAnswer(*rows[0]).reply(lock, MAX_WAITERS)
        if isinstance(reply, ask.Queued) and self._channel is None:
            return ask.Queued(min(reply.wait_ms, POLL_MS))
        return reply

    def _release(self, request: ask.Release) -> SourceOperation:
        parameters = (request.lock.encode(), request.claim, self._asked_us())
        return SourceOperation(SQL.release, parameters, lambda rows: ask.Released(was_held=rows[0][0]), clock_column=1)

    def _renew(self, request: ask.Renew) -> SourceOperation:
        parameters = [lock.encode() for lock, _ in request.leases], [claim for _, claim in request.leases]
        return SourceOperation(SQL.renew, parameters, decode_renewed)

    def _reserve(self, _: ask.ReserveBlock) -> SourceOperation:
        return SourceOperation(SQL.reserve, (default_holder(),), lambda _: None)

    def _raise_epoch(self, request: ask.RaiseEpoch) -> SourceOperation:
        parameters = (request.history_id, self._view.highest_token, default_holder(), request.reason)
        return SourceOperation(SQL.raise_epoch, parameters, lambda rows: SourceInfo(*rows[0]) if rows else None)

    def _break_lease(self, request: ask.Break) -> SourceOperation:
        digest = digest_of_claim(request.claim)
        parameters = (request.lock.encode(), request.lock, digest, request.holder, request.reason)
        return SourceOperation(SQL.break_lease, parameters, _decode_broken)

    def _check(self, request: ask.Check) -> SourceOperation:
        parameters = (request.lock.encode(), request.history_id, request.proof)
        return SourceOperation(SQL.check_proof, parameters, lambda rows: ask.Checked(*(rows[0] if rows else (0, None))))

    def _purge(self, _: ask.Purge) -> SourceOperation:
        return SourceOperation(SQL.purge, (), lambda rows: rows[0][0], clock_column=1)

    def _inspect(self, request: ask.Inspect) -> SourceOperation:
        return SourceOperation(SQL.inspect, (request.lock.encode(),), partial(_decode_lock, request.lock))

    def _list_locks(self, request: ask.ListLocks) -> SourceOperation:
        parameters = ((request.after or "").encode(), PAGE_LOCKS)
        return SourceOperation(SQL.inspect_page, parameters, lambda rows: tuple(map(_lock_info, rows)))

    ENCODERS: ClassVar = {
        **SourceCodecBase.ENCODERS,
        ask.Acquire: _acquire,
        ask.Poll: _poll,
        ask.Release: _release,
        ask.Renew: _renew,
        ask.ReserveBlock: _reserve,
        ask.RaiseEpoch: _raise_epoch,
        ask.Break: _break_lease,
        ask.Purge: _purge,
        ask.Inspect: _inspect,
        ask.Check: _check,
        ask.ListLocks: _list_locks,
    }
    """ReadSource is not here: it is `describe`, with which a connection begins."""


def _decode_broken(rows: Rows) -> ask.SourceReply:
    token, source_id, _, history_id, holder, *signature = rows[0]
    if token is None:
        return ask.BlockSpent()
    return ask.Broken(token, source_id, history_id, holder, signature_in(*signature))


def _decode_lock(lock: str, rows: Rows) -> LockInfo:
    return _lock_info(rows[0]) if rows else unknown_lock(lock)


def _lock_info(row: Row) -> LockInfo:
    return lock_info(row[:5], row[5])
