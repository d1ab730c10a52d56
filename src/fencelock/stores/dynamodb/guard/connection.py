"""A guard's connection to DynamoDB: for the caller's thread, and for a loop.

Promise: both send the operations of `codec.py`, and nothing else; the twins differ in how they wait.
Never: a request repeated here; `transaction.py` and `../requests.py` decide that.
"""

from collections.abc import Callable, Iterable
from typing import Any

from fencelock.errors import GuardError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.aws.clients import AsyncAwsClient, AwsClient
from fencelock.stores.dynamodb.guard.block import AsyncDynamoTransaction, DynamoTransaction, DynamoWriteBuffer
from fencelock.stores.dynamodb.guard.codec import DynamoGuardCodec
from fencelock.stores.dynamodb.guard.items import ItemWork
from fencelock.stores.dynamodb.requests import async_sender, sender
from fencelock.stores.dynamodb.table import DynamoTables


class DynamoGuardConnectionBase:
    """What both kinds of connection share."""

    def __init__(self, url: str, tables: DynamoTables, transaction_type: type[Any], send: Callable[[Any], Any]) -> None:
        def make_work(marks: Iterable[ItemWork]) -> DynamoWriteBuffer:
            return transaction_type(send, tables, marks)  # type: ignore[no-any-return]

        self._send = send
        self._codec = DynamoGuardCodec(url, tables, make_work)

    @property
    def native(self) -> Any:
        """The object that `guard.transaction` yields."""
        return self._codec.work

    @property
    def restored(self) -> list[str]:
        """The resources whose marks, as they were last read, come from another table's backup."""
        return self._codec.restored

    def map_error(self, error: BaseException) -> GuardError | None:
        """Return None: an error that leaves a block is a FencelockError already, or the user's own."""
        return None

    def close(self) -> None:
        """Discard the pending writes."""
        self._codec.forget()


class DynamoGuardConnection(DynamoGuardConnectionBase):
    """Answers a guard's requests, for one thread at a time."""

    def __init__(self, url: str, tables: DynamoTables, client: AwsClient) -> None:
        super().__init__(url, tables, DynamoTransaction, sender(client))

    def perform(self, request: Any) -> Any:
        """Answer one request; after a failure nothing is pending."""
        try:
            return run_generator(self._codec.operations(request), self._send)
        except BaseException:
            self.rollback()
            raise

    def rollback(self) -> None:
        """Discard the pending writes."""
        self._codec.forget()


class AsyncDynamoGuardConnection(DynamoGuardConnectionBase):
    """Answers a guard's requests, for one task at a time."""

    def __init__(self, url: str, tables: DynamoTables, client: AsyncAwsClient) -> None:
        super().__init__(url, tables, AsyncDynamoTransaction, async_sender(client))

    async def perform(self, request: Any) -> Any:
        """Answer one request; after a failure nothing is pending."""
        try:
            return await run_generator_async(self._codec.operations(request), self._send)
        except BaseException:
            await self.rollback()
            raise

    async def rollback(self) -> None:
        """Discard the pending writes."""
        self._codec.forget()
