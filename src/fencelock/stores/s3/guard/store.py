"""The guard of resources in an S3 bucket: one manifest for each resource, which has the mark and names what counts.

Promise: the constructor opens nothing; all connections of one guard share their clients. S3 itself refuses nobody who
writes past the guard: the bucket's policy has to, and `examine` reports where none does. `prove` refuses a server that
does not keep the conditions of writes.
"""

from fencelock.errors import FencelockError
from fencelock.model import Finding
from fencelock.protocol.stores import GuardCapabilities
from fencelock.stores.aws.url import parse_s3_url
from fencelock.stores.s3.connection.calls import delete_object, has_expiry, list_folders, write_blindly
from fencelock.stores.s3.connection.client import S3Client
from fencelock.stores.s3.guard.connection import AsyncS3GuardConnection, S3GuardConnection
from fencelock.stores.s3.guard.manifest import MAX_KEYS, S3Layout
from fencelock.stores.s3.guard.probe import find_broken_races, prove
from fencelock.stores.s3.policy import bucket_policy


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
        self.layout = S3Layout(f"{self.info.prefix}/" if self.info.prefix else "")
        self.client = S3Client(self.info)

    def connect(self) -> S3GuardConnection:
        """Return a connection for the caller's thread."""
        return S3GuardConnection(self.url, self.bucket, self.layout, self.client)

    def connect_async(self) -> AsyncS3GuardConnection:
        """Return a connection for the running loop."""
        return AsyncS3GuardConnection(self.url, self.bucket, self.layout, self.client)

    def install(self) -> None:
        """Do nothing: the bucket is the user's, and `protect` creates a resource's manifest."""

    def prove(self) -> None:
        """Raise UnsupportedError unless the server keeps the conditions of writes."""
        self.client.run(prove(self.url, self.bucket, self.layout.new_probe()))

    def policy(self, resource: str, lock: str, *roles: str) -> str:
        """Return the command that lets these roles alone write one resource, and manifests on a condition only."""
        return bucket_policy(self.info, self.layout, resource, lock, roles)

    def examine(self) -> list[Finding]:
        """Report a server that breaks its conditions, rules that delete objects, and missing access control."""
        try:
            self.prove()
            self.client.run(list_folders(self.bucket, self.layout.prefix))
            broken = find_broken_races(self.client.run, self.bucket, self.layout.new_probe)
        except FencelockError as error:
            return [Finding("guard-refused", str(error), "do what the message says, then run doctor again")]
        found = [] if broken is None else [_broken_races_finding(self.url, broken)]
        if self.client.run(has_expiry(self.bucket, self.layout.prefix)):
            found.append(_expires_finding(self.url))
        return found if self._has_policy() else [*found, _open_to_all_finding(self.url)]

    def _has_policy(self) -> bool:
        """Return whether nobody can replace a manifest without a condition."""
        name = self.layout.manifest_probe
        if not self.client.run(write_blindly(self.bucket, name)):
            return True
        self.client.run(delete_object(self.bucket, name))
        return False


def _broken_races_finding(url: str, problem: str) -> Finding:
    return Finding(
        "conditions-broken",
        f"{url}: {problem}, so the server keeps the conditions of writes only as long as nobody else writes",
        "use a server that compares and writes in one step, as Amazon S3 does; ask its makers, or a newer version",
    )


def _expires_finding(url: str) -> Finding:
    return Finding(
        "objects-expire",
        f"{url}: a lifecycle rule of the bucket deletes objects there by their age, manifests and what they name alike",
        "limit the rule to other prefixes, or to noncurrent versions; fencelock.s3.collect deletes what is not needed",
    )


def _open_to_all_finding(url: str) -> Finding:
    return Finding(
        "open-to-all",
        f"{url}: whoever may write objects there may replace a manifest without a condition, with or without a token: "
        f"by itself S3 refuses nobody",
        f"put the policy on the bucket that `fencelock protect {url} --resource R --lock L --roles ROLE "
        f"--print-policy` prints",
    )
