"""A holder of a lock in DynamoDB is frozen by a real SIGSTOP, and wakes when another one holds it and has read.

The lock of most sample code, an item whose owner is replaced once its time is over, has no token: its frozen holder
writes what it has computed, and loses an acknowledged write. That is the negative control.
"""

from typing import Any

import pytest

import fencelock
from tests.dynamodb.fix_dynamodb import DATA, Corner
from tests.dynamodb.fix_source import Locks
from tests.process.actors import Stage
from tests.support.guards import LOCK, RESOURCE

pytestmark = pytest.mark.process

NAIVE = """
import time, boto3
client = boto3.client("dynamodb", region_name="eu-central-1", endpoint_url={endpoint!r})
OWNER, KEY = ({{"pk": {{"S": {key!r} + name}}}} for name in ("owner", ""))

def acquire(name):
    while True:
        now = time.time()
        try:
            client.put_item(
                TableName={table!r}, Item={{**OWNER, "owner": {{"S": name}}, "until": {{"N": str(now + 0.5)}}}},
                ConditionExpression="attribute_not_exists(pk) OR #until < :now",
                ExpressionAttributeNames={{"#until": "until"}},
                ExpressionAttributeValues={{":now": {{"N": str(now)}}}},
            )
        except client.exceptions.ConditionalCheckFailedException:
            time.sleep(0.05)
        else:
            return name

def append(holder, name, between):
    found = client.get_item(TableName={table!r}, Key=KEY, ConsistentRead=True).get("Item")
    names = [] if found is None else found["names"]["L"]
    between()
    client.put_item(TableName={table!r}, Item={{**KEY, "names": {{"L": [*names, {{"S": name}}]}}}})
    return "acknowledged"
"""
OURS = """
from dataclasses import replace
locks = fencelock.connect({locks!r})
locks._store.capabilities = replace(locks._store.capabilities, ttl_min_ms=1)  # Or the test takes 5 s.
guard = fencelock.guard({url!r}, resource={resource!r}, lock={lock!r})

def acquire(name):
    return locks.lock({lock!r}, ttl=0.5, timeout=30).acquire()

def append(lease, name, between):
    try:
        with guard.transaction(lease.sequencer) as txn:
            found = txn.get({table!r}, {{"pk": {key!r}}})
            between()
            names = [] if found is None else found["names"]
            txn.put({table!r}, {{"pk": {key!r}, "names": [*names, name]}})
    except fencelock.StaleTokenError as error:
        return ["refused", error.token < error.mark, lease.is_valid]
    return "acknowledged"
"""
HOLDER = """
def between():
    say("read")
    hear()

say(append(acquire("A"), "A", between))
"""


def attack(stage: Stage, way: str) -> dict[str, Any]:
    """Return what each was told: A is frozen until B holds the lock and has read."""
    old = stage.actor(way + HOLDER)
    assert old.hear() == "read"
    old.freeze()
    told: dict[str, Any] = {}

    def wake() -> None:
        old.thaw()
        old.say()
        told["A"] = old.hear()

    namespace: dict[str, Any] = {"fencelock": fencelock}
    exec(way, namespace)  # noqa: S102 - what the actor runs, too
    told["B"] = namespace["append"](namespace["acquire"]("B"), "B", wake)
    return told


def written(way: str, corner: Corner, locks: Locks) -> str:
    """Return a way with its names filled in."""
    return way.format(
        endpoint=corner.endpoint,
        table=DATA,
        key=corner.key("list"),
        locks=locks.url,
        url=corner.url(),
        resource=RESOURCE,
        lock=LOCK,
    )


def kept(corner: Corner) -> list[str]:
    item = corner.client.get_item(TableName=DATA, Key={"pk": {"S": corner.key("list")}})["Item"]
    return [one["S"] for one in item["names"]["L"]]


def test_a_lock_without_a_token_loses_an_acknowledged_write(stage: Stage, corner: Corner, locks: Locks) -> None:
    """The negative control."""
    assert attack(stage, written(NAIVE, corner, locks)) == {"A": "acknowledged", "B": "acknowledged"}
    assert kept(corner) == ["B"], "A's write is lost"


def test_g2_a_frozen_holder_is_told_and_refused_and_nothing_is_lost(stage: Stage, corner: Corner, locks: Locks) -> None:
    guard = fencelock.guard(corner.url(), resource=RESOURCE, lock=LOCK)
    guard.install()
    guard.protect()
    told = attack(stage, written(OURS, corner, locks))
    assert told == {"A": ["refused", True, False], "B": "acknowledged"}
    assert kept(corner) == ["B"]
