"""The bucket policy that keeps roles to their resources, and writes to conditions, as a command of the AWS CLI.

Promise: with it nobody replaces a manifest, or an object that a manifest names, without a condition, from whatever
program or console; and nobody deletes a manifest. Roles other than those named write no object of the resource.
Never: anything sent to S3.
"""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from fencelock.stores.aws.policies import assumed_partition, plain
from fencelock.stores.aws.url import AwsConnectionInfo
from fencelock.stores.encoding import RESERVED
from fencelock.stores.s3.guard.manifest import S3Layout

_BLINDLY = {
    "Null": {"s3:if-match": "true", "s3:if-none-match": "true"},
    "Bool": {"s3:ObjectCreationOperation": "true"},
}
"""A request that creates an object and has no condition; the parts of an upload in several parts have none."""


def bucket_policy(info: AwsConnectionInfo, layout: S3Layout, resource: str, lock: str, roles: Sequence[str]) -> str:
    """Return the commands that let these roles write one resource, and nobody anything without a condition."""
    policy = {"Version": "2012-10-17", "Statement": _statements(info, layout, resource, roles)}
    named, bucket = ", ".join(map(repr, roles)), shlex.quote(info.target)
    return "\n".join(
        (
            f"# roles {named} may write resource {resource!r} of lock {lock!r}, on a condition only",
            "# This replaces the policy of the bucket: keep the statements that it has, and those of other resources.",
            *assumed_partition(info),
            f"aws s3api put-bucket-policy --bucket {bucket} --policy {shlex.quote(json.dumps(policy))}",
            f"# FencelockWriters refuses operators too, unless their role is among {named}: name it by --roles.",
            "# Who restores or removes a manifest takes the statement FencelockKeepManifests out before.",
        )
    )


def _statements(info: AwsConnectionInfo, layout: S3Layout, resource: str, roles: Sequence[str]) -> list[dict[str, Any]]:
    bucket = f"arn:{info.partition}:s3:::{info.target}"
    everywhere, here = f"{bucket}/{plain(layout.prefix)}*", f"{bucket}/{plain(layout.folder(resource))}*"
    manifests = f"{bucket}/{plain(layout.prefix)}*/{RESERVED}/manifest"
    theirs = {"ArnNotLike": {"aws:PrincipalArn": [_arn(info, role) for role in roles]}}
    return [
        _denial("FencelockConditions", ["s3:PutObject"], everywhere, _BLINDLY),
        _denial("FencelockKeepManifests", ["s3:DeleteObject", "s3:DeleteObjectVersion"], manifests),
        _denial("FencelockWriters", ["s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"], here, theirs),
    ]


def _denial(name: str, actions: list[str], where: str, condition: dict[str, Any] | None = None) -> dict[str, Any]:
    denial: dict[str, Any] = {"Sid": name, "Effect": "Deny", "Principal": "*", "Action": actions, "Resource": where}
    return denial if condition is None else {**denial, "Condition": condition}


def _arn(info: AwsConnectionInfo, role: str) -> str:
    return role if role.startswith("arn:") else f"arn:{info.partition}:iam::*:role/{role}"
