"""A bucket as a source: which servers and settings are refused, whom the policy lets in, purges, and restores."""

import json
import shlex
from typing import Any

import pytest

import fencelock
from fencelock.cli.commands import execute
from fencelock.errors import ConfigError, SourceError, UnsupportedError
from fencelock.protocol import source_requests as ask
from fencelock.stores import registry
from fencelock.stores.s3.guard.store import S3Guard
from fencelock.stores.s3.source.store import S3Source
from fencelock.testing.clock import ManualClock
from fencelock_lab.servers.rclone import RcloneFleet
from tests.s3.fake_bucket import DELETES, FakeBucket
from tests.s3.fix_s3 import Corner
from tests.support.guards import LOCK, RESOURCE

URL = "s3://bucket/prefix"
TTL = 30.0


@pytest.fixture
def bucket() -> FakeBucket:
    return FakeBucket()


def installed(bucket: FakeBucket, **options: Any) -> S3Source:
    store = bucket.source_store(**options)
    store.install()
    return store


def acquire(store: S3Source, claim: str = "a", *, may_wait: bool = False) -> Any:
    return store.connect(request_timeout_s=1).perform(
        ask.Acquire("lock", claim * 32, "holder", 10_000, born_us=store.state.now_us(), may_wait=may_wait)
    )


def codes(store: S3Source) -> list[str]:
    return [one.code for one in store.examine()]


# --- the server and the bucket ----------------------------------------------------------------------------------------
def test_rclone_which_ignores_conditions_is_refused(rclone_fleet: RcloneFleet) -> None:
    with rclone_fleet.new_server() as server:
        corner = Corner(server.url, "test")
        with pytest.raises(UnsupportedError, match="ignores the condition"):
            fencelock.connect(corner.url).install()
        assert corner.names() == []


def test_install_leaves_a_record_and_a_counter_and_may_run_again(seaweed: Corner) -> None:
    for _ in range(2):
        S3Source(seaweed.url).install()
    record, counter = sorted(seaweed.names(), key=len)
    assert (record, counter.rpartition("/")[0]) == (".fencelock/source", ".fencelock/counters")


def test_a_bucket_that_is_not_installed_is_reported(bucket: FakeBucket) -> None:
    (finding,) = bucket.source_store().examine()
    assert (finding.code, "fencelock install" in finding.message) == ("source-refused", True)


EVERYWHERE: dict[str, Any] = {"Status": "Enabled", "Filter": {"Prefix": ""}}
ELSEWHERE = EVERYWHERE | {"Filter": {"Prefix": "other/"}}
BESIDE = EVERYWHERE | {"Filter": {"Prefix": "prefix/reports/"}}
OWN = EVERYWHERE | {"Filter": {"Prefix": "prefix/.fencelock/"}}
MARKERS = {"Expiration": {"ExpiredObjectDeleteMarker": True}}
EXPIRY, OLD = {"Expiration": {"Days": 7}}, {"NoncurrentVersionExpiration": {"NoncurrentDays": 1}}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"lifecycle": {"Rules": [EVERYWHERE | EXPIRY]}}, ["objects-expire"]),
        ({"lifecycle": {"Rules": [OWN | EXPIRY]}}, ["objects-expire"]),
        ({"lifecycle": {"Rules": [ELSEWHERE | EXPIRY]}}, []),
        ({"lifecycle": {"Rules": [BESIDE | EXPIRY]}}, []),
        ({"lifecycle": {"Rules": [EVERYWHERE | MARKERS]}}, []),
        ({"replication": {"ReplicationConfiguration": {"Rules": [EVERYWHERE]}}}, ["objects-replicated"]),
        ({"replication": {"ReplicationConfiguration": {"Rules": [ELSEWHERE]}}}, []),
        ({"replication": {"ReplicationConfiguration": {"Rules": [EVERYWHERE | {"Status": "Disabled"}]}}}, []),
        ({"versioning": {"Status": "Enabled"}}, ["versions-kept"]),
        ({"versioning": {"Status": "Suspended"}}, []),
        ({"versioning": {"Status": "Enabled"}, "lifecycle": {"Rules": [EVERYWHERE | OLD]}}, []),
        ({"versioning": {"Status": "Enabled"}, "lifecycle": {"Rules": [OWN | OLD]}}, []),
        ({"versioning": {"Status": "Enabled"}, "lifecycle": {"Rules": [ELSEWHERE | OLD]}}, ["versions-kept"]),
    ],
)
def test_settings_that_touch_the_locks_are_reported(
    bucket: FakeBucket, settings: dict[str, Any], found: list[str]
) -> None:
    store = installed(bucket)
    bucket.settings = settings
    assert codes(store) == found


