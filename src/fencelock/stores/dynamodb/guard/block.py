"""What `guard.transaction(lease)` yields at DynamoDB: reads at once, all writes in one transaction at the block's end.

Promise: every read is strongly consistent, so it is later than the seal. The transaction checks the marks, and each
condition that the block has set, in the step that writes. Nothing is sent of a block that is larger than DynamoDB
takes. What a block has read is not compared by itself, for DynamoDB's items have no version: only the marks are, so no
other lease can have written there through a guard; `compare=` adds attributes, for blocks of the same lease.
Never: a write before the end of the block; a read of what the block itself has written.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from fencelock.errors import ConfigError, GuardError
from fencelock.protocol.generators import run_generator, run_generator_async
from fencelock.stores.aws.clients import Calls
from fencelock.stores.dynamodb.guard.items import (
    Attributes,
    Expression,
    ItemAction,
    checked_table,
    decode_attributes,
    encode_attributes,
    exists,
    given_expression,
    is_equal,
    is_missing,
    item_id,
    merged,
    shown_key,
)
from fencelock.stores.dynamodb.guard.transaction import transact
from fencelock.stores.dynamodb.requests import get_items, read, read_pages
from fencelock.stores.dynamodb.table import DynamoTables
from fencelock.stores.optimistic.write_buffer import WriteBuffer, unstored_error

Item = dict[str, Any]
"""An item's attributes by their names."""


