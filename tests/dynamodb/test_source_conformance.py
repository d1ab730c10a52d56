"""The source in DynamoDB keeps every rule, over threads and over aiobotocore.

The holders' clock and the dates of the replies are moved by hand, so that no check depends on how fast the machine is.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fencelock.stores.document.operations import FoundDocuments
from fencelock.stores.dynamodb.source.store import AsyncDynamoDBClient, DynamoDBClient, DynamoDBSource
from fencelock.testing import AsyncSourceConformance, SourceConformance
from fencelock.testing.clock import ManualClock
from tests.dynamodb.fix_source import Locks

BEGAN_MS = 1_800_000_000_000


class MovedSource(DynamoDBSource):
    """A source whose replies have the dates of a clock, in whole seconds as DynamoDB's."""

    def __init__(self, url: str, now_us: Callable[[], int]) -> None:
        super().__init__(url, now_us=now_us, longest_wait_ms=10)
        self.capabilities = replace(self.capabilities, ttl_min_ms=1)
        self._now_us = now_us

    def dated(self, reply: Any) -> Any:
        if not isinstance(reply, FoundDocuments):
            return reply
        assert reply.date_ms is not None
        return reply._replace(date_ms=(BEGAN_MS + self._now_us() // 1000) // 1000 * 1000)

    def open_client(self, request_timeout_s: float) -> DynamoDBClient:
        client = super().open_client(request_timeout_s)
        perform = client.perform
        client.perform = lambda operation: self.dated(perform(operation))  # type: ignore[method-assign]
        return client

    def open_async_client(self, request_timeout_s: float) -> AsyncDynamoDBClient:
        client = super().open_async_client(request_timeout_s)
        perform = client.perform

        async def dated(operation: Any) -> Any:
            return self.dated(await perform(operation))

        client.perform = dated  # type: ignore[method-assign]
        return client


class InDynamoDB:
    """A table of its own for each check."""

    many_names = 30

    def setup_method(self) -> None:
        """The table comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_dynamodb(self, locks: Locks) -> None:
        self.locks = locks
        self.clock = ManualClock()
        super().setup_method()

    def make_url(self) -> str:
        return self.locks.url

    def make_store(self, url: str) -> MovedSource:
        return MovedSource(url, self.clock.now_us)

    def dump(self) -> bytes:
        return repr(self.locks.items()).encode()


class TestDynamoDBSource(InDynamoDB, SourceConformance):
    pass


class TestAsyncDynamoDBSource(InDynamoDB, AsyncSourceConformance):
    pass
