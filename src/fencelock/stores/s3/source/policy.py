"""The IAM policy of a source at S3, as a command of the AWS command line.

Promise: a role may take, renew and release locks, by writes on a condition alone. It neither writes the source's
record, from which every token is computed, nor deletes anything, nor makes a counter.
Never: anything sent to AWS.
"""

from typing import Any

from fencelock.stores.aws.policies import assumed_partition, plain, policy_name, put_role_policy
from fencelock.stores.aws.url import AwsConnectionInfo
from fencelock.stores.encoding import RESERVED, escape_name

_REPLACES = {"Null": {"s3:if-match": "false"}}
_CREATES = {"Null": {"s3:if-none-match": "false"}}


def source_policy(info: AwsConnectionInfo, role: str) -> str:
    """Return the commands that let a role take, renew and release every lock of a source."""
    bucket = f"arn:{info.partition}:s3:::{info.target}"
    folder, shown = f"{bucket}/{plain(info.folder)}{RESERVED}", f"{info.target}/{info.folder}{RESERVED}"
    statements = [
        # For the whole bucket: otherwise S3 answers "denied" where an object is missing.
        _allow("s3:ListBucket", bucket),
        _allow("s3:GetObject", f"{folder}/*"),
        _allow("s3:PutObject", f"{folder}/locks/*", _CREATES),
        _allow("s3:PutObject", f"{folder}/locks/*", _REPLACES),
        _allow("s3:PutObject", f"{folder}/counters/*", _REPLACES),
    ]
    name = policy_name("source", info, escape_name(f"{info.target}/{info.prefix}"))
    return "\n".join(
        [
            f"# role {role!r} may take and release locks, and may not change the source's record",
            *assumed_partition(info),
            put_role_policy(role, name, statements),
            f"# Operators, who install, purge and raise the epoch, need every right behind {shown}/.",
        ]
    )


def _allow(action: str, where: str, condition: dict[str, Any] | None = None) -> dict[str, Any]:
    statement: dict[str, Any] = {"Effect": "Allow", "Action": action, "Resource": where}
    return statement if condition is None else {**statement, "Condition": condition}
