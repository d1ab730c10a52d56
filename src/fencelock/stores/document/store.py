"""The base of a source in documents, and its connections.

Promise: one request is one run of its operations; what they decide is in `grants.py`, `renewal.py` and `admin.py`. A
derived store performs the operations and nothing else. Claims are hashed here: what is below knows digests only.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from fencelock.clock import boottime_us
from fencelock.errors import FencelockError
from fencelock.model import Finding
from fencelock.protocol import source_requests as ask
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.protocol.stores import Capabilities
from fencelock.stores.document import admin, grants, renewal
from fencelock.stores.document.operations import AsyncDocumentClient, DocumentClient, Operations
from fencelock.stores.document.state import DocumentState
from fencelock.stores.errors import refused_finding
from fencelock.stores.hashed_claims import hash_claims, restore_claims
from fencelock.stores.pauses import pausing, pausing_async
from fencelock.stores.wakeup import EventWakeup

INSTALL_S = 10.0
LONGEST_WAIT_MS = 500
"""The longest sleep of a waiter between two polls."""
OPERATIONS: dict[type, Callable[[DocumentState, Any], Operations[ask.SourceReply]]] = {
    ask.Acquire: grants.acquire,
    ask.Poll: grants.poll,
    ask.Release: grants.release,
    ask.Renew: renewal.renew,
    ask.ReserveBlock: admin.reserve,
    ask.ReadSource: admin.read_source,
    ask.RaiseEpoch: admin.raise_epoch,
    ask.Break: admin.break_lock,
    ask.Inspect: admin.inspect,
    ask.Check: admin.check,
    ask.ListLocks: admin.list_locks,
    ask.Purge: admin.purge,
    ask.AddKey: admin.refuse_keys,
    ask.RetireKey: admin.refuse_keys,
    ask.ReadKeys: admin.refuse_keys,
}


class DocumentSource(ABC):
    """A source of tokens in documents. The constructor opens nothing."""

    capabilities: Capabilities

    def __init__(
        self, url: str, *, now_us: Callable[[], int] = boottime_us, longest_wait_ms: int = LONGEST_WAIT_MS
    ) -> None:
        self.url = url
        self.state = DocumentState(url, now_us, longest_wait_ms)

    # --- what a store defines -----------------------------------------------------------------------------------------
    @abstractmethod
    def open_client(self, request_timeout_s: float) -> DocumentClient:
        """Return a client for the caller's thread; it opens nothing."""

    @abstractmethod
    def open_async_client(self, request_timeout_s: float) -> AsyncDocumentClient:
        """Return a client for the running loop; it opens nothing."""

    @abstractmethod
    def create_location(self) -> None:
        """Create what the documents are kept in, if there is none; safe when run concurrently."""

    @abstractmethod
    def examine_location(self) -> list[Finding]:
        """Return what is wrong with the setup of what the documents are kept in."""

    # --- the source ---------------------------------------------------------------------------------------------------
    def connect(self, *, request_timeout_s: float) -> "DocumentConnection":
        """Return a connection for the caller's thread; all of them share what this object has seen."""
        return DocumentConnection(self.state, self.open_client(request_timeout_s))

    def connect_async(self, *, request_timeout_s: float) -> "AsyncDocumentConnection":
        """Return a connection for the running loop."""
        return AsyncDocumentConnection(self.state, self.open_async_client(request_timeout_s))

    def listen(self, lock: str, claim: str) -> EventWakeup:
        """Return a channel on which nothing comes: waiters poll."""
        return EventWakeup()

    def install(self) -> None:
        """Create the location and the source's documents, if there are none; safe when run concurrently."""
        self.create_location()
        client = self.open_client(INSTALL_S)
        try:
            run_generator(admin.install(self.state), client.perform)
        finally:
            client.close()

    def examine(self) -> list[Finding]:
        """Return what in this source's setup breaks its guarantees."""
        client = self.open_client(INSTALL_S)
        try:
            found = run_generator(admin.examine(self.state), pausing(client.perform))
        except FencelockError as error:
            return [refused_finding("source-refused", error)]
        finally:
            client.close()
        return [*found, *self.examine_location()]


class DocumentConnection:
    """Answers requests in the caller's thread."""

    def __init__(self, state: DocumentState, client: DocumentClient) -> None:
        self._state = state
        self._client = client

    def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        return _restored(request, run_generator(_operations(self._state, request), pausing(self._client.perform)))

    def close(self) -> None:
        """Give back what the client uses; never raises."""
        self._client.close()


class AsyncDocumentConnection:
    """Answers requests on the running loop."""

    def __init__(self, state: DocumentState, client: AsyncDocumentClient) -> None:
        self._state = state
        self._client = client

    async def perform(self, request: Any) -> ask.SourceReply:
        """Answer one request of `protocol/source_requests.py`."""
        operations = _operations(self._state, request)
        return _restored(request, await run_generator_async(operations, pausing_async(self._client.perform)))

    def close(self) -> None:
        """Give back what the client uses without waiting; never raises."""
        self._client.close()


def _operations(state: DocumentState, request: Any) -> Operations[ask.SourceReply]:
    return OPERATIONS[type(request)](state, hash_claims(request))


def _restored(request: Any, reply: ask.SourceReply) -> ask.SourceReply:
    return restore_claims(request, reply) if isinstance(reply, ask.Renewed) else reply
