"""The IAM policies that keep each application to what is its own, as commands of the AWS command line.

Promise: a shell script that may run again. A role of a source may take, renew and release locks, but writes neither the
source's record, from which every token is computed, nor deletes anything.
Never: a credential, or anything sent to AWS.
"""

from typing import Any

from fencelock.stores.aws.policies import policy_name, put_role_policy, table_arn
from fencelock.stores.aws.url import AwsConnectionInfo
from fencelock.stores.document.operations import COUNTER, LOCK

_READS = ("DescribeTable", "DescribeTimeToLive", "BatchGetItem", "Query")


def source_policy(info: AwsConnectionInfo, role: str) -> str:
    """Return the commands that let a role take, renew and release every lock of a source."""
    statements = [
        _allow(info, _READS),
        _allow(info, ("PutItem",), LOCK),
        _allow(info, ("UpdateItem",), COUNTER),
    ]
    return "\n".join(
        [
            f"# role {role!r} may take and release locks, and may not change the source's record",
            put_role_policy(role, policy_name("source", info, info.target), statements),
            "# Operators, who install, purge and raise the epoch, need every right on the table.",
        ]
    )


def _allow(info: AwsConnectionInfo, actions: tuple[str, ...], partition: str | None = None) -> dict[str, Any]:
    statement: dict[str, Any] = {
        "Effect": "Allow",
        "Action": [f"dynamodb:{action}" for action in actions],
        "Resource": table_arn(info, info.target),
    }
    if partition is not None:
        # `ForAllValues` holds of a request without keys, too.
        statement["Condition"] = {
            "ForAllValues:StringEquals": {"dynamodb:LeadingKeys": [partition]},
            "Null": {"dynamodb:LeadingKeys": "false"},
        }
    return statement
