"""The IAM policy that `--print-policy` prints for a source, and the names of all policies.

No server here checks one: its text is what is tested.
"""

import json
import re
import shlex
from typing import Any

import pytest

from fencelock.stores.aws.clients import Call
from fencelock.stores.document.operations import (
    COUNTER,
    LOCK,
    Delete,
    Increment,
    Key,
    Operation,
    ReadDocuments,
    ReadLocation,
    ReadLocks,
    WriteDocument,
    WriteEach,
)
from fencelock.stores.dynamodb.guard.store import DynamoGuard
from fencelock.stores.dynamodb.source.documents import DynamoDocuments
from fencelock.stores.dynamodb.source.store import DynamoDBSource
from fencelock.stores.together import Together

WRITE = WriteDocument(Key(LOCK, "a"), "{}", "2", "1")
OF_WORKERS: list[tuple[Operation, str]] = [
    (ReadDocuments((Key(LOCK, "a"),)), "BatchGetItem"),
    (ReadLocks("", 1), "Query"),
    (ReadLocation(), "DescribeTable"),
    (WRITE, "PutItem"),
    (WriteEach((WRITE,)), "PutItem"),
    (Increment(Key(COUNTER, "h")), "UpdateItem"),
]
OF_OPERATORS = [(Delete(Key(LOCK, "a"), "1"), "DeleteItem")]


def statements(url: str = "dynamodb://eu-central-1/locks") -> list[dict[str, Any]]:
    lines = DynamoDBSource(url).policy("app role").splitlines()
    (command,) = [line for line in lines if not line.startswith("#")]
    words = shlex.split(command)
    assert words[:3] == ["aws", "iam", "put-role-policy"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options["--role-name"] == "app role"
    found: list[dict[str, Any]] = json.loads(options["--policy-document"])["Statement"]
    return found


@pytest.mark.parametrize(("operation", "right"), OF_WORKERS)
def test_a_worker_may_do_what_a_worker_does(operation: Operation, right: str) -> None:
    assert any(f"dynamodb:{right}" in statement["Action"] for statement in statements())
    step = next(DynamoDocuments("locks", "").perform(operation))
    call = next(step.runs[0]) if isinstance(step, Together) else step
    assert isinstance(call, Call)
    assert call.operation.replace("_", "") == right.lower()


def test_a_worker_deletes_nothing_and_writes_locks_and_counts_alone() -> None:
    writes = [statement for statement in statements() if "Condition" in statement]
    partitions = {
        action: statement["Condition"]["ForAllValues:StringEquals"]["dynamodb:LeadingKeys"]
        for statement in writes
        for action in statement["Action"]
    }
    assert partitions == {"dynamodb:PutItem": [LOCK], "dynamodb:UpdateItem": [COUNTER]}
    assert all(statement["Condition"]["Null"] == {"dynamodb:LeadingKeys": "false"} for statement in writes)
    rights = {action for statement in statements() for action in statement["Action"]}
    assert not rights & {f"dynamodb:{right}" for _, right in OF_OPERATORS}


@pytest.mark.parametrize(
    ("region", "arn"),
    [
        ("eu-central-1", "arn:aws:dynamodb:eu-central-1:*:table/locks"),
        ("cn-north-1", "arn:aws-cn:dynamodb:cn-north-1:*:table/locks"),
        ("us-gov-west-1", "arn:aws-us-gov:dynamodb:us-gov-west-1:*:table/locks"),
    ],
)
def test_the_table_is_named_as_iam_knows_it(region: str, arn: str) -> None:
    assert {statement["Resource"] for statement in statements(f"dynamodb://{region}/locks")} == {arn}


def test_each_source_and_each_resource_has_a_policy_of_its_own() -> None:
    """A role has one policy of a name, whatever capitals it has: the next one would replace it."""
    long = "x" * 130
    tables = ["dynamodb://eu-central-1/locks", "dynamodb://us-east-1/locks", "dynamodb://eu-central-1/Locks"]
    tables += [f"dynamodb://eu-central-1/{long}{end}" for end in "ab"]
    scripts = [DynamoDBSource(url).policy("app") for url in tables]
    for resource in ("source-locks", "daily", "Daily", "a/b", f"{long}a", f"{long}b"):
        scripts += [DynamoGuard(url).policy(resource, "a lock", "app") for url in tables[:2]]
    names = [re.findall(r"--policy-name (\S+)", script) for script in scripts]
    assert all(re.fullmatch(r"[A-Za-z0-9_+=,.@-]{1,128}", name) for (name,) in names)
    assert len({name.lower() for (name,) in names}) == len(scripts)
    assert scripts[0] == DynamoDBSource(tables[0]).policy("app")
