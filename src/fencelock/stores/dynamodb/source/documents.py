"""The documents of a source as items of a table: what each operation asks DynamoDB, and what its replies mean.

An item's partition key is the document's kind, its sort key the name, so a Query lists the locks in order. A document
is the attributes `body` and `version`, a counter is `reached`. The renewals of one beat are one PutItem each: the only
batch of independent conditional writes is PartiQL's, whose UPDATE of two attributes no server here reads as the manual
writes it.

Promise: pure. Every read is strongly consistent. A request that only reads is asked twice at most, and fails
definitely, because it has done nothing.
Never: a write repeated that may have been executed; a write without a condition.
"""

from collections.abc import Callable, Generator
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from fencelock.errors import OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.stores.aws.clients import Call, Refusal
from fencelock.stores.aws.clients import Reply as AwsReply
from fencelock.stores.document import operations as ask
from fencelock.stores.document.operations import COUNTER, LOCK, Document, FoundDocuments, Key
from fencelock.stores.dynamodb.table import PARTITION, SORT

_BODY, _VERSION, _REACHED = "body", "version", "reached"
_FAILED = frozenset({"ConditionalCheckFailedException"})
_IS_NEW = f"attribute_not_exists({PARTITION})"
_IS_SEEN = f"{_VERSION} = :seen"
_MS_PER_S = 1000
MAX_ROUNDS = 10
"""So many times the rest of a read is asked for that DynamoDB has left out: a reply holds 16 MB at most."""

Result = TypeVar("Result")
Calls = Generator[Call, AwsReply, Result]
"""Yields calls, is sent their replies, and returns a Result."""


class DynamoDocuments:
    """The documents in one table."""

    def __init__(self, table: str, url: str) -> None:
        self._table = table
        self._url = url
        self._performs: dict[type, Callable[[Any], Calls[ask.Reply]]] = {
            ask.ReadDocuments: self._read,
            ask.ReadLocks: self._read_locks,
            ask.WriteDocument: self._write,
            ask.WriteEach: self._write_each,
            ask.Delete: self._delete,
            ask.CreateCounter: self._create_counter,
            ask.Increment: self._increment,
            ask.ReadPlace: self._read_place,
        }

    def perform(self, operation: ask.Operation) -> Calls[ask.Reply]:
        """Perform one operation."""
        return self._performs[type(operation)](operation)

    # --- reading ------------------------------------------------------------------------------------------------------
    def _read(self, operation: ask.ReadDocuments) -> Calls[FoundDocuments]:
        found: dict[Key, Document] = {}
        dates: list[int | None] = []
        left = [_item_key(key) for key in dict.fromkeys(operation.keys)]
        for _ in range(MAX_ROUNDS):
            wanted = {self._table: {"Keys": left, "ConsistentRead": True}}
            reply = yield from self._ask("batch_get_item", {"RequestItems": wanted})
            dates.append(_date_ms(reply))
            documents = (self._document(item) for item in reply["Responses"].get(self._table, []))
            found.update((document.key, document) for document in documents)
            left = reply.get("UnprocessedKeys", {}).get(self._table, {}).get("Keys", [])
            if not left:
                return FoundDocuments(tuple(map(found.get, operation.keys)), _earliest(dates))
        raise SourceUnavailableError(f"{self._url} leaves out a part of what it is asked for: try again")

    def _read_locks(self, operation: ask.ReadLocks) -> Calls[FoundDocuments]:
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
            dates.append(_date_ms(reply))
            found += map(self._document, reply["Items"])
            # A page ends after 1 MB, too.
            if len(found) >= operation.limit or "LastEvaluatedKey" not in reply:
                return FoundDocuments(tuple(found), _earliest(dates))
            query["ExclusiveStartKey"] = reply["LastEvaluatedKey"]

    def _read_place(self, _: ask.ReadPlace) -> Calls[str]:
        reply = yield from self._ask("describe_table", {"TableName": self._table})
        return str(reply["Table"]["TableId"])

    def _ask(self, operation: str, arguments: dict[str, Any]) -> Calls[dict[str, Any]]:
        """Ask a request that only reads: twice if need be, for an idle connection may have just ended."""
        call = Call(operation, arguments)
        try:
            try:
                reply = yield call
            except OutcomeUnknownError:
                reply = yield call
        except OutcomeUnknownError as error:
            raise SourceUnavailableError(f"{error}; the request only reads, so nothing was done. Try again") from error
        assert isinstance(reply, dict)
        return reply

    def _document(self, item: dict[str, Any]) -> Document:
        """Return the document or counter of an item; SourceError if it is neither."""
        key: Any = Key(item[PARTITION]["S"], item[SORT]["S"])
        try:
            if key.kind == COUNTER:
                return Document(key, "", item[_REACHED]["N"])
            return Document(key, item[_VERSION]["S"], item[_BODY]["S"])
        except KeyError:
            raise SourceError(
                f"{self._url}: the item {key.kind!r}, {key.name!r} of the table is not one of fencelock's: find out "
                f"who wrote there, and put the item back from a backup"
            ) from None

    # --- writing ------------------------------------------------------------------------------------------------------
    def _write(self, operation: ask.WriteDocument) -> Calls[bool]:
        item = _item_key(operation.key) | {_BODY: {"S": operation.body}, _VERSION: {"S": operation.version}}
        reply = yield self._conditional("put_item", operation.seen, Item=item)
        return not isinstance(reply, Refusal)

    def _delete(self, operation: ask.Delete) -> Calls[bool]:
        reply = yield self._conditional("delete_item", operation.seen, Key=_item_key(operation.key))
        return not isinstance(reply, Refusal)

    def _create_counter(self, operation: ask.CreateCounter) -> Calls[None]:
        yield self._conditional("put_item", None, Item=_item_key(operation.key) | {_REACHED: {"N": "0"}})

    def _increment(self, operation: ask.Increment) -> Calls[int | None]:
        arguments = {
            "TableName": self._table,
            "Key": _item_key(operation.key),
            "UpdateExpression": f"ADD {_REACHED} :one",
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

    def _write_each(self, operation: ask.WriteEach) -> Calls[tuple[bool | None, ...]]:
        """Do one write after the other, up to the first in doubt: the next beat comes soon."""
        outcomes: list[bool | None] = []
        for write in operation.writes:
            try:
                outcomes.append((yield from self._write(write)))
            except (OutcomeUnknownError, SourceUnavailableError):
                break
        return (*outcomes, *[None] * (len(operation.writes) - len(outcomes)))


def _item_key(key: Key) -> dict[str, Any]:
    return {PARTITION: {"S": key.kind}, SORT: {"S": key.name}}


def _date_ms(reply: dict[str, Any]) -> int | None:
    """Return the time of the service at which it replied; None if it did not tell."""
    date = reply["ResponseMetadata"]["HTTPHeaders"].get("date")
    try:
        return None if date is None else int(parsedate_to_datetime(date).timestamp()) * _MS_PER_S
    except ValueError:
        return None


def _earliest(dates: list[int | None]) -> int | None:
    known = [date for date in dates if date is not None]
    return min(known) if len(known) == len(dates) else None
