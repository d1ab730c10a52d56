"""Items, keys and expressions of DynamoDB: what users hand over, as the requests carry it.

Promise: pure. Values are what boto3's own serializer takes (numbers are Decimal or int), and what it refuses is a
ConfigError. Several expressions about one item become one, and none of their placeholders meets another's.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import Any, NamedTuple

from boto3.dynamodb.types import TypeDeserializer, TypeSerializer

from fencelock.errors import ConfigError
from fencelock.stores.aws.url import TABLE_NAME
from fencelock.stores.encoding import shorten

Attributes = dict[str, Any]
"""An item, or a part of one, as the requests carry it: each value with the name of its type."""
ItemId = tuple[str, tuple[tuple[str, str], ...]]
"""A table and the key of an item in it, so that equal keys are equal."""

_serialize = TypeSerializer().serialize
_deserialize = TypeDeserializer().deserialize
_PLACEHOLDER = re.compile(r"[#:](?=\w)")
_NUMBERS = Context(prec=38)
"""As many digits as DynamoDB keeps: the thread's own context rounds to 28."""
_NESTED_BYTES, _MEMBER_BYTES = 3, 1
"""What DynamoDB counts for a list or a map, and for each of its members, beside their values."""


# --- values -----------------------------------------------------------------------------------------------------------
def checked_table(name: object) -> str:
    """Return the name of a table; ConfigError if it cannot be one."""
    if not isinstance(name, str) or not TABLE_NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not the name of a table of DynamoDB: letters, digits, _, - and ., 3 to 255 of them"
        )
    return name


def encode_attributes(given: object, what: str) -> Attributes:
    """Return attributes as requests carry them; ConfigError, which names `what`, if DynamoDB cannot keep them."""
    if not isinstance(given, Mapping) or not given or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"{what} of DynamoDB must be a mapping of names to values, and not empty: {given!r}")
    try:
        return {name: _serialize(value) for name, value in given.items()}
    except (TypeError, ArithmeticError) as error:
        raise ConfigError(f"{what} of DynamoDB has a value that cannot be kept there: {error}") from error


