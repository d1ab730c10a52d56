"""Checks for a source that loses its last commits and continues with the surviving leases.

Promise: the oracle derives the surviving state from an observer's knowledge at the time of the flush, never from the
store's own tables. A claim whose row was lost has ended, and the source never grants it again.
"""

from typing import Any, NamedTuple

from fencelock.protocol import source_requests as ask
from fencelock_lab.simulator.oracle import Belief, SourceOracle, Tenancy


class Memory(NamedTuple):
    """The holders and waiters at some moment, as an observer knew them."""

    held: dict[str, Tenancy]
    queues: dict[str, dict[str, int]]


class RecoveringOracle(SourceOracle):
    """Checks a source whose leases continue if their rows survive. A claim whose row is lost has ended."""

    def memory(self) -> Memory:
        """Return the state that would survive if the source lost every later commit."""
        return Memory(dict(self._held), {lock: dict(queue) for lock, queue in self._queues.items()})

    def recovered(self, memory: Memory) -> None:
        """Note that the source went back to this state. Holders of lost renewals may still rely on them."""
        unharmed = {now.claim for lock, now in self._held.items() if memory.held.get(lock) == now} - self.excused
        self.everything_ended()
        self.excused -= unharmed
        self._held = dict(memory.held)
        self._queues = {lock: dict(queue) for lock, queue in memory.queues.items()}
        self._ended -= {tenancy.claim for tenancy in memory.held.values()}
        self._ended -= {claim for queue in memory.queues.values() for claim in queue}

    def relied_on(self, belief: Belief) -> None:
        """Check a holder's new deadline; excuse a deadline that counts from a lost renewal."""
        if belief.claim not in self.excused:
            super().relied_on(belief)

    def _renewed(self, request: ask.Renew, reply: ask.Renewed, now_ms: int) -> None:
        super()._renewed(request, reply, now_ms)
        self.excused -= set(reply.remaining_ms)


class ClocklessOracle(RecoveringOracle):
    """Checks a source whose clock is set while it runs, with the rules that need no clock: T1, T3, H4, H5."""

    def relied_on(self, belief: Belief) -> None:
        """Accept any deadline: the clock may end a lease early or late."""

    def _check_turn(self, lock: str, claim: str, now_ms: int) -> None:
        queue = self._queues.get(lock, {})
        for other in list(queue):
            del queue[other]
            if other == claim:
                return
            self._ended.add(other)

    def _check_alone(self, lock: str, claim: str, now_ms: int) -> None:
        if lock in self._held:
            self._ended.add(self._held[lock].claim)

    def _queued(self, request: Any, reply: ask.Queued, now_ms: int) -> None:
        super()._queued(request, reply, 0)

    def _renewed(self, request: ask.Renew, reply: ask.Renewed, now_ms: int) -> None:
        """Skip the check for expired leases, which depends on the clock."""