class DynamoWriteBuffer(WriteBuffer):
    """The reads and writes that both kinds of transactions collect."""

    def __init__(self, tables: DynamoTables, marks: Iterable[ItemAction]) -> None:
        super().__init__()
        self._tables = tables
        self._actions = list(marks)
        """What the block's transaction does, the guard's own part first."""
        self._written: set[str] = set()
        """The tables that the block has written to."""

    def __repr__(self) -> str:
        writes = sum(action.write is not None for action in self._actions)
        return f"<{type(self).__name__}: {writes} writes>"

    # --- writes -------------------------------------------------------------------------------------------------------
    def put(
        self,
        table: str,
        item: Mapping[str, Any],
        *,
        condition: str | None = None,
        values: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Write an item at the end of the block, in the place of one with the same key.

        With a condition, of which `values` and `names` are the placeholders, the block is refused unless it holds then.
        """
        found = encode_attributes(item, "an item")
        expressions = [] if condition is None else [(condition, None)]
        self._write("Put", table, found, expressions, names, values, item=found)

    def update(
        self,
        table: str,
        key: Mapping[str, Any],
        expression: str,
        values: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
        *,
        condition: str | None = None,
    ) -> None:
        """Change an item at the end of the block by an update expression of DynamoDB, as `SET balance = balance - :n`.

        An item that does not exist is created, unless the condition says otherwise.
        """
        found = encode_attributes(key, "a key")
        self._write("Update", table, found, [(condition, expression)], names, values)

    def delete(
        self,
        table: str,
        key: Mapping[str, Any],
        *,
        condition: str | None = None,
        values: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Delete an item at the end of the block, if it exists."""
        found = encode_attributes(key, "a key")
        expressions = [] if condition is None else [(condition, None)]
        self._write("Delete", table, found, expressions, names, values)

    def check(
        self,
        table: str,
        key: Mapping[str, Any],
        condition: str,
        values: Mapping[str, Any] | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Refuse the block unless a condition expression about this item holds at its end."""
        found = encode_attributes(key, "a key")
        action = self._action(table, found, [(condition, None)], names, values)
        self._actions.append(action)

    def _write(
        self,
        kind: str,
        table: str,
        key: Attributes,
        expressions: Sequence[tuple[str | None, str | None]],
        names: Mapping[str, str] | None,
        values: Mapping[str, Any] | None,
        item: Attributes | None = None,
    ) -> None:
        action = self._action(table, key, expressions, names, values)
        action.write, action.item = kind, item
        self._actions.append(action)
        self._written.add(table)

    def _action(
        self,
        table: str,
        key: Attributes,
        expressions: Sequence[tuple[str | None, str | None]],
        names: Mapping[str, str] | None,
        values: Mapping[str, Any] | None,
    ) -> ItemAction:
        table = self._checked_table(table)
        if not expressions and (names or values):
            raise ConfigError("names and values are the placeholders of a condition: give the condition too")
        failure = f"the block's own condition on item {shown_key(key)} of table {table!r} does not hold"
        found = [given_expression(condition, names, values, failure, update) for condition, update in expressions]
        return ItemAction(table, key, expressions=found)

    # --- reads --------------------------------------------------------------------------------------------------------
    def _get(self, table: str, key: Mapping[str, Any], compare: Iterable[str]) -> Calls[Item | None]:
        table, found_key = self._checked_table(table), encode_attributes(key, "a key")
        if isinstance(compare, str):
            raise ConfigError(f"compare takes the names of attributes: write compare=({compare!r},)")
        keys = (yield from self._tables.describe(table)).keys
        self._check_stored(table, found_key, keys)
        answer = yield from read("get_item", {"TableName": table, "Key": found_key, "ConsistentRead": True})
        found: Attributes | None = answer.get("Item")
        self._compare(table, found_key, found, compare)
        return None if found is None else decode_attributes(found)

    def _get_many(self, table: str, keys: Iterable[Mapping[str, Any]]) -> Calls[list[Item | None]]:
        table = self._checked_table(table)
        names = (yield from self._tables.describe(table)).keys
        asked = [encode_attributes(key, "a key") for key in keys]
        for key in asked:
            self._check_stored(table, key, names)
        asked_by_id = {item_id(table, key): key for key in asked}
        items = yield from get_items(table, list(asked_by_id.values()))
        found = {item_id(table, {name: item[name] for name in names}): item for item in items}
        seen = (found.get(item_id(table, key)) for key in asked)
        return [None if one is None else decode_attributes(one) for one in seen]

    def _query(
        self,
        table: str,
        condition: str,
        values: Mapping[str, Any],
        names: Mapping[str, str] | None,
        filter: str | None,  # noqa: A002 - DynamoDB's own word
        limit: int | None,
        is_descending: bool,
        index: str | None,
    ) -> Calls[list[Item]]:
        table = self._checked_table(table)
        if index is not None:
            raise GuardError(
                f"index {index!r} of table {table!r} may show what the table held before the seal: query the table "
                f"itself, or look in the index before the block and read in it by get_many"
            )
        yield from self._tables.describe(table)
        if table in self._written:
            raise unstored_error(f"table {table!r}")
        asked: dict[str, Any] = {
            "TableName": table,
            "KeyConditionExpression": condition,
            "ExpressionAttributeValues": encode_attributes(values, "the values of an expression"),
            "ScanIndexForward": not is_descending,
        }
        asked |= {"ExpressionAttributeNames": dict(names)} if names else {}
        asked |= {"FilterExpression": filter} if filter else {}
        items = yield from read_pages("query", asked, limit)
        return [decode_attributes(one) for one in items]

    def _compare(self, table: str, key: Attributes, found: Attributes | None, attributes: Iterable[str]) -> None:
        """Refuse the block unless these attributes of an item are at its end what they are now."""
        failure = f"what the block compares of item {shown_key(key)} of table {table!r} has changed"
        name = next(iter(key))
        expressions: list[Expression] = []
        for attribute in attributes:
            value = (found or {}).get(attribute)
            compared = is_missing(attribute, failure) if value is None else is_equal(attribute, value, failure)
            expressions.append(compared)
        if expressions:
            whole = is_missing(name, failure) if found is None else exists(name, failure)
            self._actions.append(ItemAction(table, key, expressions=[whole, *expressions]))

    def _checked_table(self, table: str) -> str:
        """Return the name of a table that blocks may use."""
        self._check_open()
        if checked_table(table) == self._tables.own:
            raise GuardError(f"table {table!r} has the guard's marks, and nothing else: use another table for data")
        return table

    def _check_stored(self, table: str, key: Attributes, names: tuple[str, ...]) -> None:
        """Raise GuardError if the block has written this item, or ConfigError if the key is not the table's."""
        wanted = ItemAction(table, key)
        (wanted,) = merged([wanted], {table: names})
        keys = (one.key for one in self._actions if one.write is not None and one.table == table)
        written = {item_id(table, {name: one[name] for name in names if name in one}) for one in keys}
        if item_id(table, wanted.key) in written:
            raise unstored_error(f"item {shown_key(key)} of table {table!r}")

    # --- the guard's own ----------------------------------------------------------------------------------------------
    def keep(self, action: ItemAction) -> None:
        """Add what the transaction does with an item of the guard's own."""
        self._actions.append(action)

    def commit(self) -> Calls[None]:
        """Write the block; ConflictError if a condition does not hold."""
        for table in dict.fromkeys(action.table for action in self._actions):
            yield from self._tables.describe(table)
        keys = {table: known.keys for table, known in self._tables.known.items()}
        yield from transact(merged(self._actions, keys))


class DynamoTransaction(DynamoWriteBuffer):
    """One guarded block's reads and writes, in the caller's thread. One thread at a time.

    Keys and items are mappings of names to values, as boto3's resources take them: numbers are int or Decimal, and
    Decimal when they are read. Expressions are DynamoDB's own. Items of every table of the guard's account and region
    may be written, but for the guard's own table; one block writes and checks at most 100 items, its marks included.
    """

    def __init__(self, send: Callable[[Any], Any], *args: Any) -> None:
        super().__init__(*args)
        self._send = send

    def get(self, table: str, key: Mapping[str, Any], *, compare: Iterable[str] = ()) -> Item | None:
        """Return an item; None if it does not exist.

        `compare` names attributes that must be the same at the end of the block, or the block is refused.
        """
        return run_generator(self._get(table, key, compare), self._send)

    def get_many(self, table: str, keys: Iterable[Mapping[str, Any]]) -> list[Item | None]:
        """Return the items with these keys, in their order; None for each that does not exist."""
        return run_generator(self._get_many(table, keys), self._send)

    def query(
        self,
        table: str,
        condition: str,
        values: Mapping[str, Any],
        names: Mapping[str, str] | None = None,
        *,
        filter: str | None = None,  # noqa: A002 - DynamoDB's own word
        limit: int | None = None,
        is_descending: bool = False,
        index: str | None = None,
    ) -> list[Item]:
        """Return the items of one partition that meet a key condition, as `pk = :pk AND begins_with(sk, :month)`.

        All of them, from all pages, or the first `limit`. An `index` is refused: it may be older than the seal.
        """
        asked = (table, condition, values, names, filter, limit, is_descending, index)
        return run_generator(self._query(*asked), self._send)


class AsyncDynamoTransaction(DynamoWriteBuffer):
    """The same for a task: reads are awaited; writes are not, because they are kept until the end of the block."""

    def __init__(self, send: Callable[[Any], Awaitable[Any]], *args: Any) -> None:
        super().__init__(*args)
        self._send = send

    async def get(self, table: str, key: Mapping[str, Any], *, compare: Iterable[str] = ()) -> Item | None:
        """Return an item; None if it does not exist.

        `compare` names attributes that must be the same at the end of the block, or the block is refused.
        """
        return await run_generator_async(self._get(table, key, compare), self._send)

    async def get_many(self, table: str, keys: Iterable[Mapping[str, Any]]) -> list[Item | None]:
        """Return the items with these keys, in their order; None for each that does not exist."""
        return await run_generator_async(self._get_many(table, keys), self._send)

    async def query(
        self,
        table: str,
        condition: str,
        values: Mapping[str, Any],
        names: Mapping[str, str] | None = None,
        *,
        filter: str | None = None,  # noqa: A002 - DynamoDB's own word
        limit: int | None = None,
        is_descending: bool = False,
        index: str | None = None,
    ) -> list[Item]:
        """Return the items of one partition that meet a key condition, as `pk = :pk AND begins_with(sk, :month)`.

        All of them, from all pages, or the first `limit`. An `index` is refused: it may be older than the seal.
        """
        asked = (table, condition, values, names, filter, limit, is_descending, index)
        return await run_generator_async(self._query(*asked), self._send)
