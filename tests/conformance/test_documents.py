"""A source in documents keeps every rule, over documents in memory: by the store's dates, and without any."""

from dataclasses import replace

from fencelock.testing.clock import ManualClock
from fencelock.testing.conformance import AsyncSourceConformance, SourceConformance
from tests.support.documents import Documents, MemoryDocumentSource


class InDocuments:
    """A source of its own for each check, on a clock that the check moves."""

    has_dates = True
    many_names = 200

    def setup_method(self):
        self.clock = ManualClock()
        self.documents = Documents(self.clock.now_us, has_dates=self.has_dates)
        super().setup_method()

    def make_url(self):
        self.make_store("").install()
        return "documents://test"

    def make_store(self, url):
        store = MemoryDocumentSource(self.documents, self.clock.now_us)
        store.capabilities = replace(store.capabilities, clock="dated" if self.has_dates else "observer")
        return store

    def dump(self):
        return repr((self.documents.documents, self.documents.counters)).encode()


class TestDatedDocuments(InDocuments, SourceConformance):
    pass


class TestAsyncDatedDocuments(InDocuments, AsyncSourceConformance):
    pass


class TestObservedDocuments(InDocuments, SourceConformance):
    has_dates = False
