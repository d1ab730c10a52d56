"""Larger numbers than two cores can carry: the library's own flows in virtual time, over a source in memory.

It counts what does not depend on the machine: the requests to the source for each hand-off, for any number of
waiters, and for each beat, for any number of leases. The flows and the keeper's schedule are the real ones; the
simulator provides the time, the network and the source.
"""

import time
from typing import Any

from fencelock import FencelockError
from fencelock.protocol import source_requests as ask
from fencelock_lab.benchmarks.measure import Measurement, summarise
from fencelock_lab.benchmarks.stores import Site
from fencelock_lab.simulator.keeper import SimulatedKeeper
from fencelock_lab.simulator.kernel import US_PER_MS, Computer, SimulatedKernel, SimulatedProcess
from fencelock_lab.simulator.network import SimulatedNetwork
from fencelock_lab.simulator.oracle import SourceOracle
from fencelock_lab.simulator.source import SimulatedSource
from fencelock_lab.simulator.workload import hold_many, take_and_pass_on

HAND_OFF, BEAT = "requests for each hand-off", "requests for each beat"
QUEUES = ((1, 100), (100, 100), (1_000, 100))
"""So many locks, with so many waiters each."""
LEASES = (1_000, 100_000, 1_000_000)
GROWTH = 20
"""So many times longer the next number takes, about."""
AIMS = {HAND_OFF: 4.0, BEAT: 1.0}
WAITER_TTL_MS, LEASE_TTL_MS = 600_000, 3_000
HOLD_US = 2 * US_PER_MS
QUEUEING_US, MEASURED_US = 1_000 * US_PER_MS, 200 * US_PER_MS
BEATS = 4
SEED = 1
TOKENS = 10_000_000


def run(_site: Site | None, seconds: float) -> list[Measurement]:
    """Count for more and more waiters and leases; begin the next number only if time seems to be left for it."""
    results: list[Measurement] = []
    until, took = time.monotonic() + seconds, 0.0
    for queue, leases in zip(QUEUES, LEASES, strict=True):
        begun = time.monotonic()
        if results and begun + GROWTH * took > until:
            break
        results += [_hand_offs(*queue), _beats(leases)]
        took = time.monotonic() - begun
    return sorted(results, key=lambda result: result.case, reverse=True)


class CountingSource(SimulatedSource):
    """A source that counts the requests by their kind."""

    asked = 0
    granted = 0

    def perform(self, request: Any) -> ask.SourceReply | FencelockError:
        """Answer a request that has arrived."""
        reply = super().perform(request)
        self.asked += 1
        self.granted += isinstance(reply, ask.Granted)
        return reply


def _world() -> tuple[SimulatedKernel, CountingSource, SimulatedNetwork]:
    kernel = SimulatedKernel(SEED, is_tracing=False)
    source = CountingSource(kernel, SourceOracle(list), block_tokens=TOKENS)
    source.perform(ask.ReserveBlock())
    return kernel, source, SimulatedNetwork(kernel, source)


def _hand_offs(locks: int, waiters: int) -> Measurement:
    """Let each lock go from waiter to waiter for a while, all of them at the same time."""
    kernel, source, network = _world()
    computer = Computer(kernel)
    may_begin_us = kernel.now_us + QUEUEING_US
    for number in range(locks):
        for waiter in range(waiters + 1):
            process = SimulatedProcess(computer, f"p{number}-{waiter}")
            process.start(take_and_pass_on(f"lock-{number}", WAITER_TTL_MS, HOLD_US, may_begin_us), network.answer)
    kernel.run(may_begin_us)
    asked_before, granted_before = source.asked, source.granted
    kernel.run(may_begin_us + MEASURED_US)
    each = (source.asked - asked_before) / (source.granted - granted_before)
    return summarise(
        HAND_OFF, f"{locks * waiters:,} waiting for {locks:,} locks", "requests", [each], aim=AIMS[HAND_OFF]
    )


def _beats(leases: int) -> Measurement:
    """Hold this many leases in one process for some beats."""
    kernel, source, network = _world()
    process = SimulatedProcess(Computer(kernel), "holder")
    keeper = SimulatedKeeper(process, network.notify, lambda _: None)
    process.start(hold_many(keeper, source, leases, LEASE_TTL_MS), network.answer)
    process.start(keeper.run(), network.answer)
    beat_us = LEASE_TTL_MS // 3 * US_PER_MS
    kernel.run(kernel.now_us + beat_us // 2)
    before = source.asked
    assert source.granted == leases
    kernel.run(kernel.now_us + BEATS * beat_us)
    return summarise(BEAT, f"{leases:,} leases", "requests", [(source.asked - before) / BEATS], aim=AIMS[BEAT])