def decode_attributes(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as users see them."""
    return {name: _deserialize(value) for name, value in found.items()}


def item_id(table: str, key: Mapping[str, Any]) -> ItemId:
    """Return which item of which table has this key."""
    return table, tuple(sorted((name, _identity(value)) for name, value in key.items()))


def _identity(value: Mapping[str, Any]) -> str:
    ((kind, found),) = value.items()
    if kind == "N":
        # DynamoDB takes 1 and 1.0 for the same key.
        return f"{kind}{Decimal(found).normalize(_NUMBERS)}"
    return f"{kind}{bytes(found) if kind == 'B' else found!r}"


def shown_key(key: Mapping[str, Any]) -> str:
    """Return a key for an error message."""
    return shorten(repr(decode_attributes(key)))


def size_of(attributes: Mapping[str, Any]) -> int:
    """Return how many bytes DynamoDB counts for these attributes, or a little more."""
    return sum(len(name.encode()) + _size_of_value(value) for name, value in attributes.items())


def _size_of_value(value: Mapping[str, Any]) -> int:
    ((kind, found),) = value.items()
    if kind == "M":
        return _NESTED_BYTES + size_of(found) + _MEMBER_BYTES * len(found)
    if kind == "L":
        return _NESTED_BYTES + sum(_size_of_value(one) + _MEMBER_BYTES for one in found)
    if kind in ("SS", "NS", "BS"):
        return sum(_size_of_scalar(one) for one in found)
    return _size_of_scalar(found)


def _size_of_scalar(found: object) -> int:
    if isinstance(found, str):
        return len(found.encode(errors="surrogatepass"))
    return len(found) if isinstance(found, bytes) else 1


# --- expressions ------------------------------------------------------------------------------------------------------
class Expression(NamedTuple):
    """A condition, an update, or both, with the placeholders that they use, and what it means if the condition fails,
    as a clause.
    """

    condition: str | None
    names: Mapping[str, str]
    values: Attributes
    failure: str
    update: str | None = None


def is_equal(attribute: str, value: Attributes, failure: str) -> Expression:
    """Return the condition that an attribute has this value."""
    return Expression("#a = :v", {"#a": attribute}, {":v": value}, failure)


def is_missing(attribute: str, failure: str) -> Expression:
    """Return the condition that an item has no such attribute; of a key's: that there is no such item."""
    return Expression("attribute_not_exists(#a)", {"#a": attribute}, {}, failure)


def exists(attribute: str, failure: str) -> Expression:
    """Return the condition that an item has such an attribute; of a key's: that there is such an item."""
    return Expression("attribute_exists(#a)", {"#a": attribute}, {}, failure)


def given_expression(
    condition: str | None,
    names: Mapping[str, str] | None,
    values: Mapping[str, Any] | None,
    failure: str,
    update: str | None = None,
) -> Expression:
    """Return an expression that users have written, whose placeholders stand for its condition and its update alike."""
    for text in (condition, update):
        if text is not None and not str(text).strip():
            raise ConfigError("an expression of DynamoDB is empty: leave it out, or write one")
    encoded = encode_attributes(values, "the values of an expression") if values else {}
    return Expression(condition, dict(names or {}), encoded, failure, update)


@dataclass(slots=True)
class ItemAction:
    """What one transaction does with one item: the conditions on it, and one write or none."""

    table: str
    key: Attributes
    write: str | None = None
    """`Put`, `Update` or `Delete`."""
    item: Attributes | None = None
    """What a Put writes."""
    expressions: list[Expression] = field(default_factory=list[Expression])
    is_mark: bool = False
    """Whether it is the guard's own mark: a value of it that is gone never comes again."""

    def entry(self) -> dict[str, Any]:
        """Return this item's part of a TransactWriteItems."""
        body: dict[str, Any] = {"TableName": self.table}
        body |= {"Key": self.key} if self.item is None else {"Item": self.item}
        conditions = []
        names: dict[str, str] = {}
        values: Attributes = {}
        for number, one in enumerate(self.expressions):
            names |= {_renamed(name, number): attribute for name, attribute in one.names.items()}
            values |= {_renamed(name, number): value for name, value in one.values.items()}
            if one.condition is not None:
                conditions.append(_renamed(one.condition, number))
            if one.update is not None:
                body["UpdateExpression"] = _renamed(one.update, number)
        if conditions:
            body["ConditionExpression"] = " AND ".join(f"({one})" for one in conditions)
        body |= {"ExpressionAttributeNames": names} if names else {}
        body |= {"ExpressionAttributeValues": values} if values else {}
        return {self.write or "ConditionCheck": body}

    def size_bytes(self) -> int:
        """Return how many bytes of the item are known before DynamoDB is asked."""
        return size_of(self.key if self.item is None else self.item) + sum(
            size_of(one.values) for one in self.expressions
        )

    def failure(self) -> str:
        """Return what it means that a condition on the item does not hold, as a clause; DynamoDB does not say which."""
        return ", or ".join(dict.fromkeys(one.failure for one in self.expressions if one.condition is not None))


def _renamed(text: str, number: int) -> str:
    """Return an expression, or a placeholder, with placeholders that belong to this number alone."""
    return _PLACEHOLDER.sub(rf"\g<0>e{number}_", text)


def merged(actions: Iterable[ItemAction], keys: Mapping[str, tuple[str, ...]]) -> list[ItemAction]:
    """Return the actions with one for each item, in the order in which each item first comes.

    `keys` has the names of each table's key attributes. A later Put or Delete replaces a former one; ConfigError if an
    item gets an update beside another write, or a key is not the table's.
    """
    found: dict[ItemId, ItemAction] = {}
    for given in actions:
        action = replace(given, key=key_in(given.table, given.key, keys[given.table]))
        if action.item is None and len(given.key) != len(action.key):
            raise _no_key(action.table, keys[action.table], given.key)
        acted_on = item_id(action.table, action.key)
        before = found.get(acted_on)
        found[acted_on] = action if before is None else _both(before, action)
    return list(found.values())


def key_in(table: str, item: Attributes, keys: tuple[str, ...]) -> Attributes:
    """Return the key of an item; ConfigError if it lacks a part of it."""
    if not all(name in item for name in keys):
        raise _no_key(table, keys, item)
    return {name: item[name] for name in keys}


def _no_key(table: str, keys: tuple[str, ...], given: Attributes) -> ConfigError:
    return ConfigError(
        f"the key of table {table!r} is {' and '.join(map(repr, keys))}, not {', '.join(map(repr, sorted(given)))}"
    )


def _both(before: ItemAction, after: ItemAction) -> ItemAction:
    if before.write and after.write and "Update" in (before.write, after.write):
        raise ConfigError(
            f"a block writes item {shown_key(before.key)} of table {before.table!r} twice, and DynamoDB takes one "
            f"write of each item: write it once"
        )
    last = after if after.write else before
    expressions = [*before.expressions, *after.expressions]
    return replace(last, expressions=expressions)
