"""Fixtures: one server that speaks DynamoDB's API for the whole test session, and a table of marks for each test.

The data of all tests are in a few tables that they share, under keys of their own.
"""

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from botocore.config import Config

from fencelock_lab.servers.ministack import REGION, MinistackFleet
from tests.fix_servers import fresh_name

DATA, SORTED = "test-data", "test-sorted"
"""The tables of all tests' data: one with the key `pk`, and one with `pk` and `sk`."""


@dataclass(frozen=True)
class Corner:
    """A table of marks, and a part of the data, that belong to one test."""

    endpoint: str
    name: str

    def url(self, endpoint: str | None = None) -> str:
        """Return the URL of the guard, or of the guard behind a proxy."""
        return f"dynamodb://{REGION}/{self.name}?endpoint={quote(endpoint or self.endpoint, safe=':/')}"

    @cached_property
    def client(self) -> Any:
        """A client that knows nothing of fencelock, and asks once."""
        config = Config(retries={"total_max_attempts": 1})
        return boto3.client("dynamodb", region_name=REGION, endpoint_url=self.endpoint, config=config)

    def key(self, name: str) -> str:
        """Return the key of the test's own item of this name."""
        return f"{self.name}/{name}"

    def put(self, name: str, **attributes: str) -> None:
        """Write an item past the guard."""
        self.put_wire(name, {key: {"S": value} for key, value in attributes.items()})

    def put_wire(self, name: str, attributes: dict[str, Any]) -> None:
        """Write an item, as requests carry it, past the guard."""
        self.client.put_item(TableName=DATA, Item={"pk": {"S": self.key(name)}} | attributes)

    def value(self, name: str, attribute: str = "v") -> Any:
        """Return an attribute of an item of the test's own; None if there is none."""
        found = self.client.get_item(TableName=DATA, Key={"pk": {"S": self.key(name)}}, ConsistentRead=True)
        value = found.get("Item", {}).get(attribute)
        return None if value is None else next(iter(value.values()))

    def own_items(self) -> list[dict[str, Any]]:
        """Return the items of the guard's own table."""
        pages = self.client.get_paginator("scan").paginate(TableName=self.name, ConsistentRead=True)
        return [item for page in pages for item in page["Items"]]


def fresh_corner(fleet: MinistackFleet) -> Corner:
    """Return a name for a table of marks that no other test uses, and make the tables of the data."""
    corner = Corner(fleet.shared().endpoint, fresh_name("marks"))
    for table, keys in ((DATA, ("pk",)), (SORTED, ("pk", "sk"))):
        _make_table(corner.client, table, keys)
    return corner


def _make_table(client: Any, name: str, keys: tuple[str, ...]) -> None:
    kinds = dict(zip(keys, ("HASH", "RANGE"), strict=False))
    if name in _MADE:
        return
    with suppress(client.exceptions.ResourceInUseException):  # Another worker was faster.
        client.create_table(
            TableName=name,
            KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in kinds.items()],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
            BillingMode="PAY_PER_REQUEST",
        )
    _MADE.add(name)


_MADE: set[str] = set()


@pytest.fixture
def corner(ministack_fleet: MinistackFleet) -> Corner:
    """Return an uninstalled table of marks at the shared server, which a test must neither end nor freeze."""
    return fresh_corner(ministack_fleet)
