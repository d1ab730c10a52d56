"""Reading a resource at S3 without a lease: what its manifest names, at one moment.

Promise: all keys of a snapshot are of one moment, and readable for as long as `collect` leaves them. Never: a write.
"""

from fencelock.stores.s3.connection.calls import read_object
from fencelock.stores.s3.connection.client import DATA_TIMEOUT_S
from fencelock.stores.s3.guard.block import gone_error, keys_behind
from fencelock.stores.s3.guard.manifest import Manifest
from fencelock.stores.s3.guard.store import S3Guard


class Snapshot:
    """What a resource consisted of at one moment. `fencelock.s3.snapshot(…)` takes one; any thread may read it."""

    def __init__(self, store: S3Guard, resource: str, manifest: Manifest) -> None:
        self._store = store
        self._resource = resource
        self._manifest = manifest

    def __repr__(self) -> str:
        return f"<Snapshot of {self._resource!r} at {self._store.url}: {len(self._manifest.objects)} keys>"

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin with the prefix, in order."""
        return keys_behind(self._manifest, prefix)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key; None if there was none. GuardError if its object was deleted since."""
        if (name := self._name(key)) is None:
            return None
        found = self._store.client.run(read_object(self._store.bucket, name), DATA_TIMEOUT_S)
        if found is None:
            raise gone_error(key, self._resource)
        return found.body

    def url(self, key: str) -> str | None:
        """Return the URL of the object with a key's value, for other programs to read; None if there was none."""
        name = self._name(key)
        return None if name is None else f"s3://{self._store.bucket}/{name}"

    def _name(self, key: str) -> str | None:
        where = self._manifest.objects.get(key)
        return None if where is None else self._store.layout.folder(self._resource) + where
