"""What must be true of a source that loses its last commits, and goes on with the leases that are left.

Promise: what is left is known from what an onlooker had seen when it was flushed, never from the store's own tables. A
claim whose row was lost has ended, and is granted to nobody again.
"""

from typing import Any, NamedTuple

from fencelock.protocol import source_requests as ask
from fencelock_lab.simulator.oracle import Belief, SourceOracle, Tenancy


class Memory(NamedTuple):
    """Who held and who waited at some moment, as an onlooker knew it."""

    held: dict[str, Tenancy]
    queues: dict[str, dict[str, int]]


class RecoveringOracle(SourceOracle):
    """Judges a source whose leases go on where their rows are left. A claim that was lost with its row has ended."""

    def memory(self) -> Memory:
        """Return what would be left if the source lost everything from now on."""
        return Memory(dict(self._held), {lock: dict(queue) for lock, queue in self._queues.items()})

    def recovered(self, memory: Memory) -> None:
        """The source knows again what it knew then. Holders whose renewals were lost may rely on them still."""
        unharmed = {now.claim for lock, now in self._held.items() if memory.held.get(lock) == now} - self.excused
        self.everything_ended()
        self.excused -= unharmed
        self._held = dict(memory.held)
        self._queues = {lock: dict(queue) for lock, queue in memory.queues.items()}
        self._ended -= {tenancy.claim for tenancy in memory.held.values()}
        self._ended -= {claim for queue in memory.queues.values() for claim in queue}

    def relied_on(self, belief: Belief) -> None:
        """A holder has a new deadline; one that counts from a renewal that was lost is nobody's fault."""
        if belief.claim not in self.excused:
            super().relied_on(belief)

    def _renewed(self, request: ask.Renew, reply: ask.Renewed, now_ms: int) -> None:
        super()._renewed(request, reply, now_ms)
        self.excused -= set(reply.remaining_ms)


class ClocklessOracle(RecoveringOracle):
    """Judges a source whose clock is set while it runs by what must hold whatever a clock says: T1, T3, H4, H5."""

    def relied_on(self, belief: Belief) -> None:
        """A lease that ends early, or late, is the clock's fault."""

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
        """Whether a lease had run out is a question of the clock."""