def test_a_server_that_breaks_its_conditions_later_is_reported(bucket: FakeBucket) -> None:
    store = installed(bucket)
    bucket.ignored = frozenset({"IfMatch"})
    (finding,) = store.examine()
    assert (finding.code, "If-Match" in finding.message) == ("source-refused", True)


def test_a_prefix_that_leaves_no_room_for_names_is_refused() -> None:
    with pytest.raises(ConfigError, match="300 bytes"):
        S3Source(f"s3://bucket/{'x' * 301}")


# --- one bucket for both ----------------------------------------------------------------------------------------------
def test_one_url_is_source_and_guard(seaweed: Corner) -> None:
    guard = fencelock.guard(seaweed.url, resource=RESOURCE, lock=LOCK)
    with fencelock.connect(seaweed.url) as source:
        source.install()
        guard.protect(source=source)
        with source.lock(LOCK, ttl=TTL) as lease, guard.transaction(lease) as txn:
            txn.put("key", "value")
        assert [info.name for info in source.locks()] == [LOCK]
        assert guard.mark().token == lease.token
    assert seaweed.value(RESOURCE, "key") == "value"


# --- who may write ----------------------------------------------------------------------------------------------------
def statements(url: str) -> list[dict[str, Any]]:
    (command,) = [line for line in S3Source(url).policy("app").splitlines() if not line.startswith("#")]
    words = shlex.split(command)
    assert words[:5] == ["aws", "iam", "put-role-policy", "--role-name", "app"]
    found: list[dict[str, Any]] = json.loads(words[-1])["Statement"]
    return found


def test_a_role_writes_locks_and_counters_on_a_condition_alone() -> None:
    root = "arn:aws:s3:::bucket/prefix/.fencelock"
    writes = [one for one in statements(URL) if one["Action"] not in ("s3:GetObject", "s3:ListBucket")]
    assert {(one["Action"], one["Resource"]) for one in writes} == {
        ("s3:PutObject", f"{root}/locks/*"),
        ("s3:PutObject", f"{root}/counters/*"),
    }
    assert all(list(one["Condition"]["Null"].values()) == ["false"] for one in writes)
    (counters,) = [one for one in writes if one["Resource"].endswith("counters/*")]
    assert counters["Condition"] == {"Null": {"s3:if-match": "false"}}


def test_the_policies_of_a_prefix_with_wildcards_reach_no_other_prefix() -> None:
    url, path = "s3://bucket/a*b/${aws:username}", "arn:aws:s3:::bucket/a${*}b/${$}{aws:username}"
    roles = {one["Resource"] for one in statements(url) if one["Action"] != "s3:ListBucket"}
    assert roles == {f"{path}/.fencelock/{part}" for part in ("*", "locks/*", "counters/*")}
    (command,) = [line for line in S3Guard(url).policy("r", "l", "app").splitlines() if not line.startswith("#")]
    denied = {one["Resource"] for one in json.loads(shlex.split(command)[-1])["Statement"]}
    assert denied == {f"{path}/*", f"{path}/*/.fencelock/manifest", f"{path}/r/*"}


