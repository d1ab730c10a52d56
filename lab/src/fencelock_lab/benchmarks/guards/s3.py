"""A guarded write in S3 against one by hand, through a manifest that is replaced by a condition, and bare PUTs.

A statement is the PUT of one object. The write by hand reads the manifest and replaces it by If-Match. It lacks: the
lock and source of the mark, names that are never written twice, the answer to a lost reply, and the refusal of keys
that changed meanwhile.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
from botocore.config import Config

import fencelock
from fencelock_lab.benchmarks.guards import BY_HAND, GUARDED, LEASE, LOCK, NO_CHECK, RESOURCE, Kind

KINDS = (
    Kind("1 writer, 1 object", batch=5),
    Kind("1 writer, 20 objects", statements=20, batch=2),
)
_MANIFEST = "plain/manifest"


def prepare(url: str) -> None:
    """Put a manifest by hand, and seal the resource."""
    _client(url).put_object(Bucket=_bucket(url), Key=_MANIFEST, Body=b"1")
    guard = _guard(url)
    guard.protect()
    guard.seal(LEASE)


def variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    """Return a write through a manifest by hand, one without, and a guarded one."""
    client, bucket, guard = _client(url), _bucket(url), _guard(url)
    names = [str(number) for number in range(kind.statements)]

    def unguarded() -> None:
        for name in names:
            client.put_object(Bucket=bucket, Key=f"plain/{name}", Body=b"x")

    def by_hand() -> None:
        found = client.get_object(Bucket=bucket, Key=_MANIFEST)
        assert found["Body"].read() == b"1"
        unguarded()
        client.put_object(Bucket=bucket, Key=_MANIFEST, Body=b"1", IfMatch=found["ETag"])

    def guarded() -> None:
        with guard.transaction(LEASE) as txn:
            for name in names:
                txn.put(name, b"x")

    return {BY_HAND: by_hand, NO_CHECK: unguarded, GUARDED: guarded}


def _client(url: str) -> Any:
    (endpoint,) = parse_qs(urlsplit(url).query)["endpoint"]
    config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)


def _bucket(url: str) -> str:
    return urlsplit(url).netloc


def _guard(url: str) -> fencelock.Guard:
    return fencelock.guard(url, resource=RESOURCE, lock=LOCK)
