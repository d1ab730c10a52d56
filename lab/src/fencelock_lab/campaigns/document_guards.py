"""Broken guards of stores of documents, as sample code has them: negative controls of `verify`.

Promise: they work only on servers and folders that `verify --control` has made for them. Copy none.

    check-first      token >= mark is checked, and the mark raised, in a step before the write: a mark beside the data
    no-seal          both are done in one step with the write; a read raises nothing
    no-seal-strict   the same with token > mark
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import fencelock
from fencelock_lab.campaigns.controls import CHECK_FIRST, NO_SEAL, NO_SEAL_STRICT
from fencelock_lab.campaigns.document_target import DocumentTarget, RedisTarget
from fencelock_lab.campaigns.dynamodb_target import KEY, DynamoTarget
from fencelock_lab.campaigns.target import Proof, stale_error

_MARK, _BODY, _NEWEST = "mark", "body", "newest"
_SWAP = """
if tonumber(redis.call('GET', KEYS[1]) or '0') > tonumber(ARGV[1]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
for at = 2, #KEYS do redis.call('SET', KEYS[at], ARGV[at]) end
return 1
"""


class NaiveBlock:
    """What a broken guard yields: it reads at once, and keeps what is to be written."""

    def __init__(self, guard: "DocumentGuard", token: int, resource: str) -> None:
        self._guard = guard
        self._token = token
        self._resource = resource
        self.written: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        """Return a document."""
        return self._guard.load(name)

    def put(self, name: str, text: str) -> None:
        """Note a document to be written; the first is when a guard that checks first checks."""
        if not self.written:
            self._guard.check(self._token, self._resource)
        self.written[name] = text.encode()

    def delete(self, name: str) -> None:
        """Have a document be empty."""
        self.put(name, "")


class DocumentGuard(DocumentTarget):
    """A guard that checks nothing yet."""

    @contextmanager
    def transaction(self, proof: Proof, resource: str, *, is_writing: bool) -> Iterator[Any]:
        """Yield a block, and write at its end."""
        block = NaiveBlock(self, proof.token, resource)
        yield block
        if block.written:
            self.end(proof.token, resource, block.written)

    def own_block(self, lease: fencelock.Lease, resource: str) -> AbstractContextManager[Any]:
        """Return the same, for what an operator does."""
        return self.transaction(lease, resource, is_writing=True)

    def protect(self) -> None:
        """Nothing is made for a mark that is beside the data."""

    def get(self, connection: NaiveBlock, name: str) -> bytes | None:
        """Return a document."""
        return connection.get(name)

    def put(self, connection: NaiveBlock, name: str, text: str) -> None:
        """Write a document."""
        connection.put(name, text)

    def delete(self, connection: NaiveBlock, name: str) -> None:
        """Have a document be empty, which counts for nothing."""
        connection.delete(name)

    def is_there(self, resource: str) -> bool:
        """Return whether one of the documents says anything."""
        return any(self.load(name) for name in self.made_for(resource))

    def mark_of(self, resource: str) -> str:
        """Return the name of the mark's document."""
        return self._name(resource, _MARK)

    def check(self, token: int, resource: str) -> None:
        """Raise StaleTokenError if this guard refuses the token before it writes."""

    @abstractmethod
    def load(self, name: str) -> bytes | None:
        """Read a document, past every guard."""

    @abstractmethod
    def end(self, token: int, resource: str, written: Mapping[str, bytes]) -> None:
        """Write the documents."""


class CheckFirst(DocumentGuard):
    """Compares the token with a mark beside the data and raises it, and writes in the next step."""

    def check(self, token: int, resource: str) -> None:
        """Compare, and raise the mark."""
        name = self.mark_of(resource)
        if token < (mark := int(self.load(name) or 0)):
            raise stale_error(token, mark, resource)
        self.save(name, str(token).encode())

    def end(self, token: int, resource: str, written: Mapping[str, bytes]) -> None:
        """Write one document after the other."""
        for name, body in written.items():
            self.save(name, body)

    @abstractmethod
    def save(self, name: str, body: bytes) -> None:
        """Write a document, past every guard."""


class FilesCheckFirst(CheckFirst):
    """Files that are renamed into place without a lock."""

    def load(self, name: str) -> bytes | None:
        """Read a file."""
        with suppress(FileNotFoundError):
            return self._path(name).read_bytes()
        return None

    def save(self, name: str, body: bytes) -> None:
        """Write a draft, and rename it."""
        draft = self._path(f"{name}.draft")
        draft.write_bytes(body)
        draft.replace(self._path(name))

    def _path(self, name: str) -> Path:
        return Path(urlsplit(self.url).path, name)


class _Redis(DocumentGuard, RedisTarget):
    """Keys of Redis."""

    def load(self, name: str) -> bytes | None:
        """Read a key."""
        found: bytes | None = self.client.get(name)
        return found

    @cached_property
    def client(self) -> Any:
        """A client that knows no guard."""
        import redis

        return redis.Redis.from_url(f"redis://{urlsplit(self.url).netloc}")


class RedisCheckFirst(_Redis, CheckFirst):
    """A mark that is compared in the program."""

    def save(self, name: str, body: bytes) -> None:
        """Set a key."""
        self.client.set(name, body)


class RedisNoSeal(_Redis):
    """A script that compares the token, and writes."""

    def end(self, token: int, resource: str, written: Mapping[str, bytes]) -> None:
        """Run the script."""
        mark = self.mark_of(resource)
        if not self.client.eval(_SWAP, len(written) + 1, mark, *written, token, *written.values()):
            raise stale_error(token, int(self.load(mark) or 0), resource)


class S3CheckFirst(CheckFirst):
    """A mark in an object beside those of the data."""

    def load(self, name: str) -> bytes | None:
        """Read an object."""
        with suppress(self.client.exceptions.NoSuchKey):
            body: bytes = self.client.get_object(**self._place(name))["Body"].read()
            return body
        return None

    def save(self, name: str, body: bytes) -> None:
        """Put an object."""
        self.client.put_object(**self._place(name), Body=body)

    @cached_property
    def client(self) -> Any:
        """A client that knows no guard."""
        import boto3
        from botocore.config import Config

        config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
        (endpoint,) = parse_qs(urlsplit(self.url).query)["endpoint"]
        return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)

    def _place(self, name: str) -> dict[str, str]:
        parts = urlsplit(self.url)
        return {"Bucket": parts.netloc, "Key": f"{parts.path.strip('/')}/{name}"}