def test_the_policy_names_the_bucket_as_its_partition_does() -> None:
    assert {one["Resource"].partition(":s3:")[0] for one in statements("s3://bucket?region=cn-north-1")} == {
        "arn:aws-cn"
    }


def test_the_command_prints_the_policies_of_guard_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["protect", URL, "--resource", "r", "--lock", "l", "--roles", "app", "--print-policy", "--source", URL]
    assert execute(words) == 0
    printed = capsys.readouterr().out
    assert "put-bucket-policy" in printed
    assert "put-role-policy" in printed


# --- purge and restore ------------------------------------------------------------------------------------------------
def test_a_purge_deletes_free_locks_and_the_next_token_is_higher(bucket: FakeBucket) -> None:
    store = installed(bucket)
    first = acquire(store)
    perform = store.connect(request_timeout_s=1).perform
    perform(ask.Release("lock", "a" * 32))
    assert perform(ask.Purge()) == 1
    assert not [name for name in bucket.objects if "/locks/" in name or "/probe/" in name]
    assert acquire(store, "b").token > first.token


def test_a_purge_says_that_the_server_cannot(bucket: FakeBucket) -> None:
    store = installed(bucket)
    acquire(store)
    perform = store.connect(request_timeout_s=1).perform
    perform(ask.Release("lock", "a" * 32))
    bucket.ignored = frozenset({DELETES})
    with pytest.raises(UnsupportedError, match="If-Match"):
        perform(ask.Purge())


def test_a_creator_that_was_delayed_over_a_purge_issues_no_token_twice(bucket: FakeBucket) -> None:
    """The first process reads that there is no lock; others take it, release it and purge it before its request."""
    first, second = installed(bucket), bucket.source_store()
    tokens: list[int] = []

    def others_go_first(answer: Any) -> Any:
        tokens.append(acquire(second, "b").token)
        perform = second.connect(request_timeout_s=1).perform
        perform(ask.Release("lock", "b" * 32))
        assert perform(ask.Purge()) == 1
        return answer()

    bucket.on(lambda call: call.arguments.get("IfNoneMatch") == "*", others_go_first)
    tokens.append(acquire(first).token)
    assert tokens == sorted(set(tokens))


def test_after_a_crash_the_dates_of_the_bucket_free_the_lock_at_the_first_look(bucket: FakeBucket) -> None:
    clock = ManualClock()
    bucket.now_us = clock.now_us
    acquire(installed(bucket, now_us=clock.now_us))
    clock.advance(10.999)
    assert isinstance(acquire(bucket.source_store(now_us=clock.now_us), "b"), ask.Busy)
    clock.advance(2.001)
    assert isinstance(acquire(bucket.source_store(now_us=clock.now_us), "b"), ask.Granted)


def test_a_process_that_has_seen_later_tokens_refuses_restored_objects(bucket: FakeBucket) -> None:
    """Another one cannot notice: the operator raises the epoch."""
    store = installed(bucket)
    backup = dict(bucket.objects)
    first = acquire(store).token
    bucket.objects = dict(backup)
    with pytest.raises(SourceError, match="epoch --raise"):
        acquire(store, "b")
    bucket.objects = dict(backup)
    assert acquire(bucket.source_store(), "c").token == first
    bucket.objects = dict(backup)
    perform = bucket.source_store().connect(request_timeout_s=1).perform
    history = perform(ask.ReadSource()).history_id  # type: ignore[union-attr]
    perform(ask.RaiseEpoch(history, "restored"))
    assert acquire(bucket.source_store(), "d").token > first


def test_doctor_says_that_it_sees_no_restore(bucket: FakeBucket, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(bucket)
    monkeypatch.setattr(registry, "_load", lambda *_: bucket.source_store)
    assert execute(["doctor", "--source", URL]) == 0
    assert "objects were restored" in capsys.readouterr().out
