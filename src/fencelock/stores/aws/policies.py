"""The policies of IAM that are printed: a role has one for each source and each guarded resource that it uses.

Promise: pure. One source or resource always has one name, so its policy replaces its own former one, and no other.
Never: a credential, or anything sent to AWS.
"""

import json
import shlex
from hashlib import sha256
from typing import Any

from fencelock.stores.aws.url import AwsConnectionInfo

_MAX_CHARACTERS = 128
_DIGEST_CHARACTERS = 16


_PLAIN = str.maketrans({character: f"${{{character}}}" for character in "*?$"})
"""What stands for something else in the name of a resource, as IAM writes it where it is meant itself."""


def plain(name: str) -> str:
    """Return a part of a resource's name in which no character stands for others."""
    return name.translate(_PLAIN)


def policy_name(kind: str, info: AwsConnectionInfo, shown: str) -> str:
    """Return a name that IAM takes, with `shown` in it, whose `%` IAM would refuse.

    It ends in a digest, because it is cut, and IAM tells no capitals apart.
    """
    shown = shown.replace("%", "+")
    digest = sha256("/".join((kind, info.region or "", info.target, shown)).encode()).hexdigest()[:_DIGEST_CHARACTERS]
    begin = f"fencelock-{kind}-{shown}"[: _MAX_CHARACTERS - len(digest) - 1]
    return f"{begin}-{digest}"


def put_role_policy(role: str, name: str, statements: list[dict[str, Any]]) -> str:
    """Return the command that gives a role a policy with these statements, in place of one with the same name."""
    document = json.dumps({"Version": "2012-10-17", "Statement": statements})
    options = {"role-name": role, "policy-name": name, "policy-document": document}
    return "aws iam put-role-policy " + " ".join(f"--{option} {shlex.quote(text)}" for option, text in options.items())


def table_arn(info: AwsConnectionInfo, table: str) -> str:
    """Return the name of a table of DynamoDB in every account; a role's policy grants nothing outside its own."""
    return f"arn:{info.partition}:dynamodb:{info.region}:*:table/{table}"


def assumed_partition(info: AwsConnectionInfo) -> tuple[str, ...]:
    """Return the line that says which ARNs a script has if the URL names no region."""
    assumed = (
        f"# The URL names no region: the ARNs are those of partition {info.partition!r}, and not of China or GovCloud."
    )
    return () if info.region else (assumed,)
