"""Encodes each request to a MySQL source as one statement, and decodes its rows.

Promise: pure, and the same for synchronous and asynchronous connections. Lock names travel as their UTF-8 bytes.
Never decides who holds a lock: the database does, in `routines_lease.sql`.
"""

import json
import os
from functools import partial
from itertools import groupby
from typing import ClassVar, NamedTuple

from fencelock.model import LockInfo, SourceInfo, default_holder, digest_of_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.mysql.connection.masks import mask
from fencelock.stores.source_clock import SourceState
from fencelock.stores.sql.source import (
    GRANTED,
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
SHORT_ANSWERS = (2, 4)
"""The columns of `acquire` in its common case, unsigned and signed: nothing that the caller has named."""


class MySQLDescription(NamedTuple):
    """One row of `describe`: the source as a connection finds it."""

    schema: int
    now_us: int
    source_id: str
    epoch: int
    history_id: str
    last_token: int
    mask_key: str

    def info(self) -> SourceInfo:
        """Return the identity and the counter: each grant flushes its own token, so the bound is the last token."""
        return SourceInfo(self.source_id, self.epoch, self.history_id, self.last_token, self.last_token)


class MySQLSourceCodec(SourceCodecBase):
    """The operations of one connection, which names the source that it knows in each of them.

    Where a claim begins, the server is sent its digest. Where a claim or a proof is used, it is masked with the
    session's key, which the greeting has returned.
    """

    SQL = SQL

    def __init__(self, view: SourceView, mask_key: str) -> None:
        super().__init__(view)
        self._mask_key = mask_key

    def _mask(self, secret: str) -> str:
        return mask(self._mask_key, secret)

    @property
    def _seen(self) -> SourceState:
        assert self._view.seen is not None, "a connection greets first"
        return self._view.seen

    def _acquire(self, request: ask.Acquire) -> SourceOperation:
        mode = "wait" if request.may_wait else "try"
        born_us = self._view.source_us(request.born_us)
        return self._decide(request.lock, request.claim, request.holder, request.ttl_ms, born_us, mode)

    def _poll(self, request: ask.Poll) -> SourceOperation:
        return self._decide(request.lock, request.claim, None, None, None, "poll")

    def _decide(
        self, lock: str, claim: str, holder: str | None, ttl_ms: int | None, *details: object
    ) -> SourceOperation:
        parameters = (
            *(lock.encode(), digest_of_claim(claim), holder, ttl_ms, *details),
            *(MAX_WAITERS, self._seen.epoch, self._seen.history_id),
        )
        return SourceOperation(SQL.acquire, parameters, partial(self._decode_answer, lock, ttl_ms or 0), clock_column=1)

    def _decode_answer(self, lock: str, ttl_ms: int, rows: Rows) -> ask.SourceReply:
        return answer_of(rows[0], self._seen, ttl_ms).reply(lock, MAX_WAITERS)

    def _release(self, request: ask.Release) -> SourceOperation:
        parameters = (request.lock.encode(), self._mask(request.claim), self._asked_us())
        return SourceOperation(SQL.release, parameters, _decode_released, clock_column=1)

    def _renew(self, request: ask.Renew) -> SourceOperation:
        # In the order of the locks' names, so that two batches do not deadlock.
        leases = sorted((lock.encode(), claim) for lock, claim in request.leases)
        asked = [(name.hex(), self._mask(claim)) for name, claim in leases]
        claims = {masked: claim for (_, masked), (_, claim) in zip(asked, leases, strict=True)}
        return SourceOperation(
            SQL.renew,
            (json.dumps(asked),),
            lambda rows: decode_renewed([(claims[masked], *answer) for masked, *answer in rows]),
        )

    def _raise_epoch(self, request: ask.RaiseEpoch) -> SourceOperation:
        parameters = (request.history_id, draw_id(), self._view.highest_token, default_holder(), request.reason)
        return SourceOperation(
            SQL.raise_epoch, parameters, lambda rows: MySQLDescription(*rows[0]).info() if rows else None
        )

    def _break_lease(self, request: ask.Break) -> SourceOperation:
        parameters = (request.lock.encode(), digest_of_claim(request.claim), request.holder, request.reason)
        return SourceOperation(SQL.break_lease, parameters, _decode_broken)

    def _check(self, request: ask.Check) -> SourceOperation:
        parameters = (request.lock.encode(), request.history_id, self._mask(request.proof))
        return SourceOperation(SQL.check_proof, parameters, lambda rows: ask.Checked(*(rows[0] if rows else (0, None))))

    def _purge(self, _: ask.Purge) -> SourceOperation:
        return SourceOperation(SQL.purge, (), lambda rows: rows[0][0], clock_column=1)

    def _inspect(self, request: ask.Inspect) -> SourceOperation:
        return SourceOperation(SQL.inspect, (request.lock.encode(),), partial(_decode_lock, request.lock))

    def _list_locks(self, request: ask.ListLocks) -> SourceOperation:
        return SourceOperation(SQL.inspect_page, ((request.after or "").encode(), PAGE_LOCKS), _decode_page)

    ENCODERS: ClassVar = {
        **SourceCodecBase.ENCODERS,
        ask.Acquire: _acquire,
        ask.Poll: _poll,
        ask.Release: _release,
        ask.Renew: _renew,
        ask.RaiseEpoch: _raise_epoch,
        ask.Break: _break_lease,
        ask.Check: _check,
        ask.Purge: _purge,
        ask.Inspect: _inspect,
        ask.ListLocks: _list_locks,
    }
    """ReadSource is not here: it is `describe`. Nor is ReserveBlock: each grant reserves its own token."""


def draw_id() -> str:
    """Return a new source id or history id."""
    return os.urandom(8).hex()


def answer_of(row: Row, seen: SourceState, ttl_ms: int = 0) -> AcquireAnswer:
    """Return one row of `acquire`, completed with the ttl and the source that the caller named if the row is short."""
    token, now_us, *rest = row
    if len(row) in SHORT_ANSWERS:
        return AcquireAnswer(GRANTED, token, ttl_ms, now_us, *seen, *rest)
    outcome, time_ms, *source = rest
    return AcquireAnswer(outcome, token, time_ms, now_us, *source)


def _decode_released(rows: Rows) -> ask.Released:
    # The common case, that the claim held the lock, returns no row.
    return ask.Released(was_held=not rows or bool(rows[0][0]))


def _decode_broken(rows: Rows) -> ask.Broken:
    token, source_id, history_id, holder, *signature = rows[0]
    return ask.Broken(token, source_id, history_id, holder, signature_in(*signature))


def _decode_lock(lock: str, rows: Rows) -> LockInfo:
    found = _decode_page(rows)
    return found[0] if found else unknown_lock(lock)


def _decode_page(rows: Rows) -> tuple[LockInfo, ...]:
    """Return the locks of rows that repeat each lock for each of its waiters."""
    return tuple(
        lock_info(lock, (row[5] for row in of_lock if row[5] is not None))
        for lock, of_lock in groupby(rows, key=lambda row: row[:5])
    )
