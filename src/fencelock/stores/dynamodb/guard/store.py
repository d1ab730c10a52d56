"""The guard of DynamoDB tables: marks in a table of its own, and one transaction that checks them.

Promise: the constructor opens nothing; all connections of one guard share botocore's clients. DynamoDB itself refuses
nobody who writes past the guard: IAM has to, as `policy` prints it, and `examine` reports where it does not.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from fencelock.model import Finding
from fencelock.protocol.generators import run_generator
from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.aws.clients import AsyncAwsClient, AwsClient, Calls
from fencelock.stores.aws.url import parse_dynamodb_url
from fencelock.stores.dynamodb.guard.block import AsyncDynamoTransaction, DynamoTransaction
from fencelock.stores.dynamodb.guard.codec import DynamoGuardCodec
from fencelock.stores.dynamodb.guard.inspection import examine
from fencelock.stores.dynamodb.guard.policy import guard_policy
from fencelock.stores.dynamodb.guard.transaction import MAX_ITEMS, MAX_REQUEST_BYTES
from fencelock.stores.dynamodb.requests import REQUEST_TIMEOUT_S
from fencelock.stores.dynamodb.table import DynamoTables, create_table
from fencelock.stores.errors import GUARD_PART
from fencelock.stores.optimistic.connection import AsyncOptimisticConnection, OptimisticConnection
from fencelock.stores.pauses import pausing, pausing_async


class DynamoGuard:
    """The guarded tables of one region, whose marks are in one of them."""

    capabilities = GuardCapabilities(
        enforced_by="policy",
        speaks_asyncio=True,
        keeps_open=False,
        first_seal_creates=False,
        max_writes=MAX_ITEMS - 1,
        max_request_bytes=MAX_REQUEST_BYTES,
    )

    def __init__(self, url: str) -> None:
        self.info = parse_dynamodb_url(url)
        self.url = self.info.url
        self._tables = DynamoTables(self.url, self.info.target, GUARD_PART)

    def connect(self) -> OptimisticConnection[DynamoGuardCodec]:
        """Return a connection for the caller's thread."""
        send = pausing(self.make_client().call)
        return OptimisticConnection(self._codec(DynamoTransaction, send), send)

    def connect_async(self) -> AsyncOptimisticConnection[DynamoGuardCodec]:
        """Return a connection for the running loop."""
        send = pausing_async(self.make_async_client().call)
        return AsyncOptimisticConnection(self._codec(AsyncDynamoTransaction, send), send)

    def _codec(self, transaction_type: Callable[..., Any], send: Callable[[Any], Any]) -> DynamoGuardCodec:
        return DynamoGuardCodec(self.url, self._tables, partial(transaction_type, send, self._tables))

    def make_client(self) -> AwsClient:
        """Return what sends calls from threads; it opens nothing."""
        return AwsClient(self.info, REQUEST_TIMEOUT_S)

    def make_async_client(self) -> AsyncAwsClient:
        """Return what sends calls from loops; it opens nothing."""
        return AsyncAwsClient(self.info, REQUEST_TIMEOUT_S)

    def install(self) -> None:
        """Create the table of the marks unless it exists, check it, and wait until it can be used."""
        self._run(create_table(self._tables))

    def prove(self) -> None:
        """Raise UnsupportedError if the table of the marks is a global one, or deletes items by itself."""
        self._run(self._tables.check_own())

    def policy(self, resource: str, lock: str, *roles: str) -> str:
        """Return the commands that let these roles write by transactions only, and at one resource's mark."""
        return "\n".join(guard_policy(self.info, resource, lock, role) for role in roles)

    def examine(self) -> list[Finding]:
        """Report a table that cannot keep marks, marks of a restored table, and missing access control."""
        return examine(self.url, self.info.target, self._tables, self.connect(), self._run)

    def _run(self, calls: Calls[object]) -> object:
        return run_generator(calls, pausing(self.make_client().call))
