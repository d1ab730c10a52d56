"""A holder is frozen by a real SIGSTOP, others take the lock and give it back, and then it wakes.

The negative control is the lease in one object that Litestream and others write: a release deletes the object, so that
the count begins anew, and the clocks of the clients end a lease. The resource is the same for both. It refuses every
token but its mark, in one conditional PUT, so what is lost there is lost by the source.
"""

import time
from types import SimpleNamespace
from typing import Any

import pytest

import fencelock
from fencelock.stores.s3.source.store import S3Source
from fencelock_lab.servers.seaweedfs import BUCKET
from tests.process.actors import Stage
from tests.s3.fix_s3 import Corner
from tests.support.helpers import DEADLINE_S

RESOURCE = """
import json, time, uuid
import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
import fencelock

settings = Config(s3={{"addressing_style": "path"}}, retries={{"total_max_attempts": 1}})
client = boto3.client("s3", endpoint_url={endpoint!r}, region_name="us-east-1", config=settings)

def load(name):
    try:
        found = client.get_object(Bucket={bucket!r}, Key={prefix!r} + name)
    except client.exceptions.NoSuchKey:
        return None, None
    return json.loads(found["Body"].read()), found["ETag"]

def swap(name, value, etag):
    body = json.dumps(value | {{"nonce": uuid.uuid4().hex}}).encode()
    condition = {{"IfNoneMatch": "*"}} if etag is None else {{"IfMatch": etag}}
    try:
        client.put_object(Bucket={bucket!r}, Key={prefix!r} + name, Body=body, **condition)
    except ClientError:
        return False
    return True

def seal(token):
    while True:
        found, etag = load("list")
        now = found or {{"mark": 0, "names": []}}
        if now["mark"] > token:
            raise SystemExit("refused")
        if swap("list", {{"mark": token, "names": now["names"]}}, etag):
            return now["names"]

def append(token, names, name):
    while True:
        found, etag = load("list")
        if found["mark"] != token:
            return "refused"
        if swap("list", {{"mark": token, "names": [*names, name]}}, etag):
            return "acknowledged"
"""
NAIVE = """
def take():
    while True:
        found, etag = load("lock")
        if found is not None and found["expires_at"] > time.time():
            time.sleep(0.02)
            continue
        generation = 1 if found is None else found["generation"] + 1
        if swap("lock", {{"generation": generation, "expires_at": time.time() + 1.0}}, etag):
            return generation

def give_back():
    client.delete_object(Bucket={bucket!r}, Key={prefix!r} + "lock")
"""
OURS = """
from dataclasses import replace
from fencelock.stores.s3.source.store import S3Source

S3Source.capabilities = replace(S3Source.capabilities, ttl_min_ms=1000)
locks = fencelock.connect({url!r})
leases = []

def take():
    leases.append(locks.lock("daily", ttl=1.0, timeout=60).acquire())
    return leases[-1].token

def give_back():
    leases.pop().release()
"""
HOLDER = """
token = take()
names = seal(token)
say(token)
hear()
say(append(token, names, "A"))
"""


def script(way: str, corner: Corner) -> str:
    values = {"endpoint": corner.endpoint, "bucket": BUCKET, "prefix": f"{corner.prefix}/", "url": corner.url}
    return (RESOURCE + way).format(**values)


def here(text: str) -> Any:
    """Run the script in this process, and return what it defines."""
    namespace: dict[str, Any] = {}
    exec(text, namespace)  # noqa: S102 - what the actor runs, too
    return SimpleNamespace(**namespace)


@pytest.fixture
def capable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget afterwards what a script allows itself."""
    monkeypatch.setattr(S3Source, "capabilities", S3Source.capabilities)


@pytest.mark.process
@pytest.mark.usefixtures("capable")
@pytest.mark.parametrize(("way", "lost"), [(NAIVE, ["A"]), (OURS, [])], ids=["naive", "ours"])
def test_t1_a_frozen_holder_never_meets_its_token_again(
    stage: Stage, seaweed: Corner, way: str, lost: list[str]
) -> None:
    S3Source(seaweed.url).install()
    text = script(way, seaweed)
    old = stage.actor(text + HOLDER)
    first = old.hear()
    old.freeze()
    others = here(text)
    second = others.take()
    others.give_back()
    third = others.take()
    names = others.seal(third)
    old.thaw()
    old.say()
    told = {"A": old.hear(), "C": others.append(third, names, "C")}
    others.give_back()
    kept = others.load("list")[0]["names"]
    assert [name for name, answer in told.items() if answer == "acknowledged" and name not in kept] == lost
    assert told["C"] == "acknowledged"
    assert (first < second < third) == (not lost)


def test_a_clock_that_is_ahead_ends_a_naive_lease(seaweed: Corner) -> None:
    namespace: dict[str, Any] = {}
    exec(script(NAIVE, seaweed), namespace)  # noqa: S102 - the same as above
    namespace["take"]()
    namespace["time"] = SimpleNamespace(time=lambda: time.time() + 3600)
    assert namespace["take"]() == 2


def test_h1_a_clock_that_is_ahead_ends_no_lease(seaweed: Corner, monkeypatch: pytest.MonkeyPatch) -> None:
    S3Source(seaweed.url).install()
    with (
        fencelock.connect(seaweed.url) as holder,
        fencelock.connect(seaweed.url) as other,
        holder.lock("daily", ttl=DEADLINE_S),
    ):
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 3600)
        assert other.lock("daily", ttl=DEADLINE_S).acquire(timeout=0) is None
