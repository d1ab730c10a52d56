"""The source of tokens in one SQLite file: one transaction to acquire, one to release.

Promise: a token is minted in the transaction that decides the holder, from a block that was reserved durably before
(T1); who holds the lock need not survive a power cut, so grants are not flushed. Every decision is made on
CLOCK_BOOTTIME, read under the file's write lock (H1). A file that another kernel uses, that is a copy, or whose
counter went back is refused.
Never: a busy loop; a token given to two claims; a claim granted twice (H4).

Limits: all processes must run on one kernel. A process that is frozen inside a write transaction (tens of microseconds)
holds the whole file, take-over included; the others get SourceUnavailableError.
"""

import json
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple

from fenceline._flows import requests as ask
from fenceline.clock import HAS_BOOTTIME, boottime_ns
from fenceline.errors import SourceError, UnsupportedError
from fenceline.model import MAX_TOKEN, Finding
from fenceline.stores.contract import Capabilities
from fenceline.stores.sqlite import inspection, wake
from fenceline.stores.sqlite.database import BUSY_PATIENCE_S, Database, path_of
from fenceline.stores.sqlite.identity import (
    SQL,
    AuditEntry,
    Identity,
    Seen,
    ensure_schema,
    lost_source,
    read_source,
    write_audit,
)
from fenceline.stores.sqlite.kernel import this_kernel

BLOCK_TOKENS = 4096
"""Tokens reserved by one flushed transaction, and the most that an unclean start can skip."""
MAX_WAITERS = 10_000
REPLACED_CHECK_S = 0.05
"""How often a connection looks whether the file at its path is still the one that it has open: a look costs a tenth
of a grant."""
_NEVER = -1
HEAD_WAIT_MS = 1000
"""How long the head of a queue sleeps at most: covers a releaser killed between its commit and its bell."""


class Look(NamedTuple):
    """One row of `look`: all that decides who gets the lock."""

    source_id: str
    epoch: int
    history_id: str
    counter: int
    bound: int
    boot_id: str
    time_namespace: str
    born_after_us: int
    claim: str | None
    holder: str | None
    token: int | None
    ttl_ms: int | None
    deadline_ms: int | None
    ended_claim: str | None
    forgotten_us: int
    now_ms: int
    head: str | None
    is_queued: int

    def remaining_ms(self) -> int:
        """Return the time left to the lease on the lock; a time left greater than its ttl counts as the ttl."""
        if self.claim is None or self.deadline_ms is None or self.ttl_ms is None:
            return 0
        return min(self.deadline_ms - self.now_ms, self.ttl_ms)

    def may_have_ended(self, claim: str, born_us: int) -> bool:
        """Tell whether the claim may be one that ended before: then only a fresh one may be granted (H4)."""
        return claim == self.ended_claim or born_us <= max(self.forgotten_us, self.born_after_us)


class SQLiteSource:
    """A source of tokens in one file. Making it opens nothing."""

    capabilities = Capabilities(ttl_min_ms=100, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=True)

    def __init__(self, url: str) -> None:
        self.url = url
        self.path = path_of(url)
        self.identity = Identity(self.path)

    def connect(self, *, patience_s: float = BUSY_PATIENCE_S) -> "SQLiteSourceConnection":
        """Return a connection; the file is opened, and its schema made if it has none, by the first request."""
        if not HAS_BOOTTIME:
            raise UnsupportedError(
                "a SQLite source needs CLOCK_BOOTTIME, which this system does not have: run it on Linux, or use "
                "a server store"
            )
        return SQLiteSourceConnection(self, patience_s)

    def listen(self, lock: str, claim: str) -> wake.Bell:
        """Open the bell of one waiting claim."""
        return wake.Bell(self.path, claim)

    def install(self) -> None:
        """Make the file and its schema if there is none."""
        connection = self.connect()
        try:
            connection.perform(ask.ReadSource())
        finally:
            connection.close()

    def examine(self) -> list[Finding]:
        """Return what in this file's set-up would break the promise."""
        return inspection.examine(self)


