"""What a source of tokens decides, as plain values: the smallest implementation that keeps every rule.

Promise: `answer` takes a request and the time, changes the state and returns the reply, in one step; equal states give
equal replies. A token above the bound is never issued, a claim is granted at most once, and a waiter whose queue entry
has expired is not granted. The state has digests of claims, never a claim or a proof (G12). The memory store adds a
mutex, the simulator adds a network and crashes.
Never: I/O, a clock of its own, or a random draw.
"""

from typing import Any, ClassVar, NamedTuple

from fencelock.errors import SourceError
from fencelock.model import EPOCH_STRIDE, MAX_TOKEN, LockInfo, SourceInfo, one_way
from fencelock.protocol import source_requests as ask
from fencelock.stores.hashed_claims import hash_claims, restore_claims

BLOCK_TOKENS = 1000
"""Tokens reserved at once, and the most that an unclean start can skip."""
MAX_WAITERS = 10_000
MAX_ENDED_CLAIMS = 1000
"""Ended claims that are remembered one by one; older claims are refused by the time of their birth (H4)."""
MAX_BREAKS = 1000
"""Breaks that are remembered, so that a repeated request breaks no later holder's lease."""
HEAD_WAIT_MS = 1000
PAGE_LOCKS = 500
_US_PER_MS = 1000


class LockRow(NamedTuple):
    """A lock that was taken at least once; without a digest it is free. The deadline is on the source's clock."""

    token: int
    digest: str | None
    holder: str | None
    ttl_ms: int
    deadline_ms: int
    ended: str | None = None

    def remaining_ms(self, now_ms: int) -> int:
        """Return the lease's time left, at most its ttl (H1)."""
        return 0 if self.digest is None else max(0, min(self.deadline_ms - now_ms, self.ttl_ms))


class Waiter(NamedTuple):
    """An entry in a queue, valid until the deadline."""

    holder: str
    ttl_ms: int
    deadline_ms: int


Queue = dict[str, Waiter]
"""The waiters of one lock by their digests, in order of arrival."""


