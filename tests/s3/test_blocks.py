"""What a guarded block at S3 may do, and what becomes of its objects, at a bucket in memory."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import ConfigError, GuardError, SchemaError, StaleTokenError, UnsupportedError
from fencelock.cli.commands import execute
from fencelock.stores.registry import guard_store
from fencelock.stores.s3.guard import block
from fencelock.stores.s3.guard.manifest import MAX_RETIRED, Manifest
from fencelock.testing import resource_path, unfenced
from fencelock.testing.runners import sync_guard
from tests.s3.fake_bucket import FakeBucket, is_manifest
from tests.s3.scene import Scene, elsewhere, scene
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource

__all__ = ["scene"]


def test_a_block_reads_what_the_manifest_named_when_it_began(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"from a file")
    with scene.block() as txn:
        assert txn.get("a/b") is None
        txn.put("a/b", "text")
        txn.upload("a/c", tmp_path / "big")
        txn.put("d", b"\xff")
    with scene.block() as txn:
        txn.keys().clear()  # A list of the caller's own.
        assert txn.keys() == ["a/b", "a/c", "d"]
        assert txn.keys("a/") == ["a/b", "a/c"]
        assert (txn.get("a/b"), txn.get("a/c"), txn.get("d")) == (b"text", b"from a file", b"\xff")
        txn.delete("d")
        txn.delete("never there")
        assert "2 writes" in repr(txn)
    assert scene.snapshot().keys() == ["a/b", "a/c"]


def test_an_object_is_written_once_under_the_holders_token(scene: Scene) -> None:
    scene.write("1", key="a/b")
    scene.write("2", key="a/b")
    names = [name for name in scene.bucket.objects if "/a/b/" in name]
    assert sorted(scene.bucket.objects[name] for name in names) == [b"1", b"2"]
    assert all(f"{5:019}-" in name for name in names)
    assert scene.snapshot().url("a/b") in {f"s3://bucket/{name}" for name in names}


@pytest.mark.parametrize("act", [lambda txn: txn.get("k"), lambda txn: txn.url("k"), lambda txn: txn.keys()])
def test_a_block_does_not_read_what_it_has_written(scene: Scene, act: Any) -> None:
    with scene.block() as txn:
        txn.put("k", "x")
        with pytest.raises(GuardError, match="read first, then write"):
            act(txn)


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", 5, "a\0", "x" * 1025])
def test_a_key_is_made_of_parts(scene: Scene, key: Any) -> None:
    with scene.block() as txn, pytest.raises(ConfigError):
        txn.put(key, "x")


@pytest.mark.parametrize("key", ["..", ".", "a/../b", ".fencelock/manifest", "%2E", "\u00e9", "a b?#", "x" * 300])
def test_a_key_leads_nowhere_else(scene: Scene, key: str) -> None:
    before = scene.manifest
    scene.write("mine", key=key)
    assert scene.value(key) == "mine"
    assert scene.manifest["objects"].keys() == {key}
    assert len(scene.manifest["commits"]) == len(before["commits"]) + 1


def test_a_name_that_s3_has_no_room_for_is_refused_before_anything_is_sent(scene: Scene) -> None:
    def write() -> None:
        with scene.block() as txn:
            txn.put("\u00e9" * 200, "x")

    with pytest.raises(ConfigError, match="S3 takes 1024"):
        write()
    assert scene.values() == []


def test_a_value_is_text_or_bytes(scene: Scene) -> None:
    with scene.block() as txn, pytest.raises(ConfigError, match="a file goes by upload"):
        txn.put("k", 5)


@pytest.mark.parametrize(
    ("limit", "value", "says"),
    [("MAX_KEYS", 2, "3 keys large"), ("MAX_MANIFEST_BYTES", 500, "needs a manifest of")],
)
def test_a_resource_that_would_be_too_large_is_refused_before_anything_is_sent(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, says: str
) -> None:
    monkeypatch.setattr(block, limit, value)

    def write() -> None:
        with scene.block() as txn:
            for key in ("a", "b", "c"):
                txn.put(key, "x")

    with pytest.raises(GuardError, match=says):
        write()
    assert scene.values() == []


def test_a_file_that_is_too_large_for_one_put_is_refused(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "MAX_OBJECT_BYTES", 2)
    (tmp_path / "big").write_bytes(b"big")
    with scene.block() as txn, pytest.raises(GuardError, match="S3 takes 2 in one PUT"):
        txn.upload("k", tmp_path / "big")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"schema":1}', b'{"schema":1,"commits":[1],"mark":null}'])
def test_what_is_no_manifest_admits_nobody(scene: Scene, body: bytes) -> None:
    scene.bucket.objects[scene.layout.manifest(RESOURCE)] = body
    with pytest.raises(SchemaError, match="is not a manifest"):
        scene.write("x")
    assert scene.bucket.objects[scene.layout.manifest(RESOURCE)] == body


def test_a_manifest_of_another_version_admits_nobody(scene: Scene) -> None:
    scene.bucket.objects[scene.layout.manifest(RESOURCE)] = b'{"schema":2}'
    with pytest.raises(SchemaError, match="guard with schema 2, and this version of fencelock has schema 1"):
        scene.write("x")


def test_a_manifest_remembers_the_latest_replaced_objects_only() -> None:
    before = Manifest(retired={f"old-{number}": "" for number in range(MAX_RETIRED)}, objects={"k": "k/new"})
    work = block.S3WriteBuffer("bucket", None, "r", block.LoadedManifest(before, '"x"'), 5)
    work.delete("k")
    after = work.applied_to(before, {})
    assert len(after.retired) == MAX_RETIRED
    assert "old-0" not in after.retired
    assert "k/new" in after.retired


# --- collecting -------------------------------------------------------------------------------------------------------
def stop_before_manifest(scene: Scene, value: str) -> None:
    """Be a holder that uploads, and dies before it names what it has uploaded."""

    def die(_: Any) -> Any:
        raise ZeroDivisionError

    scene.bucket.on(is_manifest, die)
    with pytest.raises(ZeroDivisionError):
        scene.write(value)


def test_uploads_of_the_present_holder_stay(scene: Scene) -> None:
    stop_before_manifest(scene, "mine")
    assert scene.collect() == 0
    assert scene.values() == [b"mine"]


def test_uploads_of_earlier_holders_go_at_once(scene: Scene) -> None:
    stop_before_manifest(scene, "garbage")
    scene.succeed("counts")
    assert scene.collect(older_than_ms=10**9) == 1
    assert scene.values() == [b"counts"]
    assert scene.collect() == 0


def test_a_frozen_writer_whose_upload_is_gone_writes_nothing(scene: Scene) -> None:
    """It is frozen between its upload and its manifest, which is refused: no manifest names what was deleted."""

    def wake_up_late(answer: Any) -> Any:
        scene.bucket.on(is_manifest)
        elsewhere(lambda: scene.guard().seal(HandmadeLease(6)))
        assert scene.collect() == 1
        return answer()

    scene.bucket.on(is_manifest, wake_up_late)
    with pytest.raises(StaleTokenError):
        scene.write("late")
    assert scene.values() == []
    assert scene.value() is None


def test_what_is_uploaded_while_objects_are_listed_stays(scene: Scene) -> None:
    """The list comes first: a mark that is lowered meanwhile lets an older token in again."""
    scene.guard().seal(HandmadeLease(8))
    again = HandmadeLease(4)

    def lower_and_write(answer: Any) -> Any:
        listed = answer()
        scene.bucket.on(is_manifest)
        scene.guard().lower(3, reason="poisoned")
        scene.write("counts", lease=again)
        return listed

    scene.bucket.on(lambda call: call.operation == "list_objects_v2", lower_and_write)
    assert scene.collect() == 0
    assert scene.value() == "counts"


def test_replaced_objects_stay_for_readers(scene: Scene) -> None:
    scene.write("old")
    snapshot = scene.snapshot()
    scene.write("new")
    assert scene.collect(older_than_ms=10**9) == 0
    assert snapshot.get("k") == b"old"
    assert len(scene.manifest["retired"]) == 1
    assert scene.collect() == 1
    assert scene.manifest["retired"] == {}
    assert scene.value() == "new"
    with pytest.raises(GuardError, match="was deleted since the manifest was read"):
        snapshot.get("k")


def test_collecting_disturbs_no_block(scene: Scene) -> None:
    scene.write("old")
    scene.write("new")
    with scene.block() as txn:
        txn.get("k")
        txn.put("another", "mine")
        assert scene.collect() == 1
    assert scene.value("another") == "mine"
    assert scene.value() == "new"


def test_objects_of_others_stay(scene: Scene) -> None:
    scene.bucket.objects[f"{scene.layout.folder(RESOURCE)}notes.txt"] = b"of somebody else"
    scene.succeed()
    assert scene.collect() == 0
    assert b"of somebody else" in scene.values()


def test_locks_of_a_source_inside_the_resource_stay(scene: Scene) -> None:
    """A lock may have any name, also one that looks like an upload's."""
    where = f"{scene.layout.folder(RESOURCE)}jobs/.fencelock/locks/{1:019}-a"
    scene.bucket.objects[where] = b"a lock"
    scene.succeed()
    scene.collect()
    assert where in scene.bucket.objects


