"""Who gets the lock: the decisions about one claim and about the queue behind the holder, inside one transaction.

Promise: a claim is granted at most once (H4), in the order of the queue (H7), and never after its queue entry expired
(H8). A granted token is the counter's next. Every decision uses rows, and the clock, read in the same transaction.
The `claim` of a request is the claim's digest here: the connection has hashed it.
Never: an effect outside the caller's transaction, except that the pipe of a dead waiter is removed.
"""

from pathlib import Path
from typing import NamedTuple

from fencelock.errors import SourceError
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.connection.database import Database
from fencelock.stores.sqlite.source import wakeup
from fencelock.stores.sqlite.source.identity import SQL, SQLiteIdentity, missing_source_error

MAX_WAITERS = 10_000
LAST_TICKET = 2**63 - 1
HEAD_WAIT_MS = 1000
"""Longest sleep of the head of a queue; it covers a releaser killed between its commit and its notification."""


class QueueView(NamedTuple):
    """One row of the statement `look`: everything that decides who gets the lock."""

    source_id: str
    epoch: int
    history_id: str
    counter: int
    bound: int
    boot_id: str
    time_namespace: str
    born_after_us: int
    digest: str | None
    holder: str | None
    token: int | None
    ttl_ms: int | None
    deadline_ms: int | None
    ended_digest: str | None
    forgotten_us: int
    now_ms: int
    head: str | None
    is_queued: int

    def remaining_ms(self) -> int:
        """Return the time left of the lease on the lock, at most its ttl."""
        if self.digest is None or self.deadline_ms is None or self.ttl_ms is None:
            return 0
        return min(self.deadline_ms - self.now_ms, self.ttl_ms)

    def may_have_ended(self, digest: str, born_us: int) -> bool:
        """Return whether the claim may have ended before; only a fresh claim may be granted (H4)."""
        return digest == self.ended_digest or born_us <= max(self.forgotten_us, self.born_after_us)


