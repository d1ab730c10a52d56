"""A holder that freezes between its read and its write: what usual ways at S3 lose then, and the guard does not.

The usual ways are negative controls. Each holder appends its name to a list. A name is lost whose write was told as
done, and which is not in the list at the end.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

import fencelock
from fencelock import StaleTokenError
from tests.s3.fix_s3 import BUCKET, Corner
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource

if TYPE_CHECKING:
    from collections.abc import Callable

OLD, NEW, LAST = 5, 6, 7


class RefusedError(Exception):
    """A way refuses a write."""


class CheckThenPut:
    """A mark object beside the data: read it, compare, raise it, and then write the data."""

    def __init__(self, corner: Corner, token: int) -> None:
        self.corner = corner
        self.token = token
        self.freeze: Callable[[], None] = lambda: None

    def read(self) -> list[str]:
        return self._get("list") or []

    def write(self, names: list[str]) -> None:
        if (self._get("mark") or 0) > self.token:
            raise RefusedError
        self.corner.write("mark", json.dumps(self.token).encode())
        self.freeze()
        self.corner.write("list", json.dumps(names).encode())

    def _get(self, name: str) -> Any:
        with suppress(self.corner.client.exceptions.NoSuchKey):
            return json.loads(self.corner.read(name))
        return None


class MetadataSeal(CheckThenPut):
    """The token in the object's own metadata, raised by a copy onto itself before the read, and a PUT on the ETag."""

    def read(self) -> list[str]:
        where = {"Bucket": BUCKET, "Key": f"{self.corner.prefix}/list"}
        client, own = self.corner.client, {"token": str(self.token)}
        try:
            head = client.head_object(**where)
        except ClientError:
            client.put_object(**where, Body=b"[]", Metadata=own)
            head = client.head_object(**where)
        if int(head["Metadata"]["token"]) > self.token:
            raise RefusedError
        client.copy_object(**where, CopySource=where, Metadata=own, MetadataDirective="REPLACE")
        found = client.get_object(**where)
        self.etag = found["ETag"]
        names: list[str] = json.loads(found["Body"].read())
        return names

    def write(self, names: list[str]) -> None:
        try:
            self.corner.write("list", json.dumps(names).encode(), IfMatch=self.etag)
        except ClientError as error:
            raise RefusedError from error


class Guarded:
    """The guard, each holder in a thread of its own."""

    def __init__(self, corner: Corner, token: int) -> None:
        self.block = fencelock.guard(corner.url, resource=RESOURCE, lock=LOCK).transaction(HandmadeLease(token))
        self.thread = ThreadPoolExecutor(1)

    def read(self) -> list[str]:
        self.txn = self.thread.submit(self.block.__enter__).result()
        names: list[str] = json.loads(self.txn.get("list") or b"[]")
        return names

    def write(self, names: list[str]) -> None:
        self.txn.put("list", json.dumps(names))
        try:
            self.thread.submit(self.block.__exit__, None, None, None).result()
        except StaleTokenError as error:
            raise RefusedError from error


class Scenery:
    """Two holders, the older of which is frozen, and what becomes of their names."""

    def __init__(self, way: Any, corner: Corner) -> None:
        self.way = way
        self.corner = corner
        self.told: list[str] = []

    def write(self, holder: Any, names: list[str]) -> bool:
        name = "old" if holder is self.old else "new"
        try:
            holder.write([*names, name])
        except RefusedError:
            return False
        self.told.append(name)
        return True

    def play(self, *, wakes_between: bool) -> None:
        """Let the old one wake between the new one's read and write, or after both."""
        self.old = self.way(self.corner, OLD)
        read_by_old = self.old.read()
        new = self.way(self.corner, NEW)
        read_by_new = new.read()
        if wakes_between:
            self.write(self.old, read_by_old)
        self.new_was_written = self.write(new, read_by_new)
        if not wakes_between:
            self.write(self.old, read_by_old)

    def lost(self) -> set[str]:
        """Return the names that are lost, by what the next holder reads."""
        return set(self.told) - set(self.way(self.corner, LAST).read())


@pytest.mark.parametrize("wakes_between", [True, False], ids=["between", "after"])
def test_g2_g3_a_frozen_holder_loses_no_write_under_the_guard(seaweed: Corner, wakes_between: bool) -> None:
    fencelock.guard(seaweed.url, resource=RESOURCE, lock=LOCK).protect(source=HandmadeSource(0).info)
    scenery = Scenery(Guarded, seaweed)
    scenery.play(wakes_between=wakes_between)
    assert scenery.told == ["new"]
    assert scenery.lost() == set()


def test_a_mark_beside_the_data_loses_a_write(seaweed: Corner) -> None:
    scenery = Scenery(CheckThenPut, seaweed)
    scenery.play(wakes_between=True)
    assert scenery.lost() == {"old"}


def test_a_check_before_the_put_lets_a_frozen_holder_win(seaweed: Corner) -> None:
    scenery = Scenery(CheckThenPut, seaweed)
    old = scenery.old = CheckThenPut(seaweed, OLD)

    def be_overtaken() -> None:
        new = CheckThenPut(seaweed, NEW)
        assert scenery.write(new, new.read())

    old.freeze = be_overtaken
    assert scenery.write(old, old.read())
    assert scenery.lost() == {"new"}


def test_a_seal_in_metadata_lets_a_frozen_holder_win(seaweed: Corner) -> None:
    """A copy with other metadata leaves the ETag, so the live holder is refused and the stale one is not."""
    scenery = Scenery(MetadataSeal, seaweed)
    scenery.play(wakes_between=True)
    assert scenery.told == ["old"]
    assert not scenery.new_was_written
