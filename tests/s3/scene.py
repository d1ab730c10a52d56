"""A resource in a bucket in memory, its guard, and a lease: for what may happen to single requests."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fencelock.s3 import Snapshot
from fencelock.stores.s3.guard.garbage import collect
from fencelock.testing.runners import sync_guard
from tests.s3.fake_bucket import FakeBucket
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource


class Scene:
    """A protected resource, whose holder has token 5."""

    def __init__(self, *, is_sealed: bool = True) -> None:
        self.bucket = FakeBucket()
        self.store = self.bucket.guard_store()
        self.layout = self.store.layout
        self.guard().protect(source=HandmadeSource(0).info)
        self.lease = HandmadeLease(5)
        if is_sealed:
            self.guard().seal(self.lease)

    def guard(self, store: Any = None) -> Any:
        return sync_guard(store or self.store, (RESOURCE,), LOCK)

    def block(self, lease: Any = None) -> Any:
        return self.guard().transaction(lease or self.lease)

    def write(self, value: str, key: str = "k", lease: Any = None) -> None:
        with self.block(lease) as txn:
            txn.put(key, value)

    def write_elsewhere(self, value: str, key: str = "k", lease: Any = None) -> None:
        """Write while a block of this thread is open."""
        elsewhere(lambda: self.write(value, key, lease))

    def succeed(self, value: str = "new") -> None:
        """Be the next holder, who seals and writes."""
        self.write_elsewhere(value, lease=HandmadeLease(6))

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.bucket.objects[self.layout.manifest(RESOURCE)])
        return found

    def put_alone(self, key: str, value: str) -> None:
        """Write the value of a key as somebody does who knows the manifest, and no guard."""
        where = f"{key}/{0:019}-alone"
        self.bucket.objects[self.layout.folder(RESOURCE) + where] = value.encode()
        found = self.manifest
        found["objects"][key] = where
        found["commits"].append("alone")
        self.bucket.objects[self.layout.manifest(RESOURCE)] = json.dumps(found).encode()

    def entries(self) -> list[dict[str, Any]]:
        """Return the audit entries, oldest first, as the manifest leads to them."""
        found: list[dict[str, Any]] = []
        where = self.manifest["audit_head"]
        while where is not None:
            found.insert(0, json.loads(self.bucket.objects[self.layout.folder(RESOURCE) + where]))
            where = found[0]["previous"]
        return found

    def snapshot(self) -> Snapshot:
        loaded = self.bucket.run(self.store.connect().codec.load(RESOURCE))
        return Snapshot(self.store, RESOURCE, loaded.manifest)

    def value(self, key: str = "k") -> str | None:
        found = self.snapshot().get(key)
        return None if found is None else found.decode()

    def collect(self, older_than_ms: int = 0) -> int:
        count: int = self.bucket.run(collect(self.store.connect().codec, self.store.url, RESOURCE, older_than_ms))
        return count

    def values(self) -> list[bytes]:
        """Return the contents of all objects of keys, whether or not they count."""
        return [body for name, body in self.bucket.objects.items() if "/.fencelock/" not in name]


def elsewhere(function: Callable[[], Any]) -> Any:
    """Do something in another thread, and return what came of it."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result(30)


@pytest.fixture
def scene() -> Scene:
    return Scene()
