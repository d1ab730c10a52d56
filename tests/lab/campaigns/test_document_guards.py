"""The broken guards of documents: each lets a stale holder overwrite what its successor has read, or has written."""

from pathlib import Path

import pytest

import fencelock
from fencelock import Sequencer
from fencelock_lab.campaigns.controls import CHECK_FIRST, DOCUMENT_CONTROLS, NO_SEAL, NO_SEAL_STRICT, controls_of
from fencelock_lab.campaigns.document_guards import DOCUMENT_GUARDS
from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.target import Target
from fencelock_lab.campaigns.targets import make_target
from tests.dynamodb.fix_dynamodb import Corner as DynamoCorner
from tests.dynamodb.fix_dynamodb import corner
from tests.redis.fix_redis import Corner as RedisCorner
from tests.s3.fix_s3 import Corner, seaweed

__all__ = ["corner", "seaweed"]


class Rig:
    """Two tenures at one resource, the first of which is over."""

    def __init__(self, guard: str, control: str, folder: Path) -> None:
        settings = CampaignSettings(
            source=f"sqlite:///{folder}/locks.db", guard=guard, run="run", of="source", control=control
        )
        self.old, self.new = make_target(settings, 0), make_target(settings, 0)
        self.old.create()
        (self.resource,) = self.old.resources
        self.proofs = [self._tenure(), self._tenure()]

    def _tenure(self) -> Sequencer:
        with self.old.holding() as lease:
            return lease.sequencer

    def lost(self, *, is_late: bool) -> list[str]:
        """Return the acknowledged writes that are lost; the old holder writes before the new one does, or after it."""
        old, new = self.proofs
        seen_by_old = self.old.read(old, self.resource)
        seen_by_new = self.new.read(new, self.resource)
        told = []
        steps = [(self.old, old, seen_by_old, "old"), (self.new, new, seen_by_new, "new")]
        for target, proof, seen, name in reversed(steps) if is_late else steps:
            if self._is_written(target, proof, seen, name):
                told.append(name)
        kept = [row[0] for row in self.old.final(self.resource)[0]]
        return [name for name in told if name not in kept]

    def _is_written(self, target: Target, proof: Sequencer, seen: object, name: str) -> bool:
        try:
            with target.writing(proof, self.resource, seen, name, proof.token):  # type: ignore[arg-type]
                pass
        except fencelock.StaleTokenError:
            return False
        return True


def check(guard: str, control: str, folder: Path) -> None:
    """The old holder's write gets through after the new one's read; after its write, the mark refuses it."""
    rig = Rig(guard, control, folder)
    assert rig.lost(is_late=False) == ["old"]
    assert rig.lost(is_late=True) == []
    assert rig.old.remove() == []


def test_files_without_a_lock_lose_a_write(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    check(f"file://{tmp_path}/data", CHECK_FIRST, tmp_path)


@pytest.mark.parametrize("control", DOCUMENT_CONTROLS["redis"])
def test_redis_loses_a_write(redis: RedisCorner, tmp_path: Path, control: str) -> None:
    check(redis.url, control, tmp_path)


def test_s3_loses_a_write(seaweed: Corner, tmp_path: Path) -> None:
    check(seaweed.url, CHECK_FIRST, tmp_path)


@pytest.mark.parametrize("control", [NO_SEAL, NO_SEAL_STRICT])
def test_dynamodb_loses_a_write(corner: DynamoCorner, tmp_path: Path, control: str) -> None:
    check(corner.url(), control, tmp_path)


def test_the_check_comes_before_the_write(tmp_path: Path) -> None:
    """A holder that is frozen between the two overwrites what its successor has written meanwhile."""
    (tmp_path / "data").mkdir()
    rig = Rig(f"file://{tmp_path}/data", CHECK_FIRST, tmp_path)
    old, new = rig.proofs
    seen = rig.old.read(old, rig.resource)
    with rig.old.writing(old, rig.resource, seen, "old", old.token):
        again = rig.new.read(new, rig.resource)
        with rig.new.writing(new, rig.resource, again, "new", new.token):
            pass
    assert [row[0] for row in rig.old.final(rig.resource)[0]] == ["old"]


def test_each_is_offered_where_it_works() -> None:
    assert {scheme: tuple(guards) for scheme, guards in DOCUMENT_GUARDS.items()} == DOCUMENT_CONTROLS
    assert set(DOCUMENT_CONTROLS["redis"]) < set(controls_of("redis"))
    assert "seal-one" in controls_of("redis")
    assert "seal-one" not in controls_of("s3")