def test_without_a_mark_nothing_is_collected(scene: Scene) -> None:
    scene.write("mine")
    del scene.bucket.objects[scene.layout.manifest(RESOURCE)]
    with pytest.raises(GuardError, match="has no mark"):
        scene.collect()
    assert scene.values() == [b"mine"]


@pytest.mark.parametrize("keeps", ["/k/", "/.fencelock/audit/"])
def test_a_resource_whose_manifest_is_lost_is_not_protected_again_without_its_source(scene: Scene, keeps: str) -> None:
    """Whatever is left tells it: the objects of keys, or what `protect` wrote, if no holder has written yet."""
    scene.write("mine")
    scene.bucket.objects = {name: body for name, body in scene.bucket.objects.items() if keeps in name}
    assert scene.bucket.objects
    with pytest.raises(GuardError, match="was protected before"):
        scene.guard().protect()
    with pytest.raises(GuardError, match="has no mark"):
        scene.guard().seal(HandmadeLease(3))
    scene.guard().protect(source=HandmadeSource(5).info)
    with pytest.raises(StaleTokenError):
        scene.guard().seal(HandmadeLease(3))


def test_objects_of_others_do_not_tell_that_a_manifest_was_lost() -> None:
    bucket = FakeBucket()
    guard = sync_guard(bucket.guard_store(), (RESOURCE,), LOCK)
    bucket.objects[f"prefix/{RESOURCE}/notes.txt"] = b"of somebody else"
    guard.protect()
    assert guard.mark().token == 0