class SQLiteQueue:
    """The decisions of one connection, made inside its transactions."""

    def __init__(self, path: Path, identity: SQLiteIdentity, database: Database) -> None:
        self._path = path
        self._identity = identity
        self._execute = database.execute

    def acquire(self, request: ask.Acquire) -> ask.SourceReply:
        """Grant the lock to a claim, or queue it if it may wait."""
        look = self.look(request.lock, request.claim)
        # A repeated request, whose first reply was lost, finds what that one has done: the lease, or the place.
        if look.digest == request.claim:
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

    def look(self, lock: str, digest: str) -> QueueView:
        """Read everything that decides about this claim; SourceError if the source's history went back."""
        row = self._execute(SQL.look, {"lock": lock, "digest": digest}).fetchone()
        if row is None:
            raise missing_source_error(self._path)
        look = QueueView._make(row)
        self._identity.check_state(look)
        return look

    def next_token(self, look: QueueView, lock: str) -> int | None:
        """Return the token to mint; None if the block is spent; SourceError if the lock's last token is above the
        counter, which only damage can cause.
        """
        if (look.token or 0) > look.counter:
            raise SourceError(
                f"{self._path}: lock {lock!r} had token {look.token}, and the file's counter says {look.counter}: the "
                f"file was changed by hand or is damaged. No lock is granted: run `fencelock epoch --raise --reason …`"
            )
        return look.counter + 1 if look.counter < look.bound else None

    def _granted_before(self, look: QueueView) -> ask.SourceReply:
        """Answer a repeated request of the holder: the same token while its lease runs, never a new one (T3)."""
        remaining_ms = look.remaining_ms()
        if remaining_ms <= 0 or look.token is None:
            return ask.ClaimEnded()
        return ask.Granted(look.token, remaining_ms, look.source_id, look.history_id)

    def _grant(self, look: QueueView, lock: str, digest: str, holder: str, ttl_ms: int) -> ask.SourceReply:
        token = self.next_token(look, lock)
        if token is None:
            return ask.BlockSpent()
        self._execute(
            SQL.grant,
            {
                "lock": lock,
                "token": token,
                "digest": digest,
                "holder": holder,
                "ttl_ms": ttl_ms,
                "now_ms": look.now_ms,
            },
        )
        return ask.Granted(token, ttl_ms, look.source_id, look.history_id)

    # --- wait -------------------------------------------------------------------------------------
    def _enqueue(self, look: QueueView, request: ask.Acquire) -> ask.SourceReply:
        if self._is_queue_full(request.lock):
            self._drop_dead_waiters(look, request.lock, LAST_TICKET)
        if self._is_queue_full(request.lock):
            raise SourceError(
                f"lock {request.lock!r} has {MAX_WAITERS} waiters, the most that it may have: try again later"
            )
        fields = {
            "lock": request.lock,
            "digest": request.claim,
            "holder": request.holder,
            "ttl_ms": request.ttl_ms,
        }
        self._execute(SQL.enqueue, {**fields, "now_ms": look.now_ms})
        return self._decide_poll(look, request.lock, request.claim)

    def _is_queue_full(self, lock: str) -> bool:
        return self._execute(SQL.is_queue_full, {"lock": lock, "limit": MAX_WAITERS}).fetchone() is not None

    def poll(self, request: ask.Poll) -> ask.SourceReply:
        """Grant the lock to a waiting claim, if its turn has come."""
        look = self.look(request.lock, request.claim)
        if look.digest == request.claim:
            return self._granted_before(look)
        return self._decide_poll(look, request.lock, request.claim)

    def _decide_poll(self, look: QueueView, lock: str, digest: str) -> ask.SourceReply:
        waiter = self._execute(SQL.read_waiter, {"lock": lock, "digest": digest}).fetchone()
        if waiter is None:
            return ask.ClaimEnded()
        ticket, holder, ttl_ms, kept_until_ms = waiter
        is_head = look.head in (digest, None)
        # All entries before the head are dead, so this reads no living one: its cost does not grow with the queue.
        if (is_head or kept_until_ms <= look.now_ms) and digest in self._drop_dead_waiters(look, lock, ticket):
            return ask.ClaimEnded()
        if is_head and look.remaining_ms() <= 0:
            reply = self._grant(look, lock, digest, holder, ttl_ms)
            if isinstance(reply, ask.Granted):
                self._execute(SQL.leave_queue, {"digest": digest})
            return reply
        self._execute(SQL.refresh_waiter, {"ticket": ticket, "now_ms": look.now_ms})
        if is_head:
            return ask.Queued(min(look.remaining_ms(), HEAD_WAIT_MS, ttl_ms // 3))
        predecessor = self._execute(
            SQL.read_predecessor_deadline, {"lock": lock, "ticket": ticket, "now_ms": look.now_ms}
        ).fetchone()
        # Once the entry before it has expired, this waiter may be the next, and nobody notifies it of that.
        sleep_ms = predecessor[0] - look.now_ms if predecessor else HEAD_WAIT_MS
        return ask.Queued(min(sleep_ms, ttl_ms // 3))

    def _drop_dead_waiters(self, look: QueueView, lock: str, ticket: int) -> list[str]:
        up_to = {"lock": lock, "ticket": ticket, "now_ms": look.now_ms}
        dead = [digest for (digest,) in self._execute(SQL.drop_dead_waiters, up_to).fetchall()]
        for digest in dead:
            self.remember_ended(lock, digest)
            wakeup.remove(self._path, digest)
        return dead

    def remember_ended(self, lock: str, digest: str) -> None:
        """Record that this claim is over, so that it is never granted."""
        if not self._execute(SQL.remember_ended, {"lock": lock, "digest": digest}).rowcount:
            # A lock that was never taken has no row for it: the source refuses all claims born until now.
            self._execute(SQL.refuse_older_claims)
