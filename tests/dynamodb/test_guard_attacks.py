"""A holder is frozen by a real SIGSTOP between its read and its write, and wakes before its successor has written.

The two usual ways lose an acknowledged write: they are the negative controls. The guard loses nothing.
"""

from typing import Any

import pytest

import fencelock
from tests.dynamodb.fix_dynamodb import DATA, Corner
from tests.process.actors import Stage
from tests.support.guards import LOCK, RESOURCE

pytestmark = pytest.mark.process

NAIVE = """
import boto3
client = boto3.client("dynamodb", region_name="eu-central-1", endpoint_url={endpoint!r})
KEY = {{"pk": {{"S": {key!r}}}}}

def read(token):
    found = client.get_item(TableName={table!r}, Key=KEY, ConsistentRead=True).get("Item")
    return [] if found is None else found["names"]["L"]

def write(token, names, name):
    try:
        client.update_item(
            TableName={table!r}, Key=KEY, UpdateExpression="SET #names = :names, fencing_token = :token",
            ConditionExpression="attribute_not_exists(fencing_token) OR fencing_token {how} :token",
            ExpressionAttributeNames={{"#names": "names"}},
            ExpressionAttributeValues={{":names": {{"L": [*names, {{"S": name}}]}}, ":token": {{"N": str(token)}}}},
        )
    except client.exceptions.ConditionalCheckFailedException:
        return "refused"
    return "acknowledged"

def append(lease, name, between):
    names = read(lease.token)
    between()
    return write(lease.token, names, name)
"""
OURS = """
guard = fencelock.guard({url!r}, resource={resource!r}, lock={lock!r})
guard.mark()  # It loads what it needs, and connects: no lease of a second has to outlive that.

def append(lease, name, between):
    try:
        with guard.transaction(lease) as txn:
            found = txn.get({table!r}, {{"pk": {key!r}}})
            between()
            names = [] if found is None else found["names"]
            txn.put({table!r}, {{"pk": {key!r}, "names": [*names, name]}})
    except fencelock.StaleTokenError:
        return "refused"
    return "acknowledged"
"""
HOLDER = """
lease = source.lock("nightly-report", ttl=1.0).acquire()

def between():
    say("read")
    hear()

say(append(lease, "A", between))
"""


class Attack:
    """Two holders that append their names to one list."""

    def __init__(self, stage: Stage, corner: Corner, way: str, how: str = "") -> None:
        self.stage = stage
        self.corner = corner
        guard = fencelock.guard(corner.url(), resource=RESOURCE, lock=LOCK)
        guard.install()
        guard.protect()
        values = {"endpoint": corner.endpoint, "url": corner.url(), "resource": RESOURCE, "lock": LOCK}
        self.way = way.format(key=corner.key("list"), table=DATA, how=how, **values)

    def run(self, *, wakes_first: bool) -> dict[str, str]:
        """Return what each was told: A is woken before its successor writes, or afterwards."""
        old = self.stage.actor(self.way + HOLDER)
        assert old.hear() == "read"
        old.freeze()
        told: dict[str, str] = {}

        def wake() -> None:
            old.thaw()
            old.say()
            told["A"] = old.hear()

        namespace: dict[str, Any] = {"fencelock": fencelock}
        exec(self.way, namespace)  # noqa: S102 - what the actor runs, too
        with fencelock.connect(self.stage.url) as source, source.lock(LOCK, timeout=20) as lease:
            told["B"] = namespace["append"](lease, "B", wake if wakes_first else lambda: None)
            if not wakes_first:
                wake()
        return told

    def lost(self, told: dict[str, str]) -> list[str]:
        """Return whose acknowledged write is not in the list."""
        item = self.corner.client.get_item(TableName=DATA, Key={"pk": {"S": self.corner.key("list")}})["Item"]
        kept = [one["S"] for one in item["names"]["L"]]
        return [name for name, answer in sorted(told.items()) if answer == "acknowledged" and name not in kept]


@pytest.mark.parametrize("how", ["<", "<="])
def test_a_token_that_is_compared_and_not_sealed_loses_an_acknowledged_write(
    stage: Stage, corner: Corner, how: str
) -> None:
    """The negative control: what the sample code does that is found for DynamoDB."""
    attack = Attack(stage, corner, NAIVE, how)
    told = attack.run(wakes_first=True)
    assert told == {"A": "acknowledged", "B": "acknowledged"}
    assert attack.lost(told) == ["A"]


@pytest.mark.parametrize("wakes_first", [True, False], ids=["before the successor's write", "after it"])
def test_g2_a_frozen_holder_is_refused_and_nothing_is_lost(stage: Stage, corner: Corner, wakes_first: bool) -> None:
    attack = Attack(stage, corner, OURS)
    told = attack.run(wakes_first=wakes_first)
    assert told == {"A": "refused", "B": "acknowledged"}
    assert attack.lost(told) == []