class ReferenceModel:
    """A source's whole state."""

    def __init__(self, source_id: str, history_id: str, *, block_tokens: int = BLOCK_TOKENS) -> None:
        self.source_id = source_id
        self.history_id = history_id
        self.epoch = 1
        self.counter = 0
        self.bound = 0
        self.locks: dict[str, LockRow] = {}
        self.queues: dict[str, Queue] = {}
        self.ended_us: dict[str, int] = {}
        self.breaks: dict[str, ask.Broken] = {}
        self.refuse_born_until_us = 0
        self._block_tokens = block_tokens

    def answer(self, request: Any, now_us: int) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`, whose claim becomes its digest for the methods below."""
        reply: ask.SourceReply = getattr(self, self.ANSWERS[type(request)])(hash_claims(request), now_us)
        return restore_claims(request, reply) if isinstance(reply, ask.Renewed) else reply

    def copy(self) -> "ReferenceModel":
        """Return an independent copy."""
        twin = type(self)(self.source_id, self.history_id, block_tokens=self._block_tokens)
        vars(twin).update(vars(self))
        twin.locks = dict(self.locks)
        twin.queues = {lock: dict(queue) for lock, queue in self.queues.items()}
        twin.ended_us = dict(self.ended_us)
        twin.breaks = dict(self.breaks)
        return twin

    def head(self, lock: str, now_ms: int) -> str | None:
        """Return the digest of the claim whose turn it is: the first waiter whose entry has not expired."""
        queue = self.queues.get(lock, {})
        return next((digest for digest, waiter in queue.items() if waiter.deadline_ms > now_ms), None)

    # --- acquire and wait ---------------------------------------------------------------------------------------------
    def _acquire(self, request: ask.Acquire, now_us: int) -> ask.SourceReply:
        now_ms = now_us // _US_PER_MS
        row = self.locks.get(request.lock)
        if row is not None and row.digest == request.claim:
            return self._granted_before(row, now_ms)
        if request.claim in self.queues.get(request.lock, ()):
            return self._take_turn(request.lock, request.claim, now_us)
        if self.is_over(request.claim, request.born_us):
            return ask.ClaimEnded()
        if self._is_free(request.lock, now_ms) and self.head(request.lock, now_ms) is None:
            return self._grant(request.lock, request.claim, request.holder, request.ttl_ms, now_us)
        return self._enqueue(request, now_us) if request.may_wait else ask.Busy()

    def is_over(self, digest: str, born_us: int) -> bool:
        """Return whether the claim has ended, or is so old that it may have (H4)."""
        return digest in self.ended_us or born_us <= self.refuse_born_until_us

    def _is_free(self, lock: str, now_ms: int) -> bool:
        row = self.locks.get(lock)
        return row is None or row.remaining_ms(now_ms) == 0

    def _granted_before(self, row: LockRow, now_ms: int) -> ask.SourceReply:
        remaining_ms = row.remaining_ms(now_ms)
        if not remaining_ms:
            return ask.ClaimEnded()
        return ask.Granted(row.token, remaining_ms, self.source_id, self.history_id)

    def _grant(self, lock: str, digest: str, holder: str, ttl_ms: int, now_us: int) -> ask.SourceReply:
        if self.counter >= self.bound:
            return ask.BlockSpent()
        before = self.locks.get(lock)
        if before is not None and before.digest is not None:
            self.remember_ended(before.digest, now_us)
        self.counter += 1
        self.locks[lock] = LockRow(self.counter, digest, holder, ttl_ms, now_us // _US_PER_MS + ttl_ms)
        return ask.Granted(self.counter, ttl_ms, self.source_id, self.history_id)

    def _enqueue(self, request: ask.Acquire, now_us: int) -> ask.SourceReply:
        queue = self.queues.setdefault(request.lock, {})
        if len(queue) >= MAX_WAITERS:
            raise SourceError(f"lock {request.lock!r} has {MAX_WAITERS} waiters, the most that it may have")
        queue[request.claim] = Waiter(request.holder, request.ttl_ms, now_us // _US_PER_MS + request.ttl_ms)
        return self._take_turn(request.lock, request.claim, now_us)

    def _poll(self, request: ask.Poll, now_us: int) -> ask.SourceReply:
        row = self.locks.get(request.lock)
        if row is not None and row.digest == request.claim:
            return self._granted_before(row, now_us // _US_PER_MS)
        return self._take_turn(request.lock, request.claim, now_us)

    def _take_turn(self, lock: str, digest: str, now_us: int) -> ask.SourceReply:
        """Grant the lock to a waiter whose turn it is, or refresh its entry and return how long to sleep."""
        now_ms = now_us // _US_PER_MS
        self._drop_dead_waiters(lock, now_us)
        queue = self.queues.get(lock, {})
        waiter = queue.get(digest)
        if waiter is None:
            return ask.ClaimEnded()
        is_head = self.head(lock, now_ms) == digest
        if is_head and self._is_free(lock, now_ms):
            reply = self._grant(lock, digest, waiter.holder, waiter.ttl_ms, now_us)
            if isinstance(reply, ask.Granted):
                self._leave_queue(lock, digest)
            return reply
        queue[digest] = waiter._replace(deadline_ms=now_ms + waiter.ttl_ms)
        if is_head:
            return ask.Queued(min(self.locks[lock].remaining_ms(now_ms), HEAD_WAIT_MS, waiter.ttl_ms // 3))
        digests = list(queue)
        predecessor = queue[digests[digests.index(digest) - 1]]
        return ask.Queued(min(predecessor.deadline_ms - now_ms, waiter.ttl_ms // 3))

    def _drop_dead_waiters(self, lock: str, now_us: int) -> None:
        queue = self.queues.get(lock, {})
        for digest in [digest for digest, waiter in queue.items() if waiter.deadline_ms <= now_us // _US_PER_MS]:
            self._leave_queue(lock, digest)
            self.remember_ended(digest, now_us)

    def _leave_queue(self, lock: str, digest: str) -> None:
        queue = self.queues.get(lock, {})
        queue.pop(digest, None)
        if not queue:
            self.queues.pop(lock, None)

    # --- keep and end -------------------------------------------------------------------------------------------------
    def _renew(self, request: ask.Renew, now_us: int) -> ask.SourceReply:
        renewed, lost = {}, {}
        for lock, digest in request.leases:
            row = self.locks.get(lock)
            if row is not None and row.digest == digest and row.remaining_ms(now_us // _US_PER_MS):
                self.locks[lock] = row._replace(deadline_ms=now_us // _US_PER_MS + row.ttl_ms)
                renewed[digest] = row.ttl_ms
            else:
                lost[digest] = self._why_lost(row, digest)
        return ask.Renewed(renewed, lost)

    def _why_lost(self, row: LockRow | None, digest: str) -> str:
        if row is None:
            return "the source no longer knows the lock"
        if row.digest == digest:
            return "it expired at the source before it was renewed"
        if row.digest is not None:
            return f"{row.holder} holds the lock now, with token {row.token}"
        return row.ended or "it ended at the source"

    def _release(self, request: ask.Release, now_us: int) -> ask.SourceReply:
        row = self.locks.get(request.lock)
        was_held = False
        if row is not None and row.digest == request.claim:
            was_held = row.remaining_ms(now_us // _US_PER_MS) > 0
            self._free(request.lock, row, "it was released", now_us)
        self._leave_queue(request.lock, request.claim)
        self.remember_ended(request.claim, now_us)
        return ask.Released(was_held)

    def _free(self, lock: str, row: LockRow, ended: str, now_us: int) -> None:
        if row.digest is not None:
            self.remember_ended(row.digest, now_us)
            self.locks[lock] = row._replace(digest=None, holder=None, deadline_ms=0, ended=ended)

    def remember_ended(self, digest: str, now_us: int) -> None:
        """Refuse the claim with this digest from now on."""
        self.ended_us.setdefault(digest, now_us)
        while len(self.ended_us) > MAX_ENDED_CLAIMS:
            oldest = next(iter(self.ended_us))
            self.refuse_born_until_us = max(self.refuse_born_until_us, self.ended_us.pop(oldest))

    # --- operators ----------------------------------------------------------------------------------------------------
    def _reserve_block(self, request: ask.ReserveBlock, now_us: int) -> ask.SourceReply:
        if self.counter >= MAX_TOKEN:
            raise SourceError(f"the source has issued token {self.counter}, the last one there is: make a new source")
        self.bound = max(self.bound, min(self.counter + self._block_tokens, MAX_TOKEN))
        return None

    def _break(self, request: ask.Break, now_us: int) -> ask.SourceReply:
        if request.claim in self.breaks:
            return self.breaks[request.claim]
        if self.counter >= self.bound:
            return ask.BlockSpent()
        row = self.locks.get(request.lock)
        holder = row.holder if row is not None and row.remaining_ms(now_us // _US_PER_MS) else None
        self.counter += 1
        if row is not None:
            self._free(request.lock, row, "", now_us)
        ended = f"{request.holder} broke it: {request.reason}"
        self.locks[request.lock] = LockRow(self.counter, None, None, 0, 0, ended)
        self.breaks[request.claim] = broken = ask.Broken(self.counter, self.source_id, self.history_id, holder)
        if len(self.breaks) > MAX_BREAKS:
            del self.breaks[next(iter(self.breaks))]
        return broken

    def _purge(self, request: ask.Purge, now_us: int) -> ask.SourceReply:
        now_ms = now_us // _US_PER_MS
        idle = [lock for lock in self.locks if self._is_free(lock, now_ms) and self.head(lock, now_ms) is None]
        for lock in idle:
            self._free(lock, self.locks[lock], "it expired", now_us)
            del self.locks[lock]
        return len(idle)

    def _read_source(self, request: ask.ReadSource, now_us: int) -> ask.SourceReply:
        return SourceInfo(self.source_id, self.epoch, self.history_id, self.counter, self.bound)

    def _raise_epoch(self, request: ask.RaiseEpoch, now_us: int) -> ask.SourceReply:
        if request.history_id != self.history_id:
            return None
        counter = (max(self.bound, self.counter) // EPOCH_STRIDE + 1) * EPOCH_STRIDE
        if counter >= MAX_TOKEN:
            raise SourceError(f"no token is left above epoch {self.epoch}: make a new source")
        self.epoch += 1
        # Derived from the old id, so that equal states stay equal; the id only has to differ.
        self.history_id = f"{request.history_id.partition('-')[0]}-{self.epoch}"
        self.bound = counter
        self.start_again(now_us, "the source's epoch was raised: " + request.reason)
        return self._read_source(ask.ReadSource(), now_us)

    def start_again(self, now_us: int, ended: str) -> None:
        """Start after an unclean stop: skip to the bound (T1), and end all leases and waits."""
        self.counter = self.bound
        self.queues.clear()
        self.refuse_born_until_us = now_us
        for lock, row in list(self.locks.items()):
            self._free(lock, row, ended, now_us)

    # --- inspection ---------------------------------------------------------------------------------------------------
    def _inspect(self, request: ask.Inspect, now_us: int) -> ask.SourceReply:
        return self._info(request.lock, now_us // _US_PER_MS)

    def _check(self, request: ask.Check, now_us: int) -> ask.SourceReply:
        row = self.locks.get(request.lock)
        if row is None:
            return ask.Checked(0, None)
        is_its = row.digest == one_way(request.proof) and request.history_id == self.history_id
        return ask.Checked(row.remaining_ms(now_us // _US_PER_MS) if is_its else 0, row.token)

    def _list(self, request: ask.ListLocks, now_us: int) -> ask.SourceReply:
        names = sorted(name for name in self.locks if name > (request.after or ""))
        return tuple(self._info(name, now_us // _US_PER_MS) for name in names[:PAGE_LOCKS])

    def _info(self, lock: str, now_ms: int) -> LockInfo:
        row = self.locks.get(lock)
        waiters = (waiter for waiter in self.queues.get(lock, {}).values() if waiter.deadline_ms > now_ms)
        holders = tuple(waiter.holder for waiter in waiters)
        if row is None or not (remaining_ms := row.remaining_ms(now_ms)):
            return LockInfo(lock, row.token if row else None, None, 0.0, None, holders)
        return LockInfo(lock, row.token, row.holder, remaining_ms / 1000, row.ttl_ms / 1000, holders)

    ANSWERS: ClassVar[dict[type, str]] = {
        ask.Acquire: "_acquire",
        ask.Poll: "_poll",
        ask.ReserveBlock: "_reserve_block",
        ask.Renew: "_renew",
        ask.Release: "_release",
        ask.Inspect: "_inspect",
        ask.Check: "_check",
        ask.ListLocks: "_list",
        ask.Break: "_break",
        ask.Purge: "_purge",
        ask.ReadSource: "_read_source",
        ask.RaiseEpoch: "_raise_epoch",
    }
