"""What S3 has beside the guard: reading a resource without a lease, and deleting objects that it needs no more.

    fencelock.s3.snapshot("s3://bucket/reports", "daily").get("totals.json")
    fencelock.s3.collect("s3://bucket/reports", "daily", older_than=3600)

Promise: neither needs a lease, or disturbs one. Needs the extra `fencelock[aws]`.
"""

from fencelock._api.durations import Duration
from fencelock._api.purging import checked_ms
from fencelock._install import install_extra
from fencelock.errors import MissingDependencyError
from fencelock.model import check_resource_name

try:
    from fencelock.stores.s3.guard.garbage import collect as collect_objects
    from fencelock.stores.s3.guard.snapshot import Snapshot as Snapshot  # noqa: PLC0414 - offered here
    from fencelock.stores.s3.guard.store import S3Guard
except ModuleNotFoundError as error:
    raise MissingDependencyError(
        f"fencelock.s3 needs boto3, and {error.name} is not installed: {install_extra('aws')}"
    ) from None

__all__ = ["Snapshot", "collect", "snapshot"]


def snapshot(url: str, resource: str) -> Snapshot:
    """Return what a resource at `url` consists of now, from one read of its manifest.

    A resource without a manifest has no keys. SchemaError if something else is in the manifest's place.
    """
    store = S3Guard(url)
    loaded = store.client.run(store.connect().codec.load(check_resource_name(resource)))
    return Snapshot(store, resource, loaded.manifest)


def collect(url: str, resource: str, *, older_than: Duration) -> int:
    """Delete the objects of a resource that no key has any more, and return how many there were.

    What was replaced or deleted less than `older_than` ago stays, seconds or a timedelta: readers may be reading it.
    So does what the latest holder has uploaded and no key has had. Uploads of earlier holders that never counted go at
    once: they cannot count any more. Needs no lease, and may run at any time. GuardError if the resource has no mark.
    """
    store = S3Guard(url)
    asking = collect_objects(store.connect().codec, store.url, check_resource_name(resource), checked_ms(older_than))
    count: int = store.client.run(asking)
    return count
