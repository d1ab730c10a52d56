"""A source of tokens in this process's memory, under `memory://NAME`: for tests of code that takes a lock.

Promise: while the process lives, it keeps every rule that a durable source keeps: real leases, queues, and expiry on
the real clock. A forked child begins with sources of its own, under other source ids.
Never: accepted by a guard of a durable store. Its tokens begin at 1 in each process, so a mark that outlives the
process would refuse the next process's holders. The source id begins with `memory-`, which durable guards refuse.
"""

import threading
from collections.abc import Callable
from typing import Any

from fencelock._platform import at_fork
from fencelock.clock import boottime_us
from fencelock.errors import ConfigError
from fencelock.model import MEMORY_SOURCE_PREFIX, Finding, digest_of_claim, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.protocol.stores import Capabilities
from fencelock.stores.errors import unsupported
from fencelock.stores.memory.reference_model import ReferenceModel
from fencelock.stores.wakeup import EventWakeup

MAX_SOURCES = 10_000
"""Names that one process may use; a test suite that needs more should reuse names."""


class MemoryWorld:
    """One named source: its state and its waiters."""

    def __init__(self, model: ReferenceModel) -> None:
        self.model = model
        self.wakeups: dict[str, MemoryWakeup] = {}
        self._mutex = threading.Lock()

    def answer(self, request: Any, now_us: Callable[[], int]) -> ask.SourceReply:
        """Answer one request, and notify the waiter whose turn it may be now."""
        with self._mutex:
            now = now_us()  # Read under the mutex, so that the decision is made at that time (H1).
            reply = self.model.answer(request, now)
            if isinstance(request, ask.Release | ask.Break):
                wakeup = self.wakeups.get(self.model.head(request.lock, now // 1000) or "")
                if wakeup is not None:
                    wakeup.notify()
        return reply


class MemoryWakeup(EventWakeup):
    """The wakeup of one waiting claim, which the source knows by its digest."""

    def __init__(self, world: MemoryWorld, digest: str) -> None:
        super().__init__()
        self._world = world
        self._digest = digest
        world.wakeups[digest] = self

    def close(self) -> None:
        """Stop listening; never raises."""
        if self._world.wakeups.get(self._digest) is self:
            self._world.wakeups.pop(self._digest, None)
        super().close()


_WORLDS: dict[str, MemoryWorld] = {}
# A child that kept its parent's counters would issue the parent's tokens again.
at_fork(after_in_child=_WORLDS.clear)


class MemorySource:
    """A source in memory; objects with the same name in one process are the same source."""

    capabilities = Capabilities(ttl_min_ms=1, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=True)
    model_type = ReferenceModel

    def __init__(self, url: str, *, now_us: Callable[[], int] = boottime_us) -> None:
        scheme, separator, self._name = url.partition("://")
        if scheme.lower() != "memory" or not separator or not self._name:
            raise ConfigError(f"{url!r}: write memory://NAME")
        self.url = url
        self._now_us = now_us

    def world(self) -> MemoryWorld:
        """Return the source of this name; create it if it is new to this process."""
        world = _WORLDS.get(self._name)
        if world is None:
            if len(_WORLDS) >= MAX_SOURCES:
                raise ConfigError(
                    f"this process has {MAX_SOURCES} sources in memory, the most it may have: reuse a name"
                )
            source_id = MEMORY_SOURCE_PREFIX + draw_claim()
            world = _WORLDS.setdefault(self._name, MemoryWorld(self.model_type(source_id, draw_claim()[:16])))
        return world

    def connect(self, *, request_timeout_s: float = 0.0) -> "MemoryConnection":
        """Return a connection; its requests never wait."""
        return MemoryConnection(self, self._now_us)

    def listen(self, lock: str, claim: str) -> MemoryWakeup:
        """Open the wakeup of one waiting claim."""
        return MemoryWakeup(self.world(), digest_of_claim(claim))

    def install(self) -> None:
        """Create the source of this name if there is none."""
        self.world()

    def examine(self) -> list[Finding]:
        """Return that this source forgets everything."""
        message = f"{self.url} is in the memory of one process: no guard of a durable store accepts its tokens"
        return [Finding("memory-source", message, "use it in tests only")]


class MemoryConnection:
    """Answers requests. Each request looks the source up by name, because a fork clears the table of sources."""

    def __init__(self, store: MemorySource, now_us: Callable[[], int]) -> None:
        self._store = store
        self._now_us = now_us

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request in one step."""
        if type(request) not in ReferenceModel.ANSWERS:
            raise unsupported(request, self._store.url)
        return self._store.world().answer(request, self._now_us)

    def close(self) -> None:
        """Do nothing: a connection in memory holds no resource."""