class DynamoNoSeal(DocumentGuard, DynamoTarget):
    """The token is in the item, and the condition of the write compares it."""

    how = "<="
    is_there = DynamoTarget.is_there

    def load(self, name: str) -> bytes | None:
        """Read an item."""
        body: bytes | None = self._item(name).get(_BODY, {}).get("B")
        return body

    def end(self, token: int, resource: str, written: Mapping[str, bytes]) -> None:
        """Write all items in one transaction."""
        condition = {
            "ConditionExpression": f"attribute_not_exists({_NEWEST}) OR {_NEWEST} {self.how} :token",
            "ExpressionAttributeValues": {":token": {"N": str(token)}},
        }
        puts = []
        for name, body in written.items():
            table, key = self._place(name)
            item = {**key, _BODY: {"B": body}, _NEWEST: {"N": str(token)}}
            puts.append({"Put": {"TableName": table, "Item": item, **condition}})
        try:
            self.client.transact_write_items(TransactItems=puts)
        except self.client.exceptions.TransactionCanceledException as error:
            mark = int(self._item(next(iter(written)))[_NEWEST]["N"])
            raise stale_error(token, mark, resource) from error

    def _item(self, name: str) -> dict[str, Any]:
        table, key = self._place(name)
        found: dict[str, Any] = self.client.get_item(TableName=table, Key=key, ConsistentRead=True).get("Item", {})
        return found

    def _place(self, name: str) -> tuple[str, dict[str, Any]]:
        table, _, document = name.partition(".")
        return table, {KEY: {"S": document}}


class DynamoNoSealStrict(DynamoNoSeal):
    """Wants a higher token for each write."""

    how = "<"


DOCUMENT_GUARDS: dict[str, dict[str, type[DocumentGuard]]] = {
    "file": {CHECK_FIRST: FilesCheckFirst},
    "redis": {CHECK_FIRST: RedisCheckFirst, NO_SEAL: RedisNoSeal},
    "s3": {CHECK_FIRST: S3CheckFirst},
    "dynamodb": {NO_SEAL: DynamoNoSeal, NO_SEAL_STRICT: DynamoNoSealStrict},
}
"""Each guard by its store's scheme and its name."""
