"""The guard of resources in an S3 bucket: one manifest for each resource, which has the mark and names what counts.

Promise: the constructor opens nothing; all connections of one guard share their clients. S3 itself refuses nobody who
writes past the guard: the bucket's policy has to, and `examine` reports where none does. `prove` refuses a server that
does not keep the conditions of writes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from fencelock.model import Finding
from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.aws.url import parse_s3_url
from fencelock.stores.optimistic.connection import AsyncOptimisticConnection, OptimisticConnection
from fencelock.stores.s3.connection.client import S3Client
from fencelock.stores.s3.guard.codec import S3GuardCodec
from fencelock.stores.s3.guard.inspection import examine
from fencelock.stores.s3.guard.manifest import MAX_KEYS, S3Layout
from fencelock.stores.s3.guard.policy import bucket_policy
from fencelock.stores.s3.guard.transactions import AsyncS3Transaction, S3Transaction
from fencelock.stores.s3.probe import new_probe, prove


class S3Guard:
    """A guarded part of a bucket."""

    capabilities = GuardCapabilities(
        enforced_by="policy",
        speaks_asyncio=True,
        spans_resources=False,
        keeps_open=False,
        first_seal_creates=False,
        max_writes=MAX_KEYS,
    )

    def __init__(self, url: str) -> None:
        self.info = parse_s3_url(url)
        self.url = self.info.url
        self.bucket = self.info.target
        self.layout = S3Layout(self.info.folder)
        self.client = S3Client(self.info)

    def connect(self) -> OptimisticConnection[S3GuardCodec]:
        """Return a connection for the caller's thread."""
        return OptimisticConnection(self._codec(S3Transaction), self.client.sender())

    def connect_async(self) -> AsyncOptimisticConnection[S3GuardCodec]:
        """Return a connection for the running loop."""
        return AsyncOptimisticConnection(self._codec(AsyncS3Transaction), self.client.sender_async())

    def _codec(self, transaction_type: Callable[..., Any]) -> S3GuardCodec:
        make_work = partial(transaction_type, self.client, self.bucket, self.layout)
        return S3GuardCodec(self.url, self.bucket, self.layout, make_work)

    def install(self) -> None:
        """Do nothing: the bucket is the user's, and `protect` creates a resource's manifest."""

    def prove(self) -> None:
        """Raise UnsupportedError unless the server keeps the conditions of writes."""
        self.client.run(prove(self.url, self.bucket, new_probe(self.layout.prefix)))

    def policy(self, resource: str, lock: str, *roles: str) -> str:
        """Return the command that lets these roles alone write one resource, and manifests on a condition only."""
        return bucket_policy(self.info, self.layout, resource, lock, roles)

    def examine(self) -> list[Finding]:
        """Report a server that breaks its conditions, rules that delete objects, and missing access control."""
        return examine(self.url, self.bucket, self.layout, self.client.run)
