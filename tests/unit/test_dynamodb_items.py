"""How items, keys and expressions are spelled for DynamoDB, without a server."""

from decimal import Decimal
from typing import Any

import pytest

from fencelock import ConfigError
from fencelock.stores.dynamodb.guard.items import (
    ItemAction,
    checked_table,
    decode_attributes,
    encode_attributes,
    given_expression,
    is_equal,
    item_id,
    merged,
    size_of,
)

KEYS = {"data": ("pk",), "sorted": ("pk", "sk")}


def test_values_come_back_as_boto3_gives_them() -> None:
    item = {"pk": "a", "n": Decimal("1.5"), "none": None, "yes": True, "list": [1, {"b": b"\xff"}], "set": {"x"}}
    found = decode_attributes(encode_attributes(item, "an item"))
    assert found == item | {"n": Decimal("1.5"), "list": [Decimal(1), {"b": b"\xff"}]}


@pytest.mark.parametrize(
    "wrong",
    [None, {}, [1], {"pk": 1.5}, {"pk": object()}, {1: "a"}, {"pk": Decimal("NaN")}, {"n": Decimal("1." + "3" * 40)}],
)
def test_what_dynamodb_cannot_keep_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="an item of DynamoDB"):
        encode_attributes(wrong, "an item")


@pytest.mark.parametrize("wrong", ["", "ab", "a/b", "arn:aws:dynamodb:eu-central-1:1:table/data", None, "x" * 256])
def test_a_table_is_named_by_its_name(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="is not the name of a table"):
        checked_table(wrong)


def test_equal_keys_are_equal_however_they_are_written() -> None:
    keys: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"b": "x", "a": Decimal("1.0")}]
    first, second = (item_id("data", encode_attributes(key, "a key")) for key in keys)
    assert first == second
    assert first != item_id("other", encode_attributes(keys[0], "a key"))
    assert item_id("t", {"a": {"S": "1"}}) != item_id("t", {"a": {"N": "1"}})


def test_conditions_of_one_item_become_one_and_keep_their_placeholders_apart() -> None:
    key = {"pk": {"S": "a"}}
    compared = ItemAction("data", key, expressions=[is_equal("balance", {"N": "5"}, "the balance has changed")])
    update = given_expression("#a < :v", {"#a": "limit"}, {":v": 9}, "its own condition", "SET #a = :v")
    (found,) = merged([compared, ItemAction("data", key, "Update", expressions=[update])], KEYS)
    assert found.entry() == {
        "Update": {
            "TableName": "data",
            "Key": key,
            "UpdateExpression": "SET #e1_a = :e1_v",
            "ConditionExpression": "(#e0_a = :e0_v) AND (#e1_a < :e1_v)",
            "ExpressionAttributeNames": {"#e0_a": "balance", "#e1_a": "limit"},
            "ExpressionAttributeValues": {":e0_v": {"N": "5"}, ":e1_v": {"N": "9"}},
        }
    }
    assert found.failure() == "the balance has changed, or its own condition"


def test_the_last_put_or_delete_of_an_item_counts() -> None:
    item = encode_attributes({"pk": "a", "sk": 1, "v": "x"}, "an item")
    key = encode_attributes({"sk": Decimal("1.0"), "pk": "a"}, "a key")
    put, delete = ItemAction("sorted", item, "Put", item), ItemAction("sorted", key, "Delete")
    assert [one.entry() for one in merged([put, delete], KEYS)] == [{"Delete": {"TableName": "sorted", "Key": key}}]
    assert [one.entry() for one in merged([delete, put], KEYS)] == [{"Put": {"TableName": "sorted", "Item": item}}]
    update = ItemAction("sorted", key, "Update", expressions=[given_expression(None, None, None, "", "REMOVE v")])
    for actions in ([put, update], [update, delete], [update, update]):
        with pytest.raises(ConfigError, match="twice, and DynamoDB takes one write"):
            merged(actions, KEYS)


@pytest.mark.parametrize("key", [{"id": "a"}, {"pk": "a", "more": 1}])
def test_a_key_is_the_tables(key: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="the key of table 'data' is 'pk', not"):
        merged([ItemAction("data", encode_attributes(key, "a key"), "Delete")], KEYS)


def test_an_expression_says_something() -> None:
    for wrong in ("", " "):
        with pytest.raises(ConfigError, match="is empty"):
            given_expression(wrong, None, None, "")


def test_sizes_are_those_that_dynamodb_counts() -> None:
    item = {"name": "ü", "bytes": b"123", "yes": True, "set": {"ab", "c"}}
    assert size_of(encode_attributes(item, "an item")) == (4 + 2) + (5 + 3) + (3 + 1) + (3 + 3)
