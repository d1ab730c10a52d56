"""A private server that speaks DynamoDB's API, an emulator, and the work by hand at it.

By hand: two bare conditional writes, which put an absent item and delete it; and, in its steps, the protocol of the
DynamoDB lock client: a consistent GetItem, a PutItem on the condition that there is no item, with a record version
number, and a DeleteItem on the condition of that number. A waiter looks once a second, as that client does by default.
What both lack: a token, an order among those who wait, renewal, and the search for what became of a request whose reply
is lost.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import boto3
from botocore.exceptions import ClientError

from fencelock_lab.benchmarks.stores import PREFIX, Operation, Site, install
from fencelock_lab.servers.fleet import fleet_of
from fencelock_lab.servers.ministack import CREDENTIALS, MinistackFleet

LOCKS, DATA = "bench-locks", "bench-data"
"""fencelock's table of locks, and the table in which everything by hand is, and what guards protect."""
KEY = "name"
LOCK_CLIENT, LOCK_CLIENT_KEYS = "bench-lock-client", ("lock_key", "sort_key")
"""The table of python-dynamodb-lock, and the names of its keys."""
REFRESH_S = 1.0
"""How often a waiter of the lock client looks, by its own default."""
MOST_PROCESSES = 9
"""One that holds and eight that wait: fencelock's waiters and the lock client's look from time to time."""
_VERSION = "record_version_number"
_REFUSED = "ConditionalCheckFailedException"
_IS_ABSENT = f"attribute_not_exists(#{KEY})"
_NAMES = {f"#{KEY}": KEY}


@contextmanager
def site() -> Iterator[Site]:
    """Yield a temporary server; clients find credentials for it in the environment."""
    with patch.dict(os.environ, CREDENTIALS), fleet_of(MinistackFleet, PREFIX) as fleet, fleet.new_server() as server:
        url = server.dynamodb_url(LOCKS)
        install(url)
        make_table(url, DATA, KEY)
        make_table(url, LOCK_CLIENT, *LOCK_CLIENT_KEYS)
        title = f"DynamoDB by ministack {version('ministack')}"
        yield Site("dynamodb", title, url, server, most_processes=MOST_PROCESSES)


def address_of(url: str) -> dict[str, Any]:
    """Return what boto3 and aiobotocore need in order to reach the server of a URL."""
    parts = urlsplit(url)
    (endpoint,) = parse_qs(parts.query)["endpoint"]
    return {"service_name": "dynamodb", "region_name": parts.netloc, "endpoint_url": endpoint}


def client_of(url: str) -> Any:
    """Return a client with boto3's own settings."""
    return boto3.client(**address_of(url))


def make_table(url: str, table: str, *keys: str) -> None:
    """Make a table with these keys, all of them strings."""
    client_of(url).create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)],
    )


@contextmanager
def by_hand(site: Site) -> Iterator[dict[str, Operation]]:
    """Yield two bare conditional writes, and the lock client's protocol."""
    writes, client = BareConditionalWrites(site.url, "bench"), LockClientByHand(site.url, "bench-client")
    yield {
        "two conditional writes by hand": writes.cycle,
        "the lock client's protocol by hand": client.cycle,
    }


def creation(name: str) -> dict[str, Any]:
    """Return the arguments of a PutItem that creates the item of a lock, with a version of its own."""
    return {
        "TableName": DATA,
        "Item": {KEY: {"S": f"by-hand-{name}"}, _VERSION: {"S": str(uuid4())}, "owner": {"S": "somebody"}},
        "ConditionExpression": _IS_ABSENT,
        "ExpressionAttributeNames": _NAMES,
    }


def deletion(created: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a DeleteItem that deletes what a PutItem created, and no later version."""
    item = created["Item"]
    return {
        "TableName": DATA,
        "Key": {KEY: item[KEY]},
        "ConditionExpression": f"{_VERSION} = :seen",
        "ExpressionAttributeValues": {":seen": item[_VERSION]},
    }


class BareConditionalWrites:
    """Put an absent item, and delete it again: the floor, without any promise."""

    def __init__(self, url: str, name: str) -> None:
        self._client = client_of(url)
        self._name = name
        self._created: dict[str, Any] = {}

    def take(self) -> None:
        """Put the item."""
        self._created = creation(self._name)
        self._client.put_item(**self._created)

    def free(self) -> None:
        """Delete it."""
        self._client.delete_item(**deletion(self._created))

    def cycle(self) -> None:
        """Do both."""
        self.take()
        self.free()


class LockClientByHand:
    """The requests of the DynamoDB lock client for one lock, without its heartbeats: no holder dies here."""

    def __init__(self, url: str, name: str) -> None:
        self._client = client_of(url)
        self._name = name
        self._created: dict[str, Any] = {}

    def take(self) -> None:
        """Take the lock; wait as long as another one has it."""
        while not self._is_taken():
            time.sleep(REFRESH_S)

    def free(self) -> None:
        """Delete the item."""
        self._client.delete_item(**deletion(self._created))

    def cycle(self) -> None:
        """Do both."""
        self.take()
        self.free()

    def _is_taken(self) -> bool:
        """Look at the lock, and put the item if there is none; return whether that was done."""
        created = creation(self._name)
        found = self._client.get_item(TableName=DATA, Key={KEY: created["Item"][KEY]}, ConsistentRead=True)
        if "Item" in found:
            return False
        try:
            self._client.put_item(**created)
        except ClientError as error:
            if error.response["Error"]["Code"] != _REFUSED:
                raise
            return False
        self._created = created
        return True
