"""A guard of a user's own: two methods are all that a campaign asks of it."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencelock
from fencelock import Sequencer
from fencelock_lab.campaigns.settings import CampaignSettings, possible_faults
from fencelock_lab.campaigns.targets import make_target
from fencelock_lab.campaigns.text_target import TextTarget, load_guard
from fencelock_lab.campaigns.verdict import CLEAN, VIOLATION
from tests.cli.program import Program, program
from tests.lab.campaigns.test_campaign import SHORT, attack_until
from tests.structure.doc_blocks import blocks, file_name
from tests.support.helpers import ROOT

__all__ = ["program"]
NAME = "python:shop:Documents"
CHECK = "if proof.token < mark:"


def example() -> str:
    """Return the module of the how-to."""
    page = (ROOT / "docs/how-to/verify-a-setup.md").read_text()
    (found,) = (block.body for block in blocks(page) if file_name(block) == "shop.py")
    return found


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder of the module, which is that of its file, too."""
    (tmp_path / "shop.py").write_text(example())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("shop", None)


@pytest.fixture
def target(shop: Path) -> TextTarget:
    url = f"sqlite:///{shop}/locks.db"
    made = make_target(CampaignSettings(source=url, guard=NAME, run="run", of="source"), 1)
    assert isinstance(made, TextTarget)
    made.create()
    return made


def tenure(target: TextTarget, shop: Path) -> Sequencer:
    with fencelock.connect(f"sqlite:///{shop}/locks.db") as source, source.lock(target.lock) as lease:
        return lease.sequencer


def write(target: TextTarget, proof: Sequencer, name: str) -> None:
    (resource,) = target.resources
    seen = target.read(proof, resource)
    with target.writing(proof, resource, seen, name, proof.token):
        pass


def test_the_final_state_is_what_was_written(target: TextTarget, shop: Path) -> None:
    proof = tenure(target, shop)
    write(target, proof, "a")
    write(target, proof, "b")
    assert target.final(target.resources[0]) == ([("a", 1, proof.token), ("b", 2, proof.token)], 2)


def test_a_stale_write_is_refused_after_a_newer_read(target: TextTarget, shop: Path) -> None:
    old, new = tenure(target, shop), tenure(target, shop)
    (resource,) = target.resources
    seen = target.read(old, resource)
    target.read(new, resource)
    with pytest.raises(fencelock.StaleTokenError), target.writing(old, resource, seen, "a", old.token):
        pass
    assert target.final(resource) == ([], 0)


def test_a_part_of_a_line_is_a_write_that_no_process_made(target: TextTarget, shop: Path) -> None:
    proof = tenure(target, shop)
    write(target, proof, "a")
    (resource,) = target.resources
    load_guard(NAME).write(proof, resource, f"a 1 {proof.token}\nb 2")
    assert target.final(resource) == ([("a", 1, proof.token), ("b 2", 2, proof.token)], 2)


def test_a_text_is_emptied_at_the_end(target: TextTarget, shop: Path) -> None:
    write(target, tenure(target, shop), "a")
    assert target.remove() == []
    assert not target.is_there(target.resources[0])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("python:nonesuch:Documents", "ModuleNotFoundError"),
        ("python:shop:Nonesuch", "AttributeError"),
        ("python:shop", "AttributeError"),
        ("python:", "ValueError"),
        ("python:shop:sqlite3.connect", "AttributeError"),
        ("python:collections:Counter", "Counter lacks `read` or `write`"),
    ],
)
def test_a_guard_that_cannot_be_had_is_named(shop: Path, name: str, reason: str) -> None:
    with pytest.raises(fencelock.ConfigError, match=reason):
        load_guard(name)


def test_each_lock_has_one_resource_and_nobody_writes_without_a_token() -> None:
    settings = CampaignSettings(source=None, guard=NAME, run="run", of="source")
    assert [len(settings.resources(number)) for number in range(2)] == [1, 1]
    assert settings.shown_urls()["guard"] == NAME
    assert "stray" not in possible_faults(None, NAME, None)


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(("check", "code"), [(CHECK, CLEAN), ("if False:", VIOLATION)])
def test_a_guard_of_ones_own_is_attacked(program: Program, check: str, code: int) -> None:
    (program.folder / "shop.py").write_text(example().replace(CHECK, check))
    program.environment["PYTHONPATH"] = str(program.folder)
    found, verdict = attack_until(code, program, "--guard", NAME, *SHORT)
    assert found == code, verdict
