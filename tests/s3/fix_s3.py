"""Servers that speak S3, shared by all tests: SeaweedFS, a real one, and ministack, an emulator of Amazon's.

Tests share a server by having a prefix each; a test that kills one has a server of its own.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

import boto3
import pytest
from botocore.config import Config

import fencelock.s3
from fencelock_lab.servers.seaweedfs import BUCKET, SeaweedFleet
from fencelock_lab.servers.server import HOST
from tests.fix_servers import fresh_name


@dataclass(frozen=True)
class Corner:
    """A prefix of one test at a server."""

    endpoint: str
    prefix: str

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.prefix}?endpoint={quote(self.endpoint, safe=':/')}"

    def behind(self, port: int) -> "Corner":
        """Return the same prefix, reached over a proxy that listens on this port."""
        return Corner(f"http://{HOST}:{port}", self.prefix)

    @cached_property
    def client(self) -> Any:
        """A client that knows no guard."""
        config = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
        return boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", config=config)

    def names(self, below: str = "") -> list[str]:
        """Return the names of all objects behind the prefix, without it."""
        start = f"{self.prefix}/{below}"
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=start)
        return [one["Key"][len(self.prefix) + 1 :] for page in pages for one in page.get("Contents", ())]

    def read(self, name: str) -> bytes:
        """Return the contents of an object."""
        body: bytes = self.client.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")["Body"].read()
        return body

    def write(self, name: str, body: bytes, **conditions: str) -> None:
        """Write an object, blindly unless there are conditions."""
        self.client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=body, **conditions)

    # --- past the guard -----------------------------------------------------------------------------------------------
    def manifest(self, resource: str) -> dict[str, Any]:
        """Return what is in a resource's manifest."""
        found: dict[str, Any] = json.loads(self.read(f"{resource}/.fencelock/manifest"))
        return found

    def edit(self, resource: str, **members: Any) -> None:
        """Replace members of a manifest by hand, and its id with them."""
        found = self.manifest(resource) | members
        found["commits"].append(fresh_name("edited"))
        self.write(f"{resource}/.fencelock/manifest", json.dumps(found).encode())

    def value(self, resource: str, key: str) -> str | None:
        """Return the value of a key, as any reader does."""
        found = fencelock.s3.snapshot(self.url, resource).get(key)
        return None if found is None else found.decode()

    def put_alone(self, resource: str, key: str, value: str) -> None:
        """Write the value of a key as somebody does who knows the manifest, and no guard."""
        where = f"{key}/{0:019}-{fresh_name('alone')}"
        self.write(f"{resource}/{where}", value.encode())
        self.edit(resource, objects=self.manifest(resource)["objects"] | {key: where})

    def entries(self, resource: str) -> list[dict[str, Any]]:
        """Return the audit entries of a resource, oldest first, as the manifest leads to them."""
        found: list[dict[str, Any]] = []
        where = self.manifest(resource)["audit_head"]
        while where is not None:
            found.insert(0, json.loads(self.read(f"{resource}/{where}")))
            where = found[0]["previous"]
        return found


def prepared(endpoint: str) -> str:
    """Make the bucket at an emulator, unless it is there, and return the endpoint."""
    client = Corner(endpoint, "").client
    with suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=BUCKET)
    return endpoint


def new_corner(endpoint: str) -> Corner:
    """Return a fresh prefix at a server that all tests share."""
    return Corner(endpoint, fresh_name("test").replace("_", "-"))


@pytest.fixture
def seaweed(seaweed_fleet: SeaweedFleet) -> Corner:
    """Return a prefix of the test's own at the shared SeaweedFS, which a test must neither end nor freeze."""
    return new_corner(seaweed_fleet.shared().url)
