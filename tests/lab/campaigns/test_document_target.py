"""Documents as a campaign's resources: a list with a line for each write, and counters beside it, in one block."""

from collections.abc import Callable
from pathlib import Path

import pytest

import fencelock
from fencelock import Sequencer
from fencelock_lab.campaigns.document_target import DocumentTarget
from fencelock_lab.campaigns.settings import CampaignSettings, possible_faults
from fencelock_lab.campaigns.targets import make_target
from tests.dynamodb.fix_dynamodb import Corner as DynamoCorner
from tests.dynamodb.fix_dynamodb import corner
from tests.redis.fix_redis import Corner as RedisCorner
from tests.s3.fix_s3 import Corner, seaweed

__all__ = ["corner", "seaweed"]

Tenure = Callable[[], Sequencer]


@pytest.fixture
def target(tmp_path: Path) -> DocumentTarget:
    (tmp_path / "data").mkdir()
    settings = CampaignSettings(
        source=f"sqlite:///{tmp_path}/locks.db", guard=f"file://{tmp_path}/data", run="run", of="source"
    )
    return made_target(settings)


def made_target(settings: CampaignSettings) -> DocumentTarget:
    made = make_target(settings, 0)
    assert isinstance(made, DocumentTarget)
    made.create()
    return made


@pytest.fixture
def tenure(target: DocumentTarget) -> Tenure:
    def new() -> Sequencer:
        with target.holding() as lease:
            return lease.sequencer

    return new


def write(target: DocumentTarget, proof: Sequencer, name: str) -> None:
    (resource,) = target.resources
    seen = target.read(proof, resource)
    with target.writing(proof, resource, seen, name, proof.token):
        pass


def check_all(guard: str, folder: Path) -> None:
    """Check a target of another store, and take it away."""
    target = made_target(CampaignSettings(source=f"sqlite:///{folder}/locks.db", guard=guard, run="run", of="source"))
    (resource,) = target.resources
    with target.holding() as lease:
        old = lease.sequencer
        write(target, old, "a")
    with target.holding() as lease:
        write(target, lease.sequencer, "b")
        with pytest.raises(fencelock.StaleTokenError):
            write(target, old, "late")
        newest = lease.token
    assert target.final(resource) == ([("a", 1, old.token), ("b", 2, newest)], 2)
    assert target.remove() == []
    assert not target.is_there(resource)


def test_the_final_state_is_what_was_written(target: DocumentTarget, tenure: Tenure) -> None:
    proof = tenure()
    write(target, proof, "a")
    write(target, proof, "b")
    assert target.final(target.resources[0]) == ([("a", 1, proof.token), ("b", 2, proof.token)], 2)


def test_a_stale_write_is_refused_after_a_newer_read(target: DocumentTarget, tenure: Tenure) -> None:
    old, new = tenure(), tenure()
    (resource,) = target.resources
    seen = target.read(old, resource)
    target.read(new, resource)
    with pytest.raises(fencelock.StaleTokenError), target.writing(old, resource, seen, "a", old.token):
        pass
    assert target.final(resource) == ([], 0)


def test_a_write_that_overwrites_another_one_takes_its_line_away(target: DocumentTarget, tenure: Tenure) -> None:
    """So a guard that lets it through is found out."""
    proof = tenure()
    (resource,) = target.resources
    seen = target.read(proof, resource)
    for name in ("a", "b"):
        with target.writing(proof, resource, seen, name, proof.token):
            pass
    assert target.final(resource) == ([("b", 1, proof.token)], 1)


def test_what_was_made_is_taken_away_again(target: DocumentTarget) -> None:
    (resource,) = target.resources
    assert target.is_there(resource)
    assert target.remove() == []
    assert not target.is_there(resource)


def test_a_store_that_refuses_nobody_by_itself_is_not_tried_without_a_token(target: DocumentTarget) -> None:
    assert possible_faults(None, target.url, None) == ("freeze", "kill", "jump")


def test_objects_of_s3_are_documents(seaweed: Corner, tmp_path: Path) -> None:
    check_all(seaweed.url, tmp_path)


def test_keys_of_redis_are_documents(redis: RedisCorner, tmp_path: Path) -> None:
    check_all(redis.url, tmp_path)


def test_items_of_dynamodb_are_documents(corner: DynamoCorner, tmp_path: Path) -> None:
    fencelock.guard(corner.url(), resource="any", lock="any").install()
    check_all(corner.url(), tmp_path)
