"""The IAM policy that lets an application write through the guard only, as commands of Amazon's own client.

Promise: a shell script that may run again. The role may write items in transactions alone, so a plain PutItem is
refused, from any program; of the guard's table it may write one resource's mark and effects, and no other mark.
What IAM cannot see is what else is in a transaction: a program that makes one of its own, without the mark, passes.
Never: a credential, or anything sent to AWS.
"""

from typing import Any

from fencelock.stores.aws.policies import policy_name, put_role_policy, table_arn
from fencelock.stores.aws.url import AwsConnectionInfo
from fencelock.stores.dynamodb.guard.codec import FLOORS_PARTITION, partition_of
from fencelock.stores.encoding import escape_name

_WRITES = ["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:DeleteItem"]
_OTHER_WRITES = [
    "dynamodb:BatchWriteItem",
    "dynamodb:PartiQLInsert",
    "dynamodb:PartiQLUpdate",
    "dynamodb:PartiQLDelete",
]
_CHECK = "dynamodb:ConditionCheckItem"
_READS = ["dynamodb:GetItem", "dynamodb:BatchGetItem", "dynamodb:Query"]
_DESCRIBE = ["dynamodb:DescribeTable", "dynamodb:DescribeTimeToLive"]
_IN_TRANSACTION = {"dynamodb:EnclosingOperation": ["TransactWriteItems"]}
DATA_TABLE = "DATA-TABLE"
"""What stands for the name of each table of the resource, which the guard does not know."""


def guard_policy(info: AwsConnectionInfo, resource: str, lock: str, role: str) -> str:
    """Return the commands that let a role write one resource."""
    marks, data = table_arn(info, info.target), table_arn(info, DATA_TABLE)
    name = policy_name("guard", info, escape_name(resource))
    return "\n".join(
        [
            f"# role {role!r} may write resource {resource!r} of lock {lock!r} in transactions only, and no other mark",
            f"# Write the names of the resource's own tables for {DATA_TABLE}, one ARN each.",
            put_role_policy(role, name, [*_own_table(marks, resource), *_data_tables(data)]),
            f"# Operators, who move marks and read all of them, need all rights to table {info.target!r}.",
        ]
    )


def _own_table(arn: str, resource: str) -> list[dict[str, Any]]:
    mine = _leading(partition_of(resource))
    return [
        _statement("Allow", _DESCRIBE, arn),
        _statement("Allow", _READS, arn, _leading(partition_of(resource), FLOORS_PARTITION)),
        _statement("Allow", [*_WRITES, _CHECK], arn, mine | _only_in_transaction()),
        _statement("Allow", [_CHECK], arn, _leading(FLOORS_PARTITION)),
        *_nothing_alone(arn),
    ]


def _data_tables(arn: str) -> list[dict[str, Any]]:
    return [
        _statement("Allow", [*_DESCRIBE, *_READS], arn),
        _statement("Allow", [*_WRITES, _CHECK], arn, _only_in_transaction()),
        *_nothing_alone(arn),
    ]


def _nothing_alone(arn: str) -> list[dict[str, Any]]:
    """Deny writes outside of transactions, whatever the role's other policies allow."""
    alone = {"ForAllValues:StringNotEquals": _IN_TRANSACTION}
    return [_statement("Deny", _WRITES, arn, alone), _statement("Deny", _OTHER_WRITES, arn)]


def _only_in_transaction() -> dict[str, Any]:
    return {"ForAnyValue:StringEquals": _IN_TRANSACTION}


def _leading(*partitions: str) -> dict[str, Any]:
    return {"ForAllValues:StringEquals": {"dynamodb:LeadingKeys": list(partitions)}}


def _statement(effect: str, actions: list[str], arn: str, condition: dict[str, Any] | None = None) -> dict[str, Any]:
    statement: dict[str, Any] = {"Effect": effect, "Action": actions, "Resource": arn}
    return statement | ({"Condition": condition} if condition else {})
