"""A source of tokens in this process's memory, under `memory://NAME`: for tests of code that takes a lock.

Promise: it keeps every rule that a durable source keeps while the process lives: real leases, queues, expiry on the
real clock. A forked child begins with sources of its own, under other source ids.
Never: accepted by a guard of a durable store. Its tokens begin at 1 with each process, so a mark that outlives the
process would refuse the next one's holders, or worse; the source id begins with `memory-`, and guards refuse that.
"""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fencelock.clock import boottime_us
from fencelock.errors import ConfigError
from fencelock.model import MEMORY_SOURCE_PREFIX, Finding, draw_claim
from fencelock.protocol import source_requests as ask
from fencelock.protocol.stores import Capabilities
from fencelock.stores.memory.reference_model import ReferenceModel

MAX_SOURCES = 10_000
"""Names that one process may use; a test suite that needs more should use a name again."""
_DRAIN_BYTES = 8


class MemoryWorld:
    """One named source: its ledger, and who listens."""

    def __init__(self, ledger: ReferenceModel) -> None:
        self.ledger = ledger
        self.bells: dict[str, MemoryWakeup] = {}
        self._mutex = threading.Lock()

    def answer(self, request: Any, now_us: Callable[[], int]) -> ask.SourceReply:
        """Answer one request, and wake whoever's turn may have come by it."""
        with self._mutex:
            now = now_us()  # Read under the mutex: what is decided is decided at that time (H1).
            reply = self.ledger.answer(request, now)
            if isinstance(request, ask.Release | ask.Break):
                bell = self.bells.get(self.ledger.head(request.lock, now // 1000) or "")
                if bell is not None:
                    bell.ring()
        return reply


class MemoryWakeup:
    """Where one waiting claim hears that its turn may have come."""

    def __init__(self, world: MemoryWorld, claim: str) -> None:
        self._world = world
        self._claim = claim
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        world.bells[claim] = self

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when somebody rang."""
        return self._descriptor

    def ring(self) -> None:
        """Wake the waiter."""
        with suppress(OSError):
            os.eventfd_write(self._descriptor, 1)

    def drain(self) -> None:
        """Forget the rings until now."""
        with suppress(BlockingIOError):
            os.read(self._descriptor, _DRAIN_BYTES)

    def close(self) -> None:
        """Stop listening."""
        if self._world.bells.pop(self._claim, None) is self:
            os.close(self._descriptor)


_WORLDS: dict[str, MemoryWorld] = {}
# A child that went on with its parent's counters would issue the parent's tokens once more.
os.register_at_fork(after_in_child=_WORLDS.clear)


class MemorySource:
    """A source in memory; every one of the same name in this process is the same source."""

    capabilities = Capabilities(ttl_min_ms=1, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=True)
    ledger_type = ReferenceModel

    def __init__(self, url: str, *, now_us: Callable[[], int] = boottime_us) -> None:
        scheme, separator, self._name = url.partition("://")
        if scheme.lower() != "memory" or not separator or not self._name:
            raise ConfigError(f"{url!r}: write memory://NAME")
        self.url = url
        self._now_us = now_us

    def world(self) -> MemoryWorld:
        """Return the source of this name, made now if it is new to this process."""
        world = _WORLDS.get(self._name)
        if world is None:
            if len(_WORLDS) >= MAX_SOURCES:
                raise ConfigError(f"this process has {MAX_SOURCES} sources in memory: use a name again")
            source_id = MEMORY_SOURCE_PREFIX + draw_claim()
            world = _WORLDS.setdefault(self._name, MemoryWorld(self.ledger_type(source_id, draw_claim()[:16])))
        return world

    def connect(self, *, request_timeout_s: float = 0.0) -> "MemoryConnection":
        """Return a connection; nothing here ever waits."""
        return MemoryConnection(self, self._now_us)

    def listen(self, lock: str, claim: str) -> MemoryWakeup:
        """Open the bell of one waiting claim."""
        return MemoryWakeup(self.world(), claim)

    def install(self) -> None:
        """Make the source of this name if there is none."""
        self.world()

    def examine(self) -> list[Finding]:
        """Return that this source forgets everything."""
        message = f"{self.url} is in the memory of one process: no guard of a durable store accepts its tokens"
        return [Finding("memory-source", message, "use it in tests only")]


class MemoryConnection:
    """Answers requests; each looks the source up, since a fork may have taken it away."""

    def __init__(self, store: MemorySource, now_us: Callable[[], int]) -> None:
        self._store = store
        self._now_us = now_us

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request in one step."""
        return self._store.world().answer(request, self._now_us)

    def close(self) -> None:
        """There is nothing to give back."""
