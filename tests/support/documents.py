"""Documents in memory, with dates and faults: what a source in documents is tested over without a server.

Promise: one operation is one step, as a store promises. `lose` loses the request or the reply of the next operation of
a kind, or has the request arrive later, when `deliver` is called. `double` has it arrive twice.
"""

import threading
from collections.abc import Callable

from fencelock.clock import boottime_us
from fencelock.errors import OutcomeUnknownError
from fencelock.model import Finding
from fencelock.protocol.stores import Capabilities
from fencelock.stores.document.operations import (
    LOCK,
    CreateCounter,
    Delete,
    Document,
    FoundDocuments,
    Increment,
    Key,
    Operation,
    ReadDocuments,
    ReadLocation,
    ReadLocks,
    Reply,
    WriteDocument,
    WriteEach,
)
from fencelock.stores.document.store import DocumentSource

REQUEST, REPLY, LATE, TWICE = "request", "reply", "late", "twice"
BEGAN_MS = 1_800_000_000_000
"""The store's date when the clock of the test shows 0."""


class Documents:
    """The server: documents and counters, and the operations on them."""

    def __init__(self, now_us: Callable[[], int] = boottime_us, *, has_dates: bool = True) -> None:
        self.documents: dict[Key, Document] = {}
        self.counters: dict[Key, int] = {}
        self.location: str | None = "location-1"
        self.performed: list[Operation] = []
        self.date_offset_ms = 0
        self.before: Callable[[Operation], object] = lambda _: None
        """Called before each operation, outside of the mutex: what another process does at this moment."""
        self._now_us = now_us
        self._has_dates = has_dates
        self._faults: list[tuple[type, str]] = []
        self._held_back: list[Operation] = []
        self._mutex = threading.RLock()

    # --- faults -------------------------------------------------------------------------------------------------------
    def lose(self, kind: type, what: str) -> None:
        """Lose the REQUEST or the REPLY of the next operation of this kind, or have its request arrive LATE."""
        self._faults.append((kind, what))

    def double(self, kind: type) -> None:
        """Have the next operation of this kind arrive twice; its caller hears the second answer."""
        self._faults.append((kind, TWICE))

    def deliver(self) -> list[Reply]:
        """Have what was held back arrive now; return what nobody gets to know."""
        held_back, self._held_back = self._held_back, []
        return [self._answer(operation) for operation in held_back]

    def perform(self, operation: Operation) -> Reply:
        """Perform one operation, as a client of the server sees it."""
        self.before(operation)
        fault = next((fault for fault in self._faults if isinstance(operation, fault[0])), None)
        if fault is None:
            return self._answer(operation)
        self._faults.remove(fault)
        if fault[1] == TWICE:
            self._answer(operation)
            return self._answer(operation)
        if fault[1] == REPLY:
            self._answer(operation)
        elif fault[1] == LATE:
            self._held_back.append(operation)
        raise OutcomeUnknownError("the connection broke on purpose")

    # --- the server ---------------------------------------------------------------------------------------------------
    def date_ms(self) -> int | None:
        """Return the server's date: whole seconds."""
        if not self._has_dates:
            return None
        return (BEGAN_MS + self._now_us() // 1000 + self.date_offset_ms) // 1000 * 1000

    def _answer(self, operation: Operation) -> Reply:
        with self._mutex:
            self.performed.append(operation)
            return getattr(self, "_" + type(operation).__name__.lower())(operation)

    def _readdocuments(self, operation: ReadDocuments) -> FoundDocuments:
        return FoundDocuments(tuple(map(self._document, operation.keys)), self.date_ms())

    def _readlocks(self, operation: ReadLocks) -> FoundDocuments:
        names = sorted(key.name for key in self.documents if key.kind == LOCK and key.name > operation.after)
        return self._readdocuments(ReadDocuments(tuple(Key(LOCK, name) for name in names[: operation.limit])))

    def _writedocument(self, write: WriteDocument) -> bool:
        if self._version(write.key) != write.seen:
            return False
        self.documents[write.key] = self.document_of(write)
        return True

    @staticmethod
    def document_of(write: WriteDocument) -> Document:
        """Return what a write leaves."""
        return Document(write.key, write.version, write.body)

    def _writeeach(self, operation: WriteEach) -> tuple[bool, ...]:
        return tuple(map(self._writedocument, operation.writes))

    def _delete(self, operation: Delete) -> bool:
        if self._version(operation.key) != operation.seen:
            return False
        del self.documents[operation.key]
        return True

    def _createcounter(self, operation: CreateCounter) -> None:
        self.counters.setdefault(operation.key, 0)

    def _increment(self, operation: Increment) -> int | None:
        if operation.key in self.counters:
            self.counters[operation.key] += 1
        return self.counters.get(operation.key)

    def _readlocation(self, operation: ReadLocation) -> str | None:
        return self.location

    def _document(self, key: Key) -> Document | None:
        if key in self.counters:
            return Document(key, "", str(self.counters[key]))
        return self.documents.get(key)

    def _version(self, key: Key) -> str | None:
        return self.documents[key].version if key in self.documents else None


class DocumentsClient:
    """A client of the server, for threads."""

    def __init__(self, documents: Documents) -> None:
        self.perform = documents.perform

    def close(self) -> None:
        """Do nothing."""


class AsyncDocumentsClient:
    """A client of the server, for loops."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def perform(self, operation: Operation) -> Reply:
        return self._documents.perform(operation)

    def close(self) -> None:
        """Do nothing."""


class MemoryDocumentSource(DocumentSource):
    """A source in documents in memory; two of them over the same documents are two processes."""

    capabilities = Capabilities(
        ttl_min_ms=1, ttl_max_ms=86_400_000, ttl_step_ms=1, notifies=False, speaks_asyncio=True, clock="dated"
    )

    def __init__(
        self, documents: Documents, now_us: Callable[[], int] = boottime_us, *, longest_wait_ms: int = 10
    ) -> None:
        super().__init__("documents://test", now_us=now_us, longest_wait_ms=longest_wait_ms)
        self.documents = documents

    def open_client(self, request_timeout_s: float) -> DocumentsClient:
        return DocumentsClient(self.documents)

    def open_async_client(self, request_timeout_s: float) -> AsyncDocumentsClient:
        return AsyncDocumentsClient(self.documents)

    def create_location(self) -> None:
        """Do nothing: the documents are the location."""

    def examine_location(self) -> list[Finding]:
        return []
