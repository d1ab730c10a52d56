"""Resources in tables of DynamoDB: for each one a table with two items.

Promise: the tables carry the run's own name, and no other is made or deleted. Only `make` and `take_away` go past the
guard.
"""

from functools import cached_property
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3

from fencelock_lab.campaigns.document_target import DocumentTarget

KEY, _TEXT = "document", "text"


class DynamoTarget(DocumentTarget):
    """The resources of one lock in tables of one region."""

    def make(self, resource: str) -> None:
        """Make the table, and its items."""
        client, table = self.client, self._stems[resource]
        client.create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": KEY, "AttributeType": "S"}],
            KeySchema=[{"AttributeName": KEY, "KeyType": "HASH"}],
        )
        client.get_waiter("table_exists").wait(TableName=table)
        super().make(resource)

    def take_away(self, resource: str) -> None:
        """Delete the table."""
        self.client.delete_table(TableName=self._stems[resource])

    def is_there(self, resource: str) -> bool:
        """Return whether there is a table of that name."""
        pages = self.client.get_paginator("list_tables").paginate()
        return any(self._stems[resource] in page["TableNames"] for page in pages)

    def get(self, connection: Any, name: str) -> bytes | None:
        """Return the text of an item; None if it does not exist."""
        table, _, document = name.partition(".")
        item = connection.get(table, {KEY: document})
        return None if item is None else str(item[_TEXT]).encode()

    def put(self, connection: Any, name: str, text: str) -> None:
        """Put an item."""
        table, _, document = name.partition(".")
        connection.put(table, {KEY: document, _TEXT: text})

    @cached_property
    def client(self) -> Any:
        """A client that knows no guard."""
        parts = urlsplit(self.url)
        given = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        session = boto3.Session(profile_name=given.get("profile"), region_name=parts.netloc)
        return session.client("dynamodb", endpoint_url=given.get("endpoint"))
