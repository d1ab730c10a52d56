"""A guarded write in S3 against one by hand, through a manifest that is replaced by a condition, and bare PUTs.

A statement is the PUT of one object. The write by hand reads the manifest and replaces it by If-Match. It lacks: the
lock and source of the mark, names that are never written twice, the answer to a lost reply, and the refusal of keys
that changed meanwhile.

The guard's manifest remembers the objects that were replaced, for readers, until `fencelock.s3.collect` has deleted
them, and the latest 2 000 at most. So one kind writes to a manifest that is collected before each turn, and one to a
manifest that nobody has ever collected.
"""

from collections.abc import Callable

import fencelock
import fencelock.aio
import fencelock.s3
from fencelock_lab.benchmarks.guards import BY_HAND, GUARDED, LEASE, LOCK, NO_CHECK, RESOURCE, Kind, on_loop
from fencelock_lab.benchmarks.peers.contender import run
from fencelock_lab.benchmarks.stores.s3 import async_client_of, bucket_of, client_of

KINDS = (
    Kind("1 writer, 1 object", batch=5, most_requests=3),
    Kind("1 writer, 1 object, asyncio", batch=5, is_async=True),
    Kind("1 writer, 20 objects", statements=20, batch=2, most_requests=22),
    Kind("1 writer, 1 object, 2,000 replaced before", batch=5, replaced=2_000),
)
"""`most_requests`: those of the data, one GET and one PUT."""
_FULL = "full"
"""The resource whose manifest nobody collects."""
_MANIFEST = "plain/manifest"


def prepare(url: str) -> None:
    """Put a manifest by hand, and seal the resources."""
    client_of(url).put_object(Bucket=bucket_of(url), Key=_MANIFEST, Body=b"1")
    for resource in (RESOURCE, _FULL):
        guard = fencelock.guard(url, resource=resource, lock=LOCK)
        guard.protect()
        guard.seal(LEASE)


def tidy(url: str, kind: Kind) -> None:
    """Forget what was replaced, but for the kind that is about it."""
    if not kind.replaced:
        fencelock.s3.collect(url, RESOURCE, older_than=0)


def variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    """Return a write through a manifest by hand, one without, and a guarded one."""
    if kind.replaced:
        _replace(url, kind.replaced)
    return _async_variants(url, kind) if kind.is_async else _sync_variants(url, kind)


def _sync_variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    client, where = client_of(url), {"Bucket": bucket_of(url), "Key": _MANIFEST}
    guard = fencelock.guard(url, resource=_resource_of(kind), lock=LOCK)
    names = _names(kind)

    def unguarded() -> None:
        for name in names:
            client.put_object(Bucket=where["Bucket"], Key=f"plain/{name}", Body=b"x")

    def by_hand() -> None:
        found = client.get_object(**where)
        assert found["Body"].read() == b"1"
        unguarded()
        client.put_object(**where, Body=b"1", IfMatch=found["ETag"])

    def guarded() -> None:
        with guard.transaction(LEASE) as txn:
            for name in names:
                txn.put(name, b"x")

    return {BY_HAND: by_hand, NO_CHECK: unguarded, GUARDED: guarded}


def _async_variants(url: str, kind: Kind) -> dict[str, Callable[[], None]]:
    client, where = run(async_client_of(url)), {"Bucket": bucket_of(url), "Key": _MANIFEST}
    guard = fencelock.aio.guard(url, resource=_resource_of(kind), lock=LOCK)
    names = _names(kind)

    async def unguarded() -> None:
        for name in names:
            await client.put_object(Bucket=where["Bucket"], Key=f"plain/{name}", Body=b"x")

    async def by_hand() -> None:
        found = await client.get_object(**where)
        assert await found["Body"].read() == b"1"
        await unguarded()
        await client.put_object(**where, Body=b"1", IfMatch=found["ETag"])

    async def guarded() -> None:
        async with guard.transaction(LEASE) as txn:
            for name in names:
                txn.put(name, b"x")

    return {BY_HAND: on_loop(by_hand), NO_CHECK: on_loop(unguarded), GUARDED: on_loop(guarded)}


def _replace(url: str, count: int) -> None:
    """Have the manifest remember so many replaced objects."""
    guard = fencelock.guard(url, resource=_FULL, lock=LOCK)
    names = [f"replaced/{number}" for number in range(count)]
    with guard.transaction(LEASE) as txn:
        for name in names:
            txn.put(name, b"x")
    with guard.transaction(LEASE) as txn:
        for name in names:
            txn.delete(name)


def _resource_of(kind: Kind) -> str:
    return _FULL if kind.replaced else RESOURCE


def _names(kind: Kind) -> list[str]:
    return [str(number) for number in range(kind.statements)]
