"""Checks the rules on every history, from an observer's view, never from a store's own state.

Promise: the oracle judges each observation in the step in which it is made, by the observations before it, and raises
a `Violation` that names the broken rule. After a history was broken on purpose and until an operator raises the epoch,
the oracle suspends the source's rules (`is_tainted`), but not the guards' rules.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple, Protocol

from fencelock._flows.acquire import margin_ms
from fencelock.model import Mark
from fencelock.protocol import source_requests as ask
from fencelock_lab.simulator.kernel import Violation

Write = tuple[str, int]
"""An increment: its claim and its number."""


class Belief(Protocol):
    """A lease as its holder sees it."""

    lock: str
    claim: str
    ttl_ms: int
    deadline_ms: int

    def is_believed(self, now_ms: int) -> bool:
        """Return whether the holder relies on the lease at this moment."""


class Tenancy(NamedTuple):
    """The claim that holds a lock at the source, and the deadline of its lease unless it is renewed."""

    claim: str
    deadline_ms: int


class SourceOracle:
    """Checks a source's replies and its clients' conclusions: T1, T3, T4, H1, H4, H5, H7, H8."""

    def __init__(self, beliefs: Callable[[], Iterable[Belief]]) -> None:
        self.is_tainted = False
        self.excused: set[str] = set()
        self.doubtful: set[str] = set()
        """Claims whose tokens a source may have issued twice, because it went back unnoticed."""
        self.last_token = 0
        self.grants = 0
        self._beliefs = beliefs
        self._tokens: dict[str, int] = {}
        self._ttls: dict[str, int] = {}
        self._ended: set[str] = set()
        self._held: dict[str, Tenancy] = {}
        self._queues: dict[str, dict[str, int]] = {}
        self._given_up: set[str] = set()
        self._doubled: set[str] = set()

    def saw(self, request: Any, reply: Any, now_ms: int) -> None:
        """Judge one reply."""
        if isinstance(request, ask.Acquire):
            self._ttls[request.claim] = request.ttl_ms
        if self.is_tainted:
            if isinstance(reply, ask.Granted | ask.Broken):
                self._tokens.setdefault(request.claim, reply.token)
                self.doubtful.add(request.claim)
                self.excused.add(request.claim)
            return
        judge = self._JUDGES.get(type(reply))
        if judge is not None:
            getattr(self, judge)(request, reply, now_ms)

    def relied_on(self, belief: Belief) -> None:
        """Check a holder's new deadline: it lies a margin before the source's, independently of the reply's arrival."""
        tenancy = self._held.get(belief.lock)
        if tenancy is None or tenancy.claim != belief.claim or self.is_tainted:
            return  # The lease has ended at the source; the next grant shows whether its holder notices in time.
        late_ms = belief.deadline_ms + margin_ms(belief.ttl_ms) - tenancy.deadline_ms
        if late_ms > 0:
            raise Violation(f"H1: claim {belief.claim} is relied on for {late_ms} ms longer than the source allows")

    def gave_up(self, claim: str) -> None:
        """Note that a client learned that it does not get the lock and forgot this claim."""
        self._given_up.add(claim)

    def doubled(self, request: Any) -> None:
        """Note that the network duplicated a request; no client can know that a copy may still be in flight."""
        if isinstance(request, ask.Acquire):
            self._doubled.add(request.claim)

    def everything_ended(self) -> None:
        """Note that every lease ended, by data loss or an operator; holders learn of it at their next renewal."""
        for claim in (*self._tokens, *(claim for queue in self._queues.values() for claim in queue)):
            self._ended.add(claim)
            self.excused.add(claim)
        self._held.clear()
        self._queues.clear()

    def regressed(self) -> None:
        """Note that the source was restored; until its epoch is raised it may issue tokens twice."""
        self.doubtful.update(self._tokens)
        self.everything_ended()
        self.is_tainted = True

    # --- grants -------------------------------------------------------------------------------------------------------
    def _granted(self, request: Any, reply: ask.Granted, now_ms: int) -> None:
        lock, claim = request.lock, request.claim
        if claim in self._ended:
            raise Violation(f"H4: claim {claim} had ended, and was granted token {reply.token}")
        if claim in self._given_up - self._doubled:
            raise Violation(f"H5: claim {claim} was given up by its client, and was granted token {reply.token}")
        if claim in self._tokens:
            if self._tokens[claim] != reply.token:
                raise Violation(f"T3: claim {claim} has token {self._tokens[claim]}, and was told {reply.token}")
            return
        self._fresh_token(reply.token, f"claim {claim}")
        self._check_turn(lock, claim, now_ms)
        self._check_alone(lock, claim, now_ms)
        self._tokens[claim] = reply.token
        self.grants += 1
        self._held[lock] = Tenancy(claim, now_ms + self._ttls[claim])

    def _fresh_token(self, token: int, whose: str) -> None:
        if token <= self.last_token:
            raise Violation(f"T1, T4: {whose} got token {token}, and {self.last_token} was issued before")
        self.last_token = token

    def _check_turn(self, lock: str, claim: str, now_ms: int) -> None:
        queue = self._queues.get(lock, {})
        for other, until_ms in list(queue.items()):
            if other == claim:
                break
            if until_ms > now_ms:
                raise Violation(f"H7: claim {claim} was granted lock {lock!r}, and {other} came before it")
            del queue[other]
            self._ended.add(other)
        own_until_ms = queue.pop(claim, None)
        if own_until_ms is not None and own_until_ms <= now_ms:
            raise Violation(
                f"H8: the queue entry of claim {claim} had expired {now_ms - own_until_ms} ms before its grant"
            )

    def _check_alone(self, lock: str, claim: str, now_ms: int) -> None:
        tenancy = self._held.get(lock)
        if tenancy is not None and tenancy.deadline_ms > now_ms:
            left_ms = tenancy.deadline_ms - now_ms
            raise Violation(f"H1: lock {lock!r} was granted to {claim}; {tenancy.claim} had {left_ms} ms left")
        if tenancy is not None:
            self._ended.add(tenancy.claim)
        for belief in self._beliefs():
            is_other = belief.lock == lock and belief.claim != claim and belief.claim not in self.excused
            if is_other and belief.is_believed(now_ms):
                raise Violation(f"H1: lock {lock!r} was granted to {claim}, and {belief.claim} still relies on it")

    def _queued(self, request: Any, reply: ask.Queued, now_ms: int) -> None:
        lock, claim = request.lock, request.claim
        if claim in self._ended:
            raise Violation(f"H4: claim {claim} had ended, and was queued")
        queue = self._queues.setdefault(lock, {})
        until_ms = queue.get(claim)
        if until_ms is not None and until_ms <= now_ms:
            raise Violation(f"H8: the queue entry of claim {claim} had expired, and was kept")
        queue[claim] = now_ms + self._ttls[claim]

    # --- ends and renewals --------------------------------------------------------------------------------------------
    def _claim_ended(self, request: Any, reply: ask.ClaimEnded, now_ms: int) -> None:
        self._ended.add(request.claim)
        self._queues.get(request.lock, {}).pop(request.claim, None)

    def _released(self, request: ask.Release, reply: ask.Released, now_ms: int) -> None:
        lock, claim = request.lock, request.claim
        self._ended.add(claim)
        self._queues.get(lock, {}).pop(claim, None)
        if lock in self._held and self._held[lock].claim == claim:
            del self._held[lock]

    def _broken(self, request: ask.Break, reply: ask.Broken, now_ms: int) -> None:
        before = self._tokens.get(request.claim)
        if before == reply.token:
            return  # A repeated request for the same break.
        if before is not None and request.claim not in self._ended:
            raise Violation(f"T3: the same break minted {before}, and then {reply.token}")
        self._fresh_token(reply.token, f"the break of lock {request.lock!r}")
        self._tokens[request.claim] = reply.token
        tenancy = self._held.pop(request.lock, None)
        if tenancy is not None:
            self._ended.add(tenancy.claim)
            self.excused.add(tenancy.claim)

    def _renewed(self, request: ask.Renew, reply: ask.Renewed, now_ms: int) -> None:
        for lock, claim in request.leases:
            if claim in reply.remaining_ms:
                tenancy = self._held.get(lock)
                if tenancy is None or tenancy.claim != claim or tenancy.deadline_ms <= now_ms:
                    raise Violation(f"T4: claim {claim} was renewed, and does not hold lock {lock!r}")
                self._held[lock] = Tenancy(claim, now_ms + self._ttls[claim])

    _JUDGES: ClassVar[dict[type, str]] = {
        ask.Granted: "_granted",
        ask.Queued: "_queued",
        ask.ClaimEnded: "_claim_ended",
        ask.Released: "_released",
        ask.Renewed: "_renewed",
        ask.Broken: "_broken",
    }


