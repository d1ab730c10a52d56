"""What the sources in documents at AWS have in common: how an operation becomes calls, who sends them, and the clients.

Promise: a request that only reads is sent twice at most, and once to a server that does not answer; it fails
definitely, because it has done nothing.
Never: a write repeated that may have been executed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from fencelock.errors import FencelockError, OutcomeUnknownError, SourceUnavailableError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.protocol.stores import Capabilities
from fencelock.stores.aws.clients import AsyncAwsClient, AwsClient, Call, Calls, Refusal
from fencelock.stores.aws.clients import Reply as AwsReply
from fencelock.stores.aws.errors import has_timed_out, only_reads
from fencelock.stores.aws.url import AwsConnectionInfo
from fencelock.stores.document import operations as ask
from fencelock.stores.document.operations import Document, FoundDocuments
from fencelock.stores.document.store import DocumentSource
from fencelock.stores.pauses import pausing, pausing_async
from fencelock.stores.together import Together, together, together_async

MIN_TIMEOUT_S = 1.5
"""Half of it to connect, half for a reply: the keeper's own timeout would renew no lease of a region far away."""
_MS_PER_S = 1000
_IN_DOUBT = (OutcomeUnknownError, SourceUnavailableError)


class AwsDocuments(ABC):
    """The documents in one location, a table or a prefix. Pure: an operation is a generator of calls."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._performs: dict[type, Callable[[Any], Calls[ask.Reply]]] = {
            ask.ReadDocuments: self.read,
            ask.ReadLocks: self.read_locks,
            ask.WriteDocument: self.write,
            ask.WriteEach: self.write_each,
            ask.Delete: self.delete,
            ask.CreateCounter: self.create_counter,
            ask.Increment: self.increment,
            ask.ReadLocation: self.read_location,
        }

    def perform(self, operation: ask.Operation) -> Calls[ask.Reply]:
        """Perform one operation."""
        return self._performs[type(operation)](operation)

    # --- what a store defines -----------------------------------------------------------------------------------------
    @abstractmethod
    def read(self, operation: ask.ReadDocuments) -> Calls[FoundDocuments]:
        """Read documents."""

    @abstractmethod
    def read_locks(self, operation: ask.ReadLocks) -> Calls[FoundDocuments]:
        """Read the documents of a page of locks."""

    @abstractmethod
    def write(self, operation: ask.WriteDocument) -> Calls[bool]:
        """Write a document on its condition."""

    @abstractmethod
    def delete(self, operation: ask.Delete) -> Calls[bool]:
        """Delete a document on its condition."""

    @abstractmethod
    def create_counter(self, operation: ask.CreateCounter) -> Calls[None]:
        """Create a counter."""

    @abstractmethod
    def increment(self, operation: ask.Increment) -> Calls[int | None]:
        """Count."""

    @abstractmethod
    def read_location(self, operation: ask.ReadLocation) -> Calls[str | None]:
        """Read the identity of the location."""

    # --- what all do alike --------------------------------------------------------------------------------------------
    def write_each(self, operation: ask.WriteEach) -> Calls[tuple[bool | FencelockError, ...]]:
        """Do several writes at a time, up to the first in doubt: the keeper's next round asks again."""
        outcomes: list[bool | FencelockError] = yield Together(tuple(map(self._write_one, operation.writes)))
        return tuple(outcomes)

    def _write_one(self, write: ask.WriteDocument) -> Calls[bool | FencelockError]:
        """Return a refusal: raised, it would stop the other writes, and the next round would ask in the same order."""
        try:
            return (yield from self.write(write))
        except _IN_DOUBT:
            raise
        except FencelockError as refusal:
            return refusal


def read_only(operation: str, arguments: dict[str, Any], expects: frozenset[str] = frozenset()) -> Calls[AwsReply]:
    """Send a request that only reads: twice if need be, for an idle connection may have just ended."""
    call = Call(operation, arguments, expects)
    reply: AwsReply
    try:
        try:
            reply = yield call
        except OutcomeUnknownError as error:
            if has_timed_out(error):
                raise  # It hangs, and the keeper has the leases of other sources to renew.
            reply = yield call
    except OutcomeUnknownError as error:
        raise only_reads(error) from error
    return reply


def date_ms(reply: AwsReply) -> int | None:
    """Return the time of the service at which it replied; None if it did not tell."""
    fields = reply.reply if isinstance(reply, Refusal) else reply
    date = fields["ResponseMetadata"]["HTTPHeaders"].get("date")
    try:
        return None if date is None else int(parsedate_to_datetime(date).timestamp()) * _MS_PER_S
    except ValueError:
        return None


def gathered(documents: Iterable[Document | None], dates: Sequence[int | None]) -> FoundDocuments:
    """Return documents that came in several replies: the earliest date counts."""
    known = [date for date in dates if date is not None]
    # A later date would count for what was read earlier too, and end its lease too soon.
    return FoundDocuments(tuple(documents), min(known) if known and len(known) == len(dates) else None)


class AwsDocumentSource(DocumentSource):
    """A source of tokens at AWS. The constructor opens nothing."""

    capabilities = Capabilities(
        ttl_min_ms=5000,
        ttl_max_ms=86_400_000,
        ttl_step_ms=1,
        notifies=False,
        speaks_asyncio=True,
        max_connections=1000,
        clock="dated",
    )

    def __init__(self, info: AwsConnectionInfo, documents: AwsDocuments, **options: Any) -> None:
        super().__init__(info.url, **options)
        self.info = info
        self._documents = documents

    def open_client(self, request_timeout_s: float) -> "AwsDocumentClient":
        """Return a client for the caller's thread."""
        return AwsDocumentClient(self._documents, AwsClient(self.info, max(request_timeout_s, MIN_TIMEOUT_S)))

    def open_async_client(self, request_timeout_s: float) -> "AsyncAwsDocumentClient":
        """Return a client for the running loop."""
        return AsyncAwsDocumentClient(self._documents, AsyncAwsClient(self.info, request_timeout_s))


class AwsDocumentClient:
    """Performs operations on documents in the caller's thread."""

    def __init__(self, documents: AwsDocuments, client: AwsClient) -> None:
        self._documents = documents
        self._client = client

    def perform(self, operation: ask.Operation) -> ask.Reply:
        """Perform one operation, or raise a SourceError."""
        send = together(pausing(self._client.call))
        return run_generator(self._documents.perform(operation), send)

    def close(self) -> None:
        """Do nothing: all connections of a source share its clients."""


class AsyncAwsDocumentClient:
    """Performs operations on documents on the running loop."""

    def __init__(self, documents: AwsDocuments, client: AsyncAwsClient) -> None:
        self._documents = documents
        self._client = client

    async def perform(self, operation: ask.Operation) -> ask.Reply:
        """Perform one operation, or raise a SourceError."""
        send = together_async(pausing_async(self._client.call))
        return await run_generator_async(self._documents.perform(operation), send)

    def close(self) -> None:
        """Do nothing: all connections of a source share its clients."""
