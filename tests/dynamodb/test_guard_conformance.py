"""The DynamoDB guard keeps every rule, synchronously and on the event loop."""

import json
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError
from botocore.httpsession import URLLib3Session

from fencelock.stores.aws.aiohttp_session import SendOnceSession
from fencelock.stores.dynamodb.guard.block import AsyncDynamoTransaction, DynamoTransaction
from fencelock.stores.dynamodb.guard.codec import partition_of
from fencelock.stores.registry import guard_store
from fencelock.testing import AsyncGuardConformance, GuardConformance
from fencelock_lab.servers.ministack import MinistackFleet
from tests.dynamodb.fix_dynamodb import DATA, Corner, fresh_corner


class InTables:
    """A fresh table of marks for each check. A value is an item of a table that all checks share."""

    observes = False
    is_async: bool
    corner: Corner

    def setup_method(self) -> None:
        """The server comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_tables(self, ministack_fleet: MinistackFleet) -> None:
        self.corner = fresh_corner(ministack_fleet)
        guard_store(self.corner.url()).install()
        super().setup_method()

    def make_url(self) -> str:
        return self.corner.url()

    def dump(self) -> bytes:
        return json.dumps(self.corner.own_items(), default=str).encode()

    def put(self, native: DynamoTransaction, table: str, key: str, value: str) -> None:
        native.put(DATA, {"pk": self.corner.key(f"{table}/{key}"), "v": value})

    def put_alone(self, table: str, key: str, value: str) -> None:
        self.corner.put(f"{table}/{key}", v=value)

    def wire(self) -> tuple[Any, str]:
        return SendOnceSession if self.is_async else URLLib3Session, "send"

    def lost_reply(self) -> Exception:
        return ConnectionClosedError(endpoint_url="the answer was lost on purpose")

    def lose_mark(self, resource: str) -> None:
        key = {"pk": {"S": partition_of(resource)}, "sk": {"S": "mark"}}
        self.corner.client.delete_item(TableName=self.corner.name, Key=key)

    def get(self, table: str, key: str) -> str | None:
        return self.corner.value(f"{table}/{key}")


class TestDynamoGuard(InTables, GuardConformance):
    pass


@pytest.mark.campaign
class TestAsyncDynamoGuard(InTables, AsyncGuardConformance):
    async def put_async(self, native: AsyncDynamoTransaction, table: str, key: str, value: str) -> None:
        native.put(DATA, {"pk": self.corner.key(f"{table}/{key}"), "v": value})