class ResourceOracle:
    """Checks reads and commits at the guarded resources: G1, G2, G3, G5, G8, G9, G10, and lost increments.

    It knows a tenure by its digest, as a mark does.
    """

    def __init__(self, resources: Iterable[str]) -> None:
        self.acknowledged: dict[str, list[Write]] = {}
        self.confirmations = 0
        self._readers = 0
        self._sealed: dict[str, int] = dict.fromkeys(resources, 0)
        self._closed: dict[str, int] = {}
        self._sealers: set[tuple[str, str]] = set()
        self._lost_seals: set[tuple[str, str]] = set()
        self._used: set[tuple[str, str]] = set()
        """Tenures that have relied on their seal of a resource: they have read it, or know that they closed it."""
        self._void: set[tuple[str, str]] = set()
        self._lost_writes: set[Write] = set()
        self._owners: dict[str, str | None] = {}
        self._left: set[tuple[str, str]] = set()

    def read(self, digest: str, token: int, resource: str) -> None:
        """Check a tenure's read from a resource of the lock."""
        self._check_owner(digest, resource, "read")
        for other, sealed in self._sealed.items():
            if sealed < token and (digest, other) not in self._lost_seals:
                raise Violation(f"G2: token {token} read {resource!r} before it had sealed {other!r}")
        self._used.add((digest, resource))
        self._readers = max(self._readers, token)

    def marked(self, before: Mark | None, after: Mark) -> None:
        """Check a committed mark."""
        resource = after.resource
        if before is not None and after.token < before.token:
            raise Violation(f"G8: the mark of {resource!r} went down from {before.token} to {after.token}")
        self._sealed[resource] = max(self._sealed[resource], after.token)
        self._owners[resource] = None if after.is_closed else after.digest
        if after.digest is None:
            self._closed[resource] = max(self._closed.get(resource, 0), after.token)
            return
        seal = (after.digest, resource)
        if seal in self._void and not after.is_closed:
            raise Violation(f"G9: the lease of {after.digest} sealed {resource!r} again, after its first seal was lost")
        self._sealers.add(seal)
        if after.is_closed:
            self._closed[resource] = max(self._closed.get(resource, 0), after.token)

    def written(self, resource: str, digest: str | None, token: int, before: tuple[Any, ...], after: Any) -> None:
        """Check a committed value of the resource; `digest` is None if the client presented no sequencer."""
        if digest is None:
            raise Violation(f"G6: {resource!r} was written without a token")
        self._check_owner(digest, resource, "wrote")
        if token < self._sealed[resource]:
            raise Violation(f"G1: token {token} wrote to {resource!r}, sealed with {self._sealed[resource]} before")
        if token <= self._closed.get(resource, 0):
            raise Violation(f"G10: token {token} wrote to {resource!r} after {self._closed[resource]} was closed there")
        if (digest, resource) in self._left:
            raise Violation(f"G10: the lease of {digest} wrote to {resource!r} after it had been told that it left")
        if token < self._readers:
            raise Violation(f"G2: token {token} wrote to {resource!r} after the holder of {self._readers} had read")
        if (digest, resource) in self._void:
            raise Violation(f"G9: the lease of {digest} wrote to {resource!r} after its seal there was lost")
        if after[: len(before)] != before:
            raise Violation(f"an increment of {resource!r} was overwritten: {before} became {after}")

    def _check_owner(self, digest: str, resource: str, what: str) -> None:
        owner = self._owners.get(resource)
        if owner not in (None, digest):
            raise Violation(f"G1: the lease of {digest} {what} {resource!r} under the mark of {owner}")

    def left(self, digest: str, resource: str) -> None:
        """Note that a client knows that it has closed the resource for its own token."""
        self._used.add((digest, resource))
        self._left.add((digest, resource))

    def outranked(self, resource: str, token: int) -> None:
        """Note that an operator knows that the resource refuses every token up to this one."""
        self._closed[resource] = max(self._closed.get(resource, 0), token)

    def confirmed(self, resource: str, write: Write) -> None:
        """Note that a client knows that its increment is committed, unless a restore has undone it since."""
        self.confirmations += 1
        if write not in self._lost_writes:
            self.acknowledged.setdefault(resource, []).append(write)

    def is_own(self, resource: str, digest: str) -> bool:
        """Return whether the resource's mark belongs to this tenure and is open."""
        return self._owners.get(resource) == digest

    def restored(
        self, marks: dict[str, Mark | None], before: dict[str, tuple[Any, ...]], after: dict[str, tuple[Any, ...]]
    ) -> None:
        """Note that a store went back to an older state: excuse the lost increments, and discard every read."""
        self._readers = 0
        for resource, mark in marks.items():
            token = mark.token if mark else 0
            is_shut = mark is not None and (mark.is_closed or mark.digest is None)
            self._sealed[resource] = token
            self._closed[resource] = token if is_shut else 0
            self._left = {one for one in self._left if one[1] != resource}
            for digest, sealed in self._sealers:
                if sealed == resource:
                    is_kept = mark is not None and mark.digest == digest
                    self._lost_seals -= {(digest, resource)}
                    self._lost_seals |= set() if is_kept else {(digest, resource)}
            self._void = self._lost_seals & self._used
            self._owners[resource] = None if mark is None or is_shut else mark.digest
            kept = set(after[resource])
            self._lost_writes.update(write for write in before[resource] if write not in kept)
            self.acknowledged[resource] = [write for write in self.acknowledged.get(resource, ()) if write in kept]

    def is_lost(self, digest: str, resource: str) -> bool:
        """Return whether a restore removed this tenure's seal, so that SealLostError is the right answer."""
        return (digest, resource) in self._lost_seals

    def check_acknowledged(self, resource: str, value: tuple[Any, ...]) -> None:
        """Check at the end that the value contains every acknowledged increment."""
        missing = [write for write in self.acknowledged.get(resource, ()) if write not in value]
        if missing:
            raise Violation(f"{resource!r} lost acknowledged increments: {missing}")
