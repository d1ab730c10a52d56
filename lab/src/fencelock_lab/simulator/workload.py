"""Workloads of simulated processes for the benchmarks: locks that pass from waiter to waiter, and many held leases.

Promise: the flows are the library's own.
"""

from collections.abc import Generator
from typing import Any

from fencelock._flows import renewal
from fencelock._flows.acquire import Attempt, Grant, acquire, deadline_ms
from fencelock.protocol import source_requests as ask
from fencelock_lab.simulator.keeper import SimulatedKeeper, SimulatedLease
from fencelock_lab.simulator.kernel import US_PER_MS, Sleep
from fencelock_lab.simulator.source import SimulatedSource


def take_and_pass_on(lock: str, ttl_ms: int, hold_us: int, may_begin_us: int) -> Generator[Any, Any, None]:
    """Queue for a lock, hold it for a while, and release it, but not before `may_begin_us`."""
    attempt = Attempt(lock, "somebody", ttl_ms)
    grant = yield from acquire(attempt, may_wait=True, timeout_ms=None)
    assert grant is not None
    now_ms = yield ask.Now()
    yield Sleep(max(hold_us, may_begin_us - now_ms * US_PER_MS))
    assert attempt.claim is not None
    yield from renewal.release(lock, attempt.claim)


def hold_many(keeper: SimulatedKeeper, source: SimulatedSource, leases: int, ttl_ms: int) -> Generator[Any, Any, None]:
    """Take many leases at once, in no virtual time, and have the keeper renew them."""
    now_ms = yield ask.Now()
    for number in range(leases):
        attempt = Attempt(f"lock-{number}", "holder", ttl_ms)
        attempt.claim = f"c-{number}"
        request = ask.Acquire(attempt.lock, attempt.claim, "holder", ttl_ms, now_ms * US_PER_MS, False)
        reply = source.perform(request)
        assert isinstance(reply, ask.Granted)
        until_ms = deadline_ms(now_ms, reply.remaining_ms, ttl_ms)
        keeper.add(SimulatedLease(attempt, Grant(reply.token, until_ms, "s", "h", None), None), now_ms)
