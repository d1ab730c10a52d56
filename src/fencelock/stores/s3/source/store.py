"""The source of tokens in an S3 bucket: the source in documents, over the clients of AWS.

Promise: the constructor opens nothing. A server that ignores conditions is refused before anything is installed there.
Leases are dated by the headers of S3's replies, to the second; no condition reads a clock.
Never: a bucket made or changed. A copy of the objects is not noticed: an operator raises the epoch.
"""

from dataclasses import replace
from typing import Any

from fencelock.errors import ConfigError, FencelockError
from fencelock.model import Finding
from fencelock.stores.aws.documents import AwsDocumentSource
from fencelock.stores.aws.url import parse_s3_url
from fencelock.stores.encoding import RESERVED
from fencelock.stores.errors import refused_finding
from fencelock.stores.s3.connection.calls import has_expiry, is_replicated, keeps_versions
from fencelock.stores.s3.connection.client import S3Client
from fencelock.stores.s3.probe import examine_races, new_probe, prove
from fencelock.stores.s3.source.documents import S3Documents
from fencelock.stores.s3.source.policy import source_policy

LONGEST_WAIT_MS = 1000
"""The longest sleep of a waiter between two polls: each is two requests that are paid for."""
MAX_PREFIX_BYTES = 300
"""S3 takes names of 1024 bytes, and a lock's path has up to 706 of them."""


class S3Source(AwsDocumentSource):
    """A source of tokens behind one prefix. The constructor opens nothing."""

    capabilities = replace(AwsDocumentSource.capabilities, ttl_min_ms=10_000)

    def __init__(self, url: str, **options: Any) -> None:
        info = parse_s3_url(url)
        if (size_bytes := len(info.prefix.encode())) > MAX_PREFIX_BYTES:
            raise ConfigError(
                f"the prefix of a source at S3 has {MAX_PREFIX_BYTES} bytes at most, and this one {size_bytes}: "
                f"choose a shorter one"
            )
        super().__init__(info, S3Documents(info), **{"longest_wait_ms": LONGEST_WAIT_MS} | options)
        self.client = S3Client(info)

    def create_location(self) -> None:
        """Refuse a server that does not keep the conditions of writes; the bucket is the user's."""
        self.client.run(prove(self.url, self.info.target, new_probe(self.info.folder)))

    def examine_location(self) -> list[Finding]:
        """Report a server that breaks its conditions, and rules of the bucket that touch the locks."""
        bucket, folder = self.info.target, self.info.folder
        own = f"{folder}{RESERVED}/"
        found: list[Finding] = []
        checks = (has_expiry, _expires), (is_replicated, _is_replicated), (keeps_versions, _keeps_versions)
        try:
            self.create_location()
            found += examine_races(self.url, self.client.run, bucket, folder)
            found += [finding(self.url) for is_so, finding in checks if self.client.run(is_so(bucket, own))]
        except FencelockError as error:
            found.append(refused_finding("source-refused", error))
        return found

    def policy(self, *roles: str) -> str:
        """Return the commands that let these roles take locks, and no more."""
        return "\n".join(source_policy(self.info, role) for role in roles)


def _expires(url: str) -> Finding:
    return Finding(
        "objects-expire",
        f"{url}: a lifecycle rule of the bucket deletes objects there by their age, locks and the counter of tokens",
        "limit the rule to other prefixes, or to noncurrent versions",
    )


def _is_replicated(url: str) -> Finding:
    return Finding(
        "objects-replicated",
        f"{url}: the bucket copies the locks to another bucket. A copy that is used as a source issues tokens twice, "
        f"and a copy that comes back overwrites locks without a condition",
        "limit the replication to other prefixes",
    )


def _keeps_versions(url: str) -> Finding:
    return Finding(
        "versions-kept",
        f"{url}: the bucket keeps each former version of an object, so each renewal of a lease leaves one to be paid "
        f"for",
        "add a lifecycle rule for this prefix that deletes noncurrent versions after a day, or use a bucket without "
        "versions",
    )