# --- servers ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("ignored", [{"IfNoneMatch"}, {"IfMatch"}, {"IfNoneMatch", "IfMatch"}])
def test_a_server_that_ignores_conditions_is_refused(ignored: set[str]) -> None:
    bucket = FakeBucket()
    bucket.ignored = frozenset(ignored)
    with pytest.raises(UnsupportedError, match="ignores the condition"):
        bucket.guard_store().prove()
    assert bucket.objects == {}
    (finding,) = bucket.guard_store().examine()
    assert finding.code == "guard-refused"


def test_the_doctor_finds_what_is_open_to_all_and_what_expires() -> None:
    bucket = FakeBucket()
    rule = {"Status": "Enabled", "Expiration": {"Days": 1}, "Filter": {"Prefix": "pre"}}
    bucket._get_bucket_lifecycle_configuration = lambda **_: {"Rules": [rule]}  # type: ignore[method-assign]
    assert [one.code for one in bucket.guard_store().examine()] == ["objects-expire", "open-to-all"]
    assert bucket.objects == {}


def test_the_doctors_remedy_prints_the_policy(capsys: pytest.CaptureFixture[str]) -> None:
    (finding,) = FakeBucket().guard_store().examine()
    command = finding.remedy.split("`")[1]
    assert execute(shlex.split(command)[1:]) == 0
    assert "put-bucket-policy" in capsys.readouterr().out


