"""The simulated guarded store: it shows its reads, marks and commits to the oracle.

Promise: a value is a tuple of increments, so the oracle sees a lost increment in the step that overwrites it. The
store ends a transaction whose session sleeps for too long, as a server with an idle limit does (G3).
"""

from typing import TYPE_CHECKING, Any

from fencelock.model import Mark, Protection
from fencelock.protocol import guard_requests as ask
from fencelock.testing.memory_resource import MemoryResource, MemoryResourceSession
from fencelock_lab.simulator.kernel import SimulatedKernel
from fencelock_lab.simulator.oracle import ResourceOracle

if TYPE_CHECKING:
    from fencelock.testing.memory_state import MemoryResourceState

KEY = "value"


class SimulatedResource(MemoryResource):
    """A store with some resources, each with one protected table of the same name."""

    def __init__(
        self, kernel: SimulatedKernel, oracle: ResourceOracle, name: str, resources: tuple[str, ...], lock: str
    ) -> None:
        super().__init__(unix_s=lambda: kernel.calendar_s)
        self.kernel = kernel
        self.oracle = oracle
        self.name = name
        self.resources = resources
        self.last_heard_us = 0
        self._backups: list[MemoryResourceState] = []
        for resource in resources:
            self.state.marks[resource] = Mark(resource, lock)
            self.state.tables[resource] = Protection(resource, resource, ask.ENFORCE)
            self.state.data[resource, KEY] = ()

    def values(self) -> dict[str, tuple[Any, ...]]:
        """Return the committed value of each resource."""
        return {resource: self.state.data[resource, KEY] for resource in self.resources}

    def back_up(self) -> None:
        """Keep a copy of the committed state."""
        self._backups.append(self.state)  # A committed state is immutable: a commit replaces it by a new one.
        self.kernel.trace(self.name, "is backed up: {}", self.state.marks)

    def restore(self) -> None:
        """Go back to a backup, and end the open transaction."""
        if self._backups:
            if self.writer is not None:
                self.writer.rollback()
            before = self.values()
            self.state = self.kernel.random.choice(self._backups)
            self.kernel.trace(self.name, "is restored: {}", self.state.marks)
            self.oracle.restored(dict(self.state.marks), before, self.values())

    def throw_out(self) -> None:
        """End the open transaction, as a restart of the server does."""
        if self.writer is not None:
            self.kernel.trace(self.name, "ends the open transaction")
            self.writer.rollback()


class SimulatedSession(MemoryResourceSession):
    """A client's connection to a simulated store."""

    target: SimulatedResource

    def get(self, table: str, key: str) -> Any:
        """Return a value, and report the read to the oracle."""
        sequencer = self.presented.get(table)
        if sequencer is not None:
            self.target.oracle.read(sequencer.digest, sequencer.token, table)
        return super().get(table, key)

    def publish(self) -> None:
        """Commit, and have the oracle check the committed marks and values."""
        store, before, after = self.target, self.target.state, self.inside
        for resource in store.resources:
            mark = after.marks[resource]
            if mark != before.marks[resource]:
                store.kernel.trace(store.name, "commits {}", mark)
                store.oracle.marked(before.marks[resource], mark)
            value = after.data[resource, KEY]
            if value != before.data[resource, KEY]:
                sequencer = self.presented.get(resource)
                digest, token = (sequencer.digest, sequencer.token) if sequencer else (None, 0)
                store.kernel.trace(store.name, "commits {} of {} by token {}", value[-1:], resource, token)
                store.oracle.written(resource, digest, token, before.data[resource, KEY], value)
        super().publish()
