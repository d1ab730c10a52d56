"""Histories of a lock that keeps its promises, however late its processes hear of it: none may be called a violation.

A small simulation grants, renews and expires leases on one clock. Its processes are held up before and after every
step, lose the replies to their releases, and die; what they record is what a worker of a campaign records.
"""

import heapq
import random
from collections.abc import Generator, Iterator

import pytest

from fencelock_lab.campaigns.check_locks import check_exclusion, check_refusals, check_tokens
from fencelock_lab.campaigns.findings import Findings
from tests.lab.campaigns.planted import Script

TTL, MARGIN = 20, 2
SEEDS = 200
TENURES = 6
LONG_SHARE, DEATH_SHARE, LOST_SHARE, READ_SHARE, REENTRY_SHARE = 0.12, 0.03, 0.1, 0.6, 0.7


class Lock:
    """What a source knows: the newest token, and until when its lease runs. `early` is by how much it errs."""

    def __init__(self, early: int = 0) -> None:
        self._early = early
        self.token = 0
        self.deadline = 0

    def grant(self, now: int) -> int | None:
        if now < self.deadline - self._early:
            return None
        self.token += 1
        self.deadline = now + TTL
        return self.token

    def renew(self, token: int, now: int) -> bool:
        is_held = token == self.token and now < self.deadline
        if is_held:
            self.deadline = now + TTL
        return is_held

    def release(self, token: int) -> None:
        if token == self.token:
            self.deadline = 0


class Campaign:
    """Three processes that compete for one lock; `run` returns what they recorded."""

    def __init__(self, seed: int, lock: Lock, *, is_reentrant: bool) -> None:
        self._chance = random.Random(seed)
        self._lock = lock
        self._is_reentrant = is_reentrant
        self._script = Script(ttl=TTL)
        self._now = 1

    def run(self) -> Script:
        lives = [(1, number, self._live(str(number))) for number in range(3)]
        heapq.heapify(lives)
        while lives:
            self._now, number, life = heapq.heappop(lives)
            pause = next(life, None)
            if pause is not None:
                heapq.heappush(lives, (self._now + pause, number, life))
        return self._script

    def _happens(self, share: float) -> bool:
        return self._chance.random() < share

    def _pause(self) -> int:
        """Return how long a process is held up between two lines: now and then, for longer than a lease."""
        return self._chance.randint(TTL, 2 * TTL) if self._happens(LONG_SHARE) else self._chance.randint(0, 3)

    def _until(self, deadline: int) -> dict[str, int]:
        return {"until": deadline * 10**9} if self._now < deadline else {}

    def _live(self, name: str) -> Iterator[int]:
        for _ in range(TENURES):
            asked = self._now
            yield self._pause()
            sent = self._now
            yield self._pause()
            while (token := self._lock.grant(self._now)) is None:
                yield 2
                sent = self._now
            yield self._pause()
            deadline = sent + TTL - MARGIN
            until = self._until(deadline)
            yield self._pause()
            self._script.call(name, "acquire", asked, self._now, token=str(token), **until)
            deadline = yield from self._work(name, token, deadline)
            if self._happens(DEATH_SHARE):
                return
            if self._is_reentrant and self._happens(REENTRY_SHARE) and self._now < deadline:
                yield from self._enter_again(name, token, deadline)
            yield from self._release(name, token)
            yield self._pause()

    def _work(self, name: str, token: int, deadline: int) -> Generator[int, None, int]:
        while self._happens(READ_SHARE):
            asked = self._now
            yield self._pause()
            sent = self._now
            yield self._pause()
            if self._lock.renew(token, self._now):
                yield self._pause()
                # A renewal counts only if its reply arrives before the lease is over.
                deadline = sent + TTL - MARGIN if self._now < deadline else deadline
            until = self._until(deadline)
            yield self._pause()
            self._script.call(name, "read", asked, self._now, token=str(token), position=0, **until)
        return deadline

    def _enter_again(self, name: str, token: int, deadline: int) -> Iterator[int]:
        asked = self._now
        yield self._pause()
        self._script.call(name, "acquire", asked, self._now, token=str(token), **self._until(deadline))
        asked = self._now
        yield self._pause()
        self._script.release(name, asked, self._now, token)

    def _release(self, name: str, token: int) -> Iterator[int]:
        asked = self._now
        yield self._pause()
        if not self._happens(LOST_SHARE):
            self._lock.release(token)
        yield self._pause()
        if self._happens(LOST_SHARE):
            self._script.call(name, "release", asked, self._now, outcome="info", token=str(token), error="Lost")
        else:
            self._script.release(name, asked, self._now, token)


def blamed(script: Script) -> list[str]:
    """Return the rules of locks that the history breaks."""
    findings = Findings()
    history = script.history()
    for check in (check_tokens, check_exclusion, check_refusals):
        check(history, findings)
    assert not findings.undecided
    return [violation.rule for violation in findings.violations]


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_lock_that_keeps_its_promises_is_never_blamed(is_reentrant: bool) -> None:
    for seed in range(SEEDS):
        script = Campaign(seed, Lock(), is_reentrant=is_reentrant).run()
        assert blamed(script) == [], f"seed {seed}"


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_a_lock_that_ends_leases_early_is_blamed(is_reentrant: bool) -> None:
    found = [blamed(Campaign(seed, Lock(TTL // 2), is_reentrant=is_reentrant).run()) for seed in range(SEEDS)]
    assert {rule for rules in found for rule in rules} == {"lock-not-exclusive"}
    assert sum(map(bool, found)) > SEEDS // 2