class SQLiteSourceConnection:
    """Answers requests, each in one transaction."""

    def __init__(self, store: SQLiteSource, patience_s: float) -> None:
        self._path = store.path
        self._identity = store.identity
        self._checked_opening = _NEVER
        self._look_again_s = 0.0
        self._told: deque[Any] = deque(maxlen=1)
        self.database = Database(store.path, prepare=partial(prepare, self._told), patience_s=patience_s)
        self._execute = self.database.execute

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `_flows/requests.py` in one transaction."""
        now_s = time.monotonic()
        if now_s >= self._look_again_s:
            self.database.drop_if_replaced()
            self._look_again_s = now_s + REPLACED_CHECK_S
        if self._checked_opening != self.database.opening:
            self._check_file(is_operator=type(request) in _OPERATORS)
        try:
            return self._ANSWERS[type(request)](self, request)
        except TypeError as error:
            # A value that is not of its column's type: a mistake of ours, unless the file is damaged.
            self.database.check_whole(error)
            raise

    def _check_file(self, *, is_operator: bool) -> None:
        """Make sure of schema and identity; an operator may look at, and adopt, a file that is refused to everybody
        else.
        """
        self._identity.check_not_gone()
        ensure_schema(self.database)
        if not is_operator:
            self._identity.settle(self.database)
            self._checked_opening = self.database.opening or _NEVER

    def close(self) -> None:
        """Close the connection; never raises."""
        self.database.close()

    # --- acquire ----------------------------------------------------------------------------------
    def _acquire(self, request: ask.Acquire) -> ask.SourceReply:
        seen = self._identity.seen
        reply: ask.SourceReply = None if seen is None else self._grant_if_free(request, seen)
        if reply is None:
            reply = self.database.transact(lambda: self._decide_acquire(request))
        return self._identity.remembering(reply)

    def _grant_if_free(self, request: ask.Acquire, seen: Seen) -> ask.Granted | None:
        lock, claim, holder, ttl_ms, born_us, _ = request
        boot_id, time_namespace, _ = this_kernel()
        row = (claim, holder, ttl_ms, ttl_ms, lock, born_us, claim)
        source = (seen.history_id, seen.counter, boot_id, time_namespace, born_us)
        if not self.database.change(SQL.grant_if_free, row + source):
            return None
        return ask.Granted(self._told.pop(), ttl_ms, seen.source_id, seen.history_id)

    def _decide_acquire(self, request: ask.Acquire) -> ask.SourceReply:
        look = self._look(request.lock, request.claim)
        if look.claim == request.claim:
            return self._granted_before(look)
        if look.is_queued:
            return self._decide_poll(look, request.lock, request.claim)
        if look.may_have_ended(request.claim, request.born_us):
            return ask.ClaimEnded()
        if look.remaining_ms() <= 0 and look.head is None:
            return self._grant(look, request.lock, request.claim, request.holder, request.ttl_ms)
        if not request.may_wait:
            return ask.Busy()
        return self._enqueue(look, request)

    def _look(self, lock: str, claim: str) -> Look:
        row = self._execute(SQL.look, {"lock": lock, "claim": claim}).fetchone()
        if row is None:
            raise lost_source(self._path)
        look = Look._make(row)
        self._identity.check_unmoved(look)
        return look

    def _next_token(self, look: Look, lock: str) -> int | None:
        """Return the token to mint, None when the block is spent; SourceError if the lock's last token is above the
        counter, as nothing but damage can make it.
        """
        if (look.token or 0) > look.counter:
            raise SourceError(
                f"{self._path}: lock {lock!r} had token {look.token}, and the file's counter says {look.counter}: the "
                f"file was changed by hand or is damaged. No lock is granted: run `fenceline epoch --raise --reason …`"
            )
        return look.counter + 1 if look.counter < look.bound else None

    def _granted_before(self, look: Look) -> ask.SourceReply:
        """Answer a repeated request of the holder: the same token while its lease runs, never a fresh one (T3)."""
        remaining_ms = look.remaining_ms()
        if remaining_ms <= 0 or look.token is None:
            return ask.ClaimEnded()
        return ask.Granted(look.token, remaining_ms, look.source_id, look.history_id)

    def _grant(self, look: Look, lock: str, claim: str, holder: str, ttl_ms: int) -> ask.SourceReply:
        token = self._next_token(look, lock)
        if token is None:
            return ask.BlockSpent()
        self._execute(
            SQL.grant,
            {
                "lock": lock,
                "token": token,
                "claim": claim,
                "holder": holder,
                "ttl_ms": ttl_ms,
                "now_ms": look.now_ms,
            },
        )
        return ask.Granted(token, ttl_ms, look.source_id, look.history_id)

    # --- wait -------------------------------------------------------------------------------------
    def _enqueue(self, look: Look, request: ask.Acquire) -> ask.SourceReply:
        if self._is_queue_full(request.lock):
            self._drop_dead_waiters(look, request.lock)
        if self._is_queue_full(request.lock):
            raise SourceError(
                f"lock {request.lock!r} has {MAX_WAITERS} waiters, the most that it may have: try again later"
            )
        fields = {
            "lock": request.lock,
            "claim": request.claim,
            "holder": request.holder,
            "ttl_ms": request.ttl_ms,
        }
        self._execute(SQL.enqueue, {**fields, "now_ms": look.now_ms})
        return self._decide_poll(look, request.lock, request.claim)

    def _is_queue_full(self, lock: str) -> bool:
        return self._execute(SQL.is_queue_full, {"lock": lock, "limit": MAX_WAITERS}).fetchone() is not None

    def _poll(self, request: ask.Poll) -> ask.SourceReply:
        def decide() -> ask.SourceReply:
            look = self._look(request.lock, request.claim)
            if look.claim == request.claim:
                return self._granted_before(look)
            return self._decide_poll(look, request.lock, request.claim)

        return self._identity.remembering(self.database.transact(decide))

    def _decide_poll(self, look: Look, lock: str, claim: str) -> ask.SourceReply:
        self._drop_dead_waiters(look, lock)
        waiter = self._execute(SQL.read_waiter, {"lock": lock, "claim": claim}).fetchone()
        if waiter is None:
            return ask.ClaimEnded()
        ticket, holder, ttl_ms, _ = waiter
        is_head = look.head in (claim, None)
        if is_head and look.remaining_ms() <= 0:
            reply = self._grant(look, lock, claim, holder, ttl_ms)
            if isinstance(reply, ask.Granted):
                self._execute(SQL.leave_queue, {"claim": claim})
            return reply
        self._execute(SQL.refresh_waiter, {"ticket": ticket, "now_ms": look.now_ms})
        if is_head:
            return ask.Queued(min(look.remaining_ms(), HEAD_WAIT_MS, ttl_ms // 3))
        predecessor = self._execute(
            SQL.read_predecessor_deadline, {"lock": lock, "ticket": ticket, "now_ms": look.now_ms}
        ).fetchone()
        patience_ms = predecessor[0] - look.now_ms if predecessor else HEAD_WAIT_MS
        return ask.Queued(min(patience_ms, ttl_ms // 3))

    def _drop_dead_waiters(self, look: Look, lock: str) -> None:
        for (claim,) in self._execute(SQL.drop_dead_waiters, {"lock": lock, "now_ms": look.now_ms}).fetchall():
            self._remember_ended(lock, claim)
            wake.remove(self._path, claim)

    def _remember_ended(self, lock: str, claim: str) -> None:
        if not self._execute(SQL.remember_ended, {"lock": lock, "claim": claim}).rowcount:
            # A lock that was never taken has no row to remember it in.
            self._execute(SQL.refuse_older_claims)

    # --- keep and end -----------------------------------------------------------------------------
    def _renew(self, request: ask.Renew) -> ask.SourceReply:
        return self.database.transact(lambda: self._decide_renew(request))

    def _decide_renew(self, request: ask.Renew) -> ask.Renewed:
        self._identity.check_unmoved(read_source(self.database))
        leases = {claim: lock for lock, claim in request.leases}
        renewed = dict(self._execute(SQL.renew, {"leases": json.dumps(leases)}).fetchall())
        not_renewed = leases.keys() - renewed if len(renewed) < len(leases) else ()
        return ask.Renewed(renewed, {claim: self._why_lost(leases[claim], claim) for claim in not_renewed})

    def _why_lost(self, lock: str, claim: str) -> str:
        row = self._execute(SQL.read_lock, {"lock": lock}).fetchone()
        if row is None:
            return "the source knows nothing of it any more"
        token, current, holder, ended = row
        if current == claim:
            return "it expired at the source before it was renewed"
        if current is not None:
            return f"{holder} holds the lock now, with token {token}"
        return ended or "it ended at the source"

    def _release(self, request: ask.Release) -> ask.SourceReply:
        if self.database.change(SQL.end_lease, (request.lock, request.claim)):
            was_held, head = True, self._told.pop()
        else:
            was_held, head = self.database.transact(lambda: self._end_idle_claim(request))
        if head is not None:
            wake.ring(self._path, head)
        return ask.Released(was_held)

    def _end_idle_claim(self, request: ask.Release) -> tuple[bool, str | None]:
        """End a claim that did not hold the lock: one that waits, that ended before, or that has not arrived yet.

        Looks once more first: an acquire that was cancelled may still be under way, and be granted at this moment.
        """
        self._identity.check_unmoved(read_source(self.database))
        if self._execute(SQL.end_lease, (request.lock, request.claim)).rowcount:
            return True, self._told.pop()
        fields = {"lock": request.lock, "claim": request.claim}
        self._execute(SQL.leave_queue, fields)
        self._remember_ended(**fields)
        head = self._execute(SQL.read_head, fields).fetchone()
        return False, head[0] if head else None

    # --- operators --------------------------------------------------------------------------------
    def _reserve_block(self, request: ask.ReserveBlock) -> ask.SourceReply:
        def reserve() -> int:
            row = read_source(self.database)
            self._identity.check_unmoved(row)
            counter = row.counter
            if counter >= MAX_TOKEN:
                raise SourceError(f"{self._path} has issued token {counter}, the last one there is: make a new source")
            reserved = min(counter + BLOCK_TOKENS, MAX_TOKEN)
            self._execute(SQL.reserve_block, {"reserved": reserved})
            return reserved

        flushed = self.database.transact_flushed(reserve)
        # Only now: whoever sees the bound, after whatever became of this process, may rely on it.
        self.database.run(SQL.raise_bound, {"reserved": flushed})
        return None

    def _break(self, request: ask.Break) -> ask.SourceReply:
        reply, head = self.database.transact(lambda: self._decide_break(request))
        if head is not None:
            wake.ring(self._path, head)
        return reply

    def _decide_break(self, request: ask.Break) -> tuple[ask.SourceReply, str | None]:
        look = self._look(request.lock, request.claim)
        done = self._execute(SQL.read_break, {"claim": request.claim}).fetchone()
        if done is not None:
            return ask.Broken(done[0], look.source_id, look.history_id, done[1]), look.head
        token = self._next_token(look, request.lock)
        if token is None:
            return ask.BlockSpent(), None
        holder = look.holder if look.remaining_ms() > 0 else None
        ended = f"{request.holder} broke it: {request.reason}"
        self._execute(SQL.break_lease, {"lock": request.lock, "token": token, "ended": ended})
        who, lock, claim = request.holder, request.lock, request.claim
        write_audit(self.database, AuditEntry(who, "break", lock, token, request.reason, holder, claim))
        return ask.Broken(token, look.source_id, look.history_id, holder), look.head

    def _purge(self, request: ask.Purge) -> ask.SourceReply:
        def purge() -> int:
            self._identity.check_unmoved(read_source(self.database))
            self._execute(SQL.end_expired_leases)
            self._execute(SQL.refuse_older_claims)
            for (claim,) in self._execute(SQL.drop_every_dead_waiter).fetchall():
                wake.remove(self._path, claim)
            return self._execute(SQL.purge).rowcount

        return self.database.transact(purge)

    def _raise_epoch(self, request: ask.RaiseEpoch) -> ask.SourceReply:
        return self._identity.raise_epoch(self.database, request)

    def _read_source(self, request: ask.ReadSource) -> ask.SourceReply:
        return inspection.source_info(self.database)

    def _inspect(self, request: ask.Inspect) -> ask.SourceReply:
        return inspection.lock_info(self.database, request.lock)

    def _list(self, request: ask.ListLocks) -> ask.SourceReply:
        return inspection.page(self.database, request.after)

    _ANSWERS: ClassVar[dict[type, Callable[[Any, Any], ask.SourceReply]]] = {
        ask.Acquire: _acquire,
        ask.Poll: _poll,
        ask.Renew: _renew,
        ask.Release: _release,
        ask.ReserveBlock: _reserve_block,
        ask.Break: _break,
        ask.Purge: _purge,
        ask.RaiseEpoch: _raise_epoch,
        ask.ReadSource: _read_source,
        ask.Inspect: _inspect,
        ask.ListLocks: _list,
    }


_OPERATORS = {ask.RaiseEpoch, ask.ReadSource, ask.Inspect, ask.ListLocks}
"""Requests that an operator may make of a file which is refused as a copy, or as another kernel's."""


def prepare(told: deque[Any], native: Any) -> None:
    """Give a connection the functions that the statements use; what a statement tells is put into `told`.

    Neither function has a frame of Python's: see `fenceline.clock` for what a signal handler would do there.
    """
    native.create_function("fenceline_now_ns", 0, boottime_ns)
    native.create_function("fenceline_tell", 1, told.append)
    native.execute("PRAGMA synchronous = NORMAL")
