"""The source of tokens in a table of DynamoDB: the source in documents, over the clients of AWS.

Promise: the constructor opens nothing. A table that was restored from a backup is another table, with another id, so it
is noticed: no token is granted until an operator raises the epoch. Leases are dated by the headers of DynamoDB's
replies, to the second; no condition reads a clock.
Never: a table installed whose items DynamoDB deletes by itself, or changes from another region.
"""

from typing import Any

from fencelock.errors import FencelockError
from fencelock.model import Finding
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.protocol.stores import Capabilities
from fencelock.stores.aws.clients import AsyncAwsClient, AwsClient, AwsSession
from fencelock.stores.aws.url import parse_dynamodb_url
from fencelock.stores.document.operations import Operation, Reply
from fencelock.stores.document.store import INSTALL_S, DocumentSource
from fencelock.stores.dynamodb.source.documents import DynamoDocuments
from fencelock.stores.dynamodb.source.policy import source_policy
from fencelock.stores.dynamodb.table import DynamoTables, create_table
from fencelock.stores.errors import SOURCE_PART
from fencelock.stores.pauses import pausing


class DynamoDBSource(DocumentSource):
    """A source of tokens in one table. The constructor opens nothing."""

    capabilities = Capabilities(
        ttl_min_ms=5000,
        ttl_max_ms=86_400_000,
        ttl_step_ms=1,
        notifies=False,
        speaks_asyncio=True,
        max_connections=1000,
        clock="dated",
    )

    def __init__(self, url: str, **options: Any) -> None:
        self.info = parse_dynamodb_url(url)
        super().__init__(self.info.url, **options)
        self._session = AwsSession(self.info)
        self._documents = DynamoDocuments(self.info.target, self.info.url)

    def open_client(self, request_timeout_s: float) -> "DynamoDBClient":
        """Return a client for the caller's thread."""
        return DynamoDBClient(self._documents, self._session.connect(request_timeout_s))

    def open_async_client(self, request_timeout_s: float) -> "AsyncDynamoDBClient":
        """Return a client for the running loop."""
        return AsyncDynamoDBClient(self._documents, self._session.connect_async(request_timeout_s))

    def create_place(self) -> None:
        """Create the table, unless it exists, and check that it is fit to keep locks."""
        run_generator(create_table(self._tables()), pausing(self._session.connect(INSTALL_S).call))

    def examine_place(self) -> list[Finding]:
        """Report a table that is not fit to keep locks."""
        try:
            run_generator(self._tables().check_own(), pausing(self._session.connect(INSTALL_S).call))
        except FencelockError as error:
            return [Finding("unfit-table", str(error), "do what the message says, then run doctor again")]
        return []

    def policy(self, *roles: str) -> str:
        """Return the commands that let these roles take locks, and no more."""
        return "\n".join(source_policy(self.info, role) for role in roles)

    def _tables(self) -> DynamoTables:
        return DynamoTables(self.url, self.info.target, SOURCE_PART)


class DynamoDBClient:
    """Performs operations on documents in the caller's thread."""

    def __init__(self, documents: DynamoDocuments, client: AwsClient) -> None:
        self._documents = documents
        self._client = client

    def perform(self, operation: Operation) -> Reply:
        """Perform one operation, or raise a SourceError."""
        return run_generator(self._documents.perform(operation), self._client.call)

    def close(self) -> None:
        """Do nothing: all connections of a source share its clients."""


class AsyncDynamoDBClient:
    """Performs operations on documents on the running loop."""

    def __init__(self, documents: DynamoDocuments, client: AsyncAwsClient) -> None:
        self._documents = documents
        self._client = client

    async def perform(self, operation: Operation) -> Reply:
        """Perform one operation, or raise a SourceError."""
        return await run_generator_async(self._documents.perform(operation), self._client.call)

    def close(self) -> None:
        """Do nothing: all connections of a source share its clients."""
