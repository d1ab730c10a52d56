"""The store in memory keeps every rule of a source."""

from fenceline.testing.clock import ManualClock
from fenceline.testing.conformance import AsyncSourceConformance, SourceConformance
from fenceline.testing.ledger import MAX_ENDED_CLAIMS
from fenceline.testing.memory import MemorySource


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


class TestMemorySource(InMemory, SourceConformance):
    pass


class TestAsyncMemorySource(InMemory, AsyncSourceConformance):
    pass