def test_one_step_writes_one_resource() -> None:
    with pytest.raises(ConfigError, match="writes one resource in one step"):
        fencelock.guard("s3://bucket/prefix", resources=["a", "b"], lock=LOCK)


def test_marks_are_not_purged_at_s3(scene: Scene) -> None:
    from fencelock.protocol.guard_requests import FindOldMarks

    with pytest.raises(UnsupportedError, match="purges no marks and keeps no floors"):
        scene.store.connect().perform(FindOldMarks("source", 0))


def test_the_policy_has_the_names_of_the_bucket_and_of_the_roles() -> None:
    printed = guard_store("s3://my-bucket/reports").policy("daily", LOCK, "writer", "arn:aws:iam::1:user/me")
    assert "arn:aws:s3:::my-bucket/reports/*/.fencelock/manifest" in printed
    assert "arn:aws:s3:::my-bucket/reports/daily/*" in printed
    assert '"arn:aws:iam::*:role/writer", "arn:aws:iam::1:user/me"' in printed
    assert "s3:if-none-match" in printed


def test_the_policy_keeps_versions_of_values_too() -> None:
    printed = guard_store("s3://my-bucket/reports").policy("daily", LOCK, "writer")
    (command,) = [line for line in printed.splitlines() if not line.startswith("#")]
    denials = {one["Sid"]: one for one in json.loads(shlex.split(command)[-1])["Statement"]}
    assert set(denials["FencelockWriters"]["Action"]) == {"s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion"}


def test_the_policy_tells_operators_of_each_statement_that_refuses_them() -> None:
    printed = guard_store("s3://my-bucket/reports").policy("daily", LOCK, "writer")
    told = printed.rpartition("aws s3api")[2].partition("\n")[2]
    assert "FencelockKeepManifests" in told
    assert "FencelockWriters refuses operators too, unless their role is among 'writer'" in told


@pytest.mark.parametrize(("region", "partition"), [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")])
def test_the_policy_names_the_partition_of_the_region(region: str, partition: str) -> None:
    printed = guard_store(f"s3://my-bucket/reports?region={region}").policy("daily", LOCK, "writer")
    assert f"arn:{partition}:s3:::my-bucket/reports/daily/*" in printed
    assert f"arn:{partition}:iam::*:role/writer" in printed
    assert "arn:aws:" not in printed
    assert "names no region" not in printed


def test_the_policy_says_which_partition_it_assumes() -> None:
    printed = guard_store("s3://my-bucket/reports").policy("daily", LOCK, "writer")
    assert "# The URL names no region: the ARNs are those of partition 'aws'" in printed


def test_what_tests_cannot_ask_of_s3_is_refused_as_it_is() -> None:
    with pytest.raises(UnsupportedError, match="unfenced makes no connection to s3: use a client of your own"):
        unfenced("s3://my-bucket/reports").__enter__()
    with pytest.raises(UnsupportedError, match="resource_path is for etcd and ZooKeeper only"):
        resource_path("s3://my-bucket/reports", RESOURCE)


def test_the_names_of_buckets_are_told_as_they_are_taken() -> None:
    with pytest.raises(ConfigError, match=r"3 to 255 letters, digits, '_', '-' and '\.'"):
        guard_store("s3://x")
    assert guard_store("s3://" + "a_" * 127)
