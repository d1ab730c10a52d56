"""The stores in memory keep every rule."""

from fencelock.stores.memory.reference_model import MAX_ENDED_CLAIMS
from fencelock.stores.memory.source import MemorySource
from fencelock.testing.clock import ManualClock
from fencelock.testing.conformance import (
    AsyncGuardConformance,
    AsyncSourceConformance,
    GuardConformance,
    SourceConformance,
)
from tests.conformance.asyncio_guard import InTaskTarget
from tests.conformance.memory_guard import InTarget


class InMemory:
    """A source of its own for each check, on a clock that the check moves."""

    churn = MAX_ENDED_CLAIMS + 10

    def setup_method(self):
        self.clock = ManualClock()
        super().setup_method()

    def make_url(self):
        return f"memory://{self.folder.name}"

    def make_store(self, url):
        return MemorySource(url, now_us=self.clock.now_us)

    def dump(self):
        return repr(vars(self.store.world().model)).encode()


class TestMemorySource(InMemory, SourceConformance):
    pass


class TestAsyncMemorySource(InMemory, AsyncSourceConformance):
    pass


class TestMemoryGuard(InTarget, GuardConformance):
    pass


class TestAsyncMemoryGuard(InTarget, AsyncGuardConformance):
    pass


class TestTaskMemoryGuard(InTaskTarget, AsyncGuardConformance):
    pass
