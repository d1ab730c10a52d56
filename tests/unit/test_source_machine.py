"""The SQLite source against a model of it: any order of requests, late duplicates included, and any passing of time.

The model is the rules and nothing else: tokens only grow and are minted with the grant (T1, T4), a repeated request of
a holder gets its own token (T3), a claim is granted once (H4), no claim overtakes a living waiter (H7), and no dead
waiter returns (H8).
"""

import shutil
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from fencelock.model import EPOCH_STRIDE, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.stores.sqlite.source import admin, identity
from fencelock.stores.sqlite.source import store as source
from tests.support.helpers import folder_in_memory
from tests.support.sources import Client, installed

LOCKS = ("one", "two")
UNSENT, QUEUED, HELD, ENDED = "unsent", "queued", "held", "ended"


@dataclass
class Claim:
    """What the model knows of one claim. A waiter's deadline is that of its place in the queue."""

    lock: str
    text: str
    ttl_ms: int
    born_us: int
    state: str = UNSENT
    token: int = 0
    deadline_ms: int = 0


class SourceMachine(RuleBasedStateMachine):
    """Two processes, two locks, and a clock that only the test moves."""

    claims = Bundle("claims")

    @initialize()
    def open(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.now_us = 10_000_000_000
        self.patch.setattr(admin, "BLOCK_TOKENS", 3)
        self.patch.setattr(source, "boottime_ns", lambda: self.now_us * 1000)
        self.patch.setattr(identity, "boottime_us", lambda: self.now_us)
        self.folder = folder_in_memory("fl-machine-")
        installed(self.folder / "locks.db")
        self.clients = [Client(self.folder / "locks.db") for _ in range(2)]
        self.holding: dict[str, Claim | None] = dict.fromkeys(LOCKS)
        self.queues: dict[str, list[Claim]] = {lock: [] for lock in LOCKS}
        self.last_tokens: dict[str, int | None] = dict.fromkeys(LOCKS)
        self.last_token = 0
        self.last_end_us = 0

    def teardown(self) -> None:
        for client in self.clients:
            client.close()
        shutil.rmtree(self.folder)
        self.patch.undo()

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    # --- the model ---
    def holder(self, lock: str) -> Claim | None:
        claim = self.holding[lock]
        return claim if claim is not None and claim.deadline_ms > self.now_ms else None

    def head(self, lock: str) -> Claim | None:
        return next((claim for claim in self.queues[lock] if claim.deadline_ms > self.now_ms), None)

    def end(self, claim: Claim) -> None:
        claim.state = ENDED
        if self.holding[claim.lock] is claim:
            self.holding[claim.lock] = None
        if claim in self.queues[claim.lock]:
            self.queues[claim.lock].remove(claim)
        self.last_end_us = self.now_us

    def spend(self, lock: str, token: int) -> None:
        assert token > self.last_token  # T1, T4
        self.last_token = self.last_tokens[lock] = token

    def grant(self, claim: Claim, reply: Any) -> None:
        assert isinstance(reply, ask.Granted), reply
        assert reply.remaining_ms == claim.ttl_ms
        self.spend(claim.lock, reply.token)
        if (former := self.holding[claim.lock]) is not None:
            self.end(former)
        if claim in self.queues[claim.lock]:
            self.queues[claim.lock].remove(claim)
        claim.state, claim.token, claim.deadline_ms = HELD, reply.token, self.now_ms + claim.ttl_ms
        self.holding[claim.lock] = claim

    def expect_standing(self, claim: Claim, reply: Any) -> None:
        """Check the reply to a claim that holds the lock, waits for it, or did so before."""
        if claim.state == HELD and self.holder(claim.lock) is claim:
            assert isinstance(reply, ask.Granted), reply
            assert (reply.token, reply.remaining_ms) == (claim.token, claim.deadline_ms - self.now_ms)  # T3
        elif claim.state == QUEUED and claim.deadline_ms > self.now_ms:
            if self.holder(claim.lock) is None and self.head(claim.lock) is claim:
                self.grant(claim, reply)
            else:
                assert isinstance(reply, ask.Queued), reply
                claim.deadline_ms = self.now_ms + claim.ttl_ms
        else:
            assert reply == ask.ClaimEnded()  # H4, H8
            if claim.state == QUEUED:
                self.end(claim)

    # --- what may happen ---
    @rule(target=claims, lock=st.sampled_from(LOCKS), ttl_ms=st.sampled_from([1, 20, 300]))
    def draw(self, lock: str, ttl_ms: int) -> Claim:
        return Claim(lock, draw_claim(), ttl_ms, self.now_us)

    @rule(client=st.integers(0, 1), claim=claims, may_wait=st.booleans())
    def acquire(self, client: int, claim: Claim, may_wait: bool) -> None:
        reply = self.clients[client].acquire(
            claim.lock, claim.text, ttl_ms=claim.ttl_ms, may_wait=may_wait, born_us=claim.born_us
        )
        if claim.state != UNSENT:
            self.expect_standing(claim, reply)
        elif isinstance(reply, ask.ClaimEnded):
            # Allowed to a claim that may be a late duplicate, and to no fresh one.
            assert claim.born_us <= self.last_end_us
            claim.state = ENDED
        elif self.holder(claim.lock) is None and self.head(claim.lock) is None:
            self.grant(claim, reply)
        elif may_wait:
            assert isinstance(reply, ask.Queued), reply
            claim.state, claim.deadline_ms = QUEUED, self.now_ms + claim.ttl_ms
            self.queues[claim.lock].append(claim)
        else:
            assert reply == ask.Busy()

    @rule(client=st.integers(0, 1), claim=claims)
    def poll(self, client: int, claim: Claim) -> None:
        reply = self.clients[client].ask(ask.Poll(claim.lock, claim.text))
        if claim.state == UNSENT:
            assert reply == ask.ClaimEnded()
        else:
            self.expect_standing(claim, reply)

    @rule(client=st.integers(0, 1), claim=claims)
    def release(self, client: int, claim: Claim) -> None:
        was_held = self.clients[client].release(claim.lock, claim.text)
        assert was_held == (self.holding[claim.lock] is claim)
        self.end(claim)

    @rule(client=st.integers(0, 1), some=st.lists(claims, min_size=1, max_size=4))
    def renew(self, client: int, some: list[Claim]) -> None:
        reply = self.clients[client].ask(ask.Renew(tuple((claim.lock, claim.text) for claim in some)))
        for claim in some:
            if self.holder(claim.lock) is claim:
                assert reply.remaining_ms[claim.text] == claim.ttl_ms
                claim.deadline_ms = self.now_ms + claim.ttl_ms
            else:
                assert reply.lost[claim.text]  # Never a lease that is over, taken or not (T4).
        assert set(reply.remaining_ms) | set(reply.lost) == {claim.text for claim in some}

    @rule(client=st.integers(0, 1), lock=st.sampled_from(LOCKS))
    def break_lock(self, client: int, lock: str) -> None:
        former = self.holder(lock)
        broken = self.clients[client].ask(ask.Break(lock, draw_claim(), "operator", "a test"))
        assert (broken.holder is not None) == (former is not None)
        self.spend(lock, broken.token)
        self.last_end_us = self.now_us  # The breaker's own claim ends with it.
        if (claim := self.holding[lock]) is not None:
            self.end(claim)

    @rule(client=st.integers(0, 1))
    def purge(self, client: int) -> None:
        self.clients[client].ask(ask.Purge())
        for lock in LOCKS:
            claim = self.holding[lock]
            if claim is not None and self.holder(lock) is None:
                self.end(claim)
            for waiter in [waiter for waiter in self.queues[lock] if waiter.deadline_ms <= self.now_ms]:
                self.end(waiter)
            if self.holding[lock] is None and self.head(lock) is None:
                self.last_tokens[lock] = None
        self.last_end_us = self.now_us

    @rule(client=st.integers(0, 1))
    def raise_epoch(self, client: int) -> None:
        info = self.clients[client].raise_epoch()
        assert info.last_token % EPOCH_STRIDE == 0  # T7
        assert info.last_token > self.last_token
        self.last_token = info.last_token
        for lock in LOCKS:
            for claim in [*self.queues[lock], *filter(None, [self.holding[lock]])]:
                self.end(claim)
        self.last_end_us = self.now_us

    @rule(client=st.integers(0, 1))
    def start_again(self, client: int) -> None:
        self.clients[client].close()
        self.clients[client] = Client(self.folder / "locks.db")

    @rule(step_us=st.sampled_from([1, 500, 1_000, 19_000, 20_000, 299_999, 400_000]))
    def pass_time(self, step_us: int) -> None:
        self.now_us += step_us

    # --- what always holds ---
    @invariant()
    def counter_is_under_the_durable_bound(self) -> None:
        if hasattr(self, "clients"):
            info = self.clients[0].describe()
            assert self.last_token <= info.last_token <= info.reserved_token

    @invariant()
    def inspection_shows_the_last_token_and_the_holder(self) -> None:
        for lock in LOCKS if hasattr(self, "clients") else ():
            info = self.clients[1].ask(ask.Inspect(lock))
            assert info.token == self.last_tokens[lock]  # T5
            assert info.is_held == (self.holder(lock) is not None)
            assert len(info.waiters) == sum(claim.deadline_ms > self.now_ms for claim in self.queues[lock])


TestSource = SourceMachine.TestCase
TestSource.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
