"""Fixtures: a source in a table of its own, and a proxy before the server."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
from botocore.config import Config

from fencelock.stores.dynamodb.source.store import DynamoDBSource
from fencelock_lab.servers.ministack import REGION, MinistackFleet, MinistackServer
from tests.fix_servers import fresh_name
from tests.http.http_proxy import HTTPProxy


@dataclass(frozen=True)
class Locks:
    """A table of locks, and a client that knows nothing of fencelock."""

    server: MinistackServer
    name: str

    @property
    def url(self) -> str:
        """The URL of the source."""
        return self.server.dynamodb_url(self.name)

    @property
    def client(self) -> Any:
        config = Config(retries={"total_max_attempts": 1})
        return boto3.client("dynamodb", region_name=REGION, endpoint_url=self.server.endpoint, config=config)

    def items(self) -> list[dict[str, Any]]:
        """Return all items of the table."""
        pages = self.client.get_paginator("scan").paginate(TableName=self.name, ConsistentRead=True)
        return [item for page in pages for item in page["Items"]]


@pytest.fixture
def empty_table(ministack_fleet: MinistackFleet) -> Locks:
    """Return the name of a table that does not exist, at the shared server."""
    return Locks(ministack_fleet.shared(), fresh_name("locks"))


@pytest.fixture
def locks(empty_table: Locks) -> Locks:
    """Return an installed table of the test's own."""
    DynamoDBSource(empty_table.url).install()
    return empty_table


@pytest.fixture
def ministack_proxy(ministack_fleet: MinistackFleet) -> Iterator[HTTPProxy]:
    """Yield a proxy before the shared server."""
    with HTTPProxy(ministack_fleet.shared().port) as proxy:
        yield proxy
