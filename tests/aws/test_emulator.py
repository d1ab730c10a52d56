"""What the other tests rely on: the server here decides conditions and transactions in one step, as AWS does."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fencelock.stores.aws.clients import AwsClient, Call, Refusal
from fencelock.stores.aws.url import parse_dynamodb_url, parse_s3_url
from fencelock_lab.servers.ministack import MinistackFleet
from tests.fix_servers import fresh_name
from tests.support.helpers import DEADLINE_S

RACERS, ROUNDS = 8, 5
KEYS = [{"AttributeName": "pk", "KeyType": "HASH"}]
ATTRIBUTES = [{"AttributeName": "pk", "AttributeType": "S"}]


@pytest.fixture
def dynamodb(ministack_fleet: MinistackFleet) -> tuple[AwsClient, str]:
    table = fresh_name("table")
    client = AwsClient(parse_dynamodb_url(ministack_fleet.shared().dynamodb_url(table)), DEADLINE_S)
    options = {"KeySchema": KEYS, "AttributeDefinitions": ATTRIBUTES, "BillingMode": "PAY_PER_REQUEST"}
    client.call(Call("create_table", {"TableName": table} | options))
    return client, table


def winners(client: AwsClient, calls: list[Call]) -> int:
    """Send the calls at the same time, and return how many were not refused."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return sum(not isinstance(reply, Refusal) for reply in pool.map(client.call, calls))


def test_of_conditional_puts_at_the_same_time_one_is_done(dynamodb: tuple[AwsClient, str]) -> None:
    client, table = dynamodb
    for number in range(ROUNDS):
        item = {"pk": {"S": f"{number}"}}
        put = {"TableName": table, "Item": item, "ConditionExpression": "attribute_not_exists(pk)"}
        calls = [Call("put_item", put, frozenset({"ConditionalCheckFailedException"}))] * RACERS
        assert winners(client, calls) == 1


def test_of_transactions_at_the_same_time_one_is_done(dynamodb: tuple[AwsClient, str]) -> None:
    client, table = dynamodb
    for number in range(ROUNDS):
        puts = [
            {"TableName": table, "Item": {"pk": {"S": f"{number}/{name}"}}, "ConditionExpression": condition}
            for name, condition in (("a", "attribute_not_exists(pk)"), ("b", "attribute_not_exists(pk)"))
        ]
        transaction = {"TransactItems": [{"Put": put} for put in puts]}
        expected = frozenset({"TransactionCanceledException", "TransactionConflictException"})
        assert winners(client, [Call("transact_write_items", transaction, expected)] * RACERS) == 1


def test_of_conditional_objects_at_the_same_time_one_is_stored(ministack_fleet: MinistackFleet) -> None:
    bucket = fresh_name("bucket").replace("_", "-")
    client = AwsClient(parse_s3_url(ministack_fleet.shared().s3_url(bucket)), DEADLINE_S)
    client.call(Call("create_bucket", {"Bucket": bucket}))
    for number in range(ROUNDS):
        put = {"Bucket": bucket, "Key": f"{number}", "Body": b"text", "IfNoneMatch": "*"}
        assert winners(client, [Call("put_object", put, frozenset({"PreconditionFailed"}))] * RACERS) == 1
