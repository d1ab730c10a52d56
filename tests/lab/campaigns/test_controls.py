"""The negative controls: each lets through, or refuses, what the guard that it misuses does not."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import fencelock
from fencelock import Sequencer
from fencelock_lab.campaigns.controls import MISUSES
from fencelock_lab.campaigns.files import new_database
from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.target import Target
from fencelock_lab.campaigns.targets import make_target

TWO_RESOURCES = 1
"""The number of a lock that protects two."""


@dataclass
class Rig:
    """Two tenures, the first of which is over and has read both resources; each process has a target of its own."""

    settings: CampaignSettings
    old: Sequencer
    new: Sequencer

    def process(self) -> Target:
        return make_target(self.settings, TWO_RESOURCES)


def write(target: Target, proof: Sequencer, resource: str) -> None:
    """Write what was computed from an empty resource."""
    seen = target.read(proof, resource)
    with target.writing(proof, resource, seen, f"w{proof.token}", proof.token):
        pass


@pytest.fixture
def control(request: pytest.FixtureRequest) -> str | None:
    name: str | None = request.param
    return name


@pytest.fixture
def rig(tmp_path: Path, control: str | None) -> Iterator[Rig]:
    source_url = f"sqlite:///{tmp_path}/locks.db"
    with fencelock.connect(source_url) as source:
        settings = CampaignSettings(
            source=source_url,
            guard=new_database(tmp_path / "app.db"),
            run="run",
            of="source",
            control=control,
            control_folder=str(tmp_path / "control"),
        )
        target = make_target(settings, TWO_RESOURCES)
        target.create()
        proofs = []
        for _ in range(2):
            with source.lock(target.lock) as lease:
                proofs.append(lease.sequencer)
        yield Rig(settings, *proofs)


def is_refused(target: Target, proof: Sequencer, resource: str) -> bool:
    try:
        write(target, proof, resource)
    except fencelock.StaleTokenError:
        return True
    return False


@pytest.mark.parametrize(
    ("control", "is_open"),
    [(None, False), ("unfenced", True), ("memory-mark", True), ("seal-after-read", False), ("seal-one", False)],
    indirect=["control"],
)
def test_a_stale_write_after_a_newer_write_is_let_through_by_who_checks_no_token(rig: Rig, is_open: bool) -> None:
    old, new = rig.process(), rig.process()
    first, last = old.resources
    old.read(rig.old, first)
    for resource in new.resources:
        write(new, rig.new, resource)
    assert is_refused(old, rig.old, last) is not is_open


@pytest.mark.parametrize(
    ("control", "is_open"),
    [(None, False), ("unfenced", True), ("memory-mark", True), ("seal-after-read", True), ("seal-one", True)],
    indirect=["control"],
)
def test_a_stale_write_after_a_newer_read_is_let_through_by_who_seals_late(rig: Rig, is_open: bool) -> None:
    old, new = rig.process(), rig.process()
    first, last = old.resources
    write(old, rig.old, first)
    new.read(rig.new, first)
    assert is_refused(old, rig.old, last) is not is_open


@pytest.mark.parametrize(("control", "is_refusing"), [(None, False), ("strict", True)], indirect=["control"])
def test_the_newest_holders_second_read_is_refused_by_who_wants_a_higher_token(rig: Rig, is_refusing: bool) -> None:
    process = rig.process()
    process.read(rig.new, process.resources[0])
    if is_refusing:
        with pytest.raises(fencelock.StaleTokenError):
            process.read(rig.new, process.resources[0])
    else:
        process.read(rig.new, process.resources[0])


def test_every_misuse_is_tried() -> None:
    assert set(MISUSES) == {"unfenced", "strict", "seal-after-read", "memory-mark", "seal-one"}
