"""The S3 guard keeps every rule, synchronously and on the event loop: in memory, at SeaweedFS, and at an emulator."""

import contextlib
import json

import pytest

from fencelock.stores.aws.clients import AsyncAwsClient, AwsClient
from fencelock.testing import AsyncGuardConformance, GuardConformance
from fencelock_lab.servers.ministack import MinistackFleet
from fencelock_lab.servers.seaweedfs import SeaweedFleet
from tests.fix_servers import fresh_name
from tests.s3.fake_bucket import LOST, FakeBucket
from tests.s3.fix_s3 import Corner, new_corner, prepared


class InMemory:
    """A bucket of its own for each check. A value is a key of the resource that the block is in."""

    compares_reads = True
    is_async: bool

    def make_url(self):
        self.bucket = FakeBucket()
        return f"s3://{fresh_name('bucket')}/prefix"

    def make_store(self, url):
        return self.bucket.guard_store(url)

    def dump(self):
        return b"".join(self.bucket.objects.values())

    def put(self, native, table, key, value):
        native.put(f"{table}/{key}", value)

    def read(self, native, table, key):
        found = native.get(f"{table}/{key}")
        return None if found is None else found.decode()

    def wire(self):
        return FakeBucket, "answer_async" if self.is_async else "answer"

    def lost_reply(self):
        return LOST

    def make_careless_store(self):
        bucket = FakeBucket()
        bucket.ignored = frozenset({"IfNoneMatch", "IfMatch"})
        return bucket.guard_store(f"s3://{fresh_name('careless')}/prefix")

    def put_alone(self, table, key, value):
        self.bucket.objects["prefix/r/alone"] = value.encode()
        self._edit("r", objects=self._manifest("r")["objects"] | {f"{table}/{key}": "alone"})

    def get(self, table, key):
        for resource in ("r", "new"):
            where = self._manifest(resource).get("objects", {}).get(f"{table}/{key}")
            if where is not None:
                return self.bucket.objects[f"prefix/{resource}/{where}"].decode()
        return None

    def lose_mark(self, resource):
        self._edit(resource, mark=None)

    def _manifest(self, resource):
        return json.loads(self.bucket.objects.get(f"prefix/{resource}/.fencelock/manifest", b"{}"))

    def _edit(self, resource, **members):
        name = f"prefix/{resource}/.fencelock/manifest"
        found = self._manifest(resource) | members
        found["commits"].append(f"edited {len(self.bucket.calls)}")
        self.bucket.objects[name] = json.dumps(found).encode()


class TestInMemory(InMemory, GuardConformance):
    interrupted_files = ("/stores/s3/guard/codec.py", "/stores/optimistic/connection.py")


class TestAsyncInMemory(InMemory, AsyncGuardConformance):
    pass


class InBucket:
    """The same at a server, with a prefix for each check."""

    compares_reads = True
    is_async: bool
    corner: Corner

    def setup_method(self):
        """The server comes first, by the fixture."""

    @pytest.fixture(autouse=True)
    def _in_bucket(self, endpoint):
        self.corner = new_corner(endpoint)
        super().setup_method()

    def make_url(self):
        return self.corner.url

    def dump(self):
        return b"".join(map(self.corner.read, self.corner.names()))

    put, read = InMemory.put, InMemory.read

    def wire(self):
        """Above botocore, whose reply to a read would stay open if it were lost; tests/aws sees that it sends once."""
        return (AsyncAwsClient if self.is_async else AwsClient), "call"

    lost_reply = InMemory.lost_reply

    def put_alone(self, table, key, value):
        self.corner.put_alone("r", f"{table}/{key}", value)

    def get(self, table, key):
        found = (self.corner.value(resource, f"{table}/{key}") for resource in ("r", "new"))
        return next(filter(None, found), None)

    def lose_mark(self, resource):
        with contextlib.suppress(self.corner.client.exceptions.NoSuchKey):
            self.corner.edit(resource, mark=None)


class AtSeaweed(InBucket):
    @pytest.fixture
    def endpoint(self, seaweed_fleet: SeaweedFleet):
        return seaweed_fleet.shared().url


class AtMinistack(InBucket):
    @pytest.fixture
    def endpoint(self, ministack_fleet: MinistackFleet):
        return prepared(ministack_fleet.shared().endpoint)


@pytest.mark.campaign
class TestSeaweed(AtSeaweed, GuardConformance):
    pass


@pytest.mark.campaign
class TestAsyncSeaweed(AtSeaweed, AsyncGuardConformance):
    pass


@pytest.mark.campaign
class TestMinistack(AtMinistack, GuardConformance):
    pass


@pytest.mark.campaign
class TestAsyncMinistack(AtMinistack, AsyncGuardConformance):
    pass
