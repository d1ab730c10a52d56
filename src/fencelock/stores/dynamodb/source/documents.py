"""The documents of a source as items of a table: what each operation asks DynamoDB, and what its replies mean.

An item's partition key is the document's kind, its sort key the name, so a Query lists the locks in order. A document
is the attributes `body` and `version`, a counter is `reached`. The renewals of one round are one PutItem each: the only
batch of independent conditional writes is PartiQL's, whose UPDATE of two attributes no server here reads as the manual
writes it.

Promise: pure. Every read is strongly consistent. A request that only reads is asked twice at most, and fails
definitely, because it has done nothing.
Never: a write repeated that may have been executed; a write without a condition.
"""

from typing import Any

from fencelock.errors import SourceError, SourceUnavailableError
from fencelock.stores.aws.clients import Call, Calls, Refusal
from fencelock.stores.aws.documents import AwsDocuments, date_ms, gathered, read_only
from fencelock.stores.document import operations as ask
from fencelock.stores.document.operations import COUNTER, LOCK, Document, FoundDocuments, Key
from fencelock.stores.dynamodb.table import PARTITION, SORT
from fencelock.stores.errors import SOURCE_PART, not_installed
from fencelock.stores.pauses import growing_pauses

_BODY, _VERSION, _REACHED = "body", "version", "reached"
_FAILED = frozenset({"ConditionalCheckFailedException"})
_NO_TABLE = frozenset({"ResourceNotFoundException"})
_IS_NEW = f"attribute_not_exists({PARTITION})"
_IS_SEEN = f"{_VERSION} = :seen"
MAX_PARTS = 10
"""How often the rest of a read is asked for: a reply holds 16 MB at most, and a busy table leaves keys out."""


class DynamoDocuments(AwsDocuments):
    """The documents in one table."""

    def __init__(self, table: str, url: str) -> None:
        super().__init__(url)
        self._table = table

    # --- reading ------------------------------------------------------------------------------------------------------
    def read(self, operation: ask.ReadDocuments) -> Calls[FoundDocuments]:
        """Read items, and the rest that a reply leaves out."""
        found: dict[Key, Document] = {}
        dates: list[int | None] = []
        left = [_item_key(key) for key in dict.fromkeys(operation.keys)]
        pauses = growing_pauses()
        for number in range(MAX_PARTS):
            if number:
                yield next(pauses)
            wanted = {self._table: {"Keys": left, "ConsistentRead": True}}
            reply = yield from self._ask("batch_get_item", {"RequestItems": wanted})
            dates.append(date_ms(reply))
            documents = (self._document(item) for item in reply["Responses"].get(self._table, []))
            found.update((document.key, document) for document in documents)
            left = reply.get("UnprocessedKeys", {}).get(self._table, {}).get("Keys", [])
            if not left:
                return gathered(map(found.get, operation.keys), dates)
        raise SourceUnavailableError(f"{self.url} leaves out a part of what it is asked for: try again")

    def read_locks(self, operation: ask.ReadLocks) -> Calls[FoundDocuments]:
        """Query the items of locks, in the order of their names."""
        query: dict[str, Any] = {
            "TableName": self._table,
            "ConsistentRead": True,
            "KeyConditionExpression": f"{PARTITION} = :kind AND {SORT} > :after",
            "ExpressionAttributeValues": {":kind": {"S": LOCK}, ":after": {"S": operation.after}},
        }
        if not operation.after:
            # A sort key is never empty, and an empty one may not be named.
            query["KeyConditionExpression"] = f"{PARTITION} = :kind"
            del query["ExpressionAttributeValues"][":after"]
        found: list[Document] = []
        dates: list[int | None] = []
        while True:
            query["Limit"] = operation.limit - len(found)
            reply = yield from self._ask("query", query)
            dates.append(date_ms(reply))
            found += map(self._document, reply["Items"])
            # A page ends after 1 MB, too.
            if len(found) >= operation.limit or "LastEvaluatedKey" not in reply:
                return gathered(found, dates)
            query["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    def read_location(self, _: ask.ReadLocation) -> Calls[str | None]:
        """Read the id of the table; None at a server that gives none."""
        reply = yield from self._ask("describe_table", {"TableName": self._table})
        table_id: str | None = reply["Table"].get("TableId")
        return table_id

    def _ask(self, operation: str, arguments: dict[str, Any]) -> Calls[dict[str, Any]]:
        reply = yield from read_only(operation, arguments, _NO_TABLE)
        if isinstance(reply, Refusal):
            raise not_installed(self.url, SOURCE_PART)
        return reply

    def _document(self, item: dict[str, Any]) -> Document:
        """Return the document or counter of an item; SourceError if it is neither. A lock's has that as its problem."""
        key: Any = Key(item[PARTITION]["S"], item[SORT]["S"])
        try:
            if key.kind == COUNTER:
                return Document(key, "", item[_REACHED]["N"])
            return Document(key, item[_VERSION]["S"], item[_BODY]["S"])
        except KeyError:
            message = f"{self.url}: the item {key.kind!r}, {key.name!r} of the table is not one of fencelock's"
            if key.kind == LOCK:
                return Document(key, "", "", f"{message}: find out who wrote there, and then delete the item")
            raise SourceError(f"{message}: find out who wrote there, and put the item back from a backup") from None

    # --- writing ------------------------------------------------------------------------------------------------------
    def write(self, operation: ask.WriteDocument) -> Calls[bool]:
        """Put an item on its condition."""
        item = _item_key(operation.key) | {_BODY: {"S": operation.body}, _VERSION: {"S": operation.version}}
        reply = yield self._conditional("put_item", operation.seen, Item=item)
        return not isinstance(reply, Refusal)

    def delete(self, operation: ask.Delete) -> Calls[bool]:
        """Delete an item on its condition."""
        reply = yield self._conditional("delete_item", operation.seen, Key=_item_key(operation.key))
        return not isinstance(reply, Refusal)

    def create_counter(self, operation: ask.CreateCounter) -> Calls[None]:
        """Put an item that has reached 0."""
        yield self._conditional("put_item", None, Item=_item_key(operation.key) | {_REACHED: {"N": "0"}})

    def increment(self, operation: ask.Increment) -> Calls[int | None]:
        """Have DynamoDB add one."""
        arguments = {
            "TableName": self._table,
            "Key": _item_key(operation.key),
            "UpdateExpression": f"ADD {_REACHED} :one",
            # ADD alone would make a lost counter anew, and issue all tokens a second time.
            "ConditionExpression": f"attribute_exists({_REACHED})",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
            "ReturnValues": "UPDATED_NEW",
        }
        reply = yield Call("update_item", arguments, _FAILED)
        return None if isinstance(reply, Refusal) else int(reply["Attributes"][_REACHED]["N"])

    def _conditional(self, operation: str, seen: str | None, **arguments: Any) -> Call:
        condition: dict[str, Any] = {"ConditionExpression": _IS_NEW}
        if seen is not None:
            condition = {"ConditionExpression": _IS_SEEN, "ExpressionAttributeValues": {":seen": {"S": seen}}}
        return Call(operation, {"TableName": self._table, **arguments, **condition}, _FAILED)


def _item_key(key: Key) -> dict[str, Any]:
    return {PARTITION: {"S": key.kind}, SORT: {"S": key.name}}
