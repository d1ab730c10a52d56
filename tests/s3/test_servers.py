"""The S3 guard at servers: which it refuses, what `doctor` finds there, and what a server that is killed leaves."""

from typing import Any

import pytest

import fencelock
from fencelock import OutcomeUnknownError, SourceUnavailableError, UnsupportedError
from fencelock.stores.registry import guard_store
from fencelock.stores.s3.connection.client import S3Client
from fencelock_lab.servers.rclone import RcloneFleet
from fencelock_lab.servers.seaweedfs import SeaweedFleet
from tests.s3.fake_bucket import is_manifest
from tests.s3.fix_s3 import Corner
from tests.s3.test_guard_life import S3Face
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, HandmadeSource
from tests.support.helpers import wait_until


def test_rclone_which_ignores_conditions_is_refused(rclone_fleet: RcloneFleet) -> None:
    with rclone_fleet.new_server() as server:
        corner = Corner(server.url, "test")
        guard = fencelock.guard(corner.url, resource=RESOURCE, lock=LOCK)
        with pytest.raises(UnsupportedError, match="ignores the condition"):
            guard.protect(source=HandmadeSource(0).info)
        with pytest.raises(UnsupportedError, match="ignores the condition"):
            guard.seal(HandmadeLease(5))
        assert corner.names() == []


def test_a_real_server_keeps_its_conditions_when_many_write_at_once(seaweed: Corner) -> None:
    store = guard_store(seaweed.url)
    store.prove()  # type: ignore[attr-defined]
    assert [one.code for one in store.examine()] == ["open-to-all"]
    assert seaweed.names() == []


def test_a_bucket_that_is_not_there_is_named(seaweed: Corner) -> None:
    url = seaweed.url.replace("s3://fencelock/", "s3://no-such-bucket/")
    with pytest.raises(fencelock.SourceError, match="no-such-bucket"):
        fencelock.guard(url, resource=RESOURCE, lock=LOCK).mark()


@pytest.mark.campaign
@pytest.mark.parametrize("round_", range(3))
def test_a_server_that_is_killed_between_uploads_and_manifest_leaves_nothing(
    seaweed_fleet: SeaweedFleet, monkeypatch: pytest.MonkeyPatch, round_: int
) -> None:
    """Killed before the manifest is sent, or while it is on its way; afterwards the guard goes on."""
    with seaweed_fleet.new_server() as server:
        face = S3Face(Corner(server.url, "test"))
        guard, lease = face.guard(), HandmadeLease(5)
        face.write(lease, "before", guard)
        send = S3Client._send

        def kill_before(client: S3Client, call: Any, timeout_s: float) -> Any:
            if is_manifest(call) and server.is_running():
                server.kill()
            return send(client, call, timeout_s)

        monkeypatch.setattr(S3Client, "_send", kill_before)
        with pytest.raises((SourceUnavailableError, OutcomeUnknownError)):
            face.write(lease, "during", guard)
        monkeypatch.undo()
        server.start()
        assert wait_until(lambda: _value(face)) == "before"
        face.write(lease, "after", guard)
        assert face.value() == "after"
        assert fencelock.s3.collect(face.url, RESOURCE, older_than=0) >= 1


def _value(face: S3Face) -> str | None:
    try:
        return face.value()
    except (SourceUnavailableError, OutcomeUnknownError):
        return None
