"""The own campaigns of this project: each schedule runs once, with a fresh seed, on its own servers, and is clean."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fencelock_lab.campaigns.report import story
from fencelock_lab.campaigns.schedules import (
    FILE,
    FILES,
    HTTP,
    OWN,
    SCHEDULES,
    CampaignSchedule,
    run_schedule,
)
from fencelock_lab.campaigns.verdict import CLEAN, NOT_ENOUGH
from tests.lab.campaigns.test_own import need_all

MAX_RUNS = 3
PROVEN = [name for name, schedule in SCHEDULES.items() if schedule.group != OWN]
"""test_own.py runs those of the group `own` by their command."""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the folder in which the servers make theirs: those that run as another user can go through it."""
    made = Path(tempfile.mkdtemp(prefix="fl-schedule-", dir="/tmp"))
    made.chmod(0o755)
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    yield made
    shutil.rmtree(made)


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PROVEN)
def test_every_promise_is_kept(name: str, folder: Path, tmp_path: Path) -> None:
    """On a loaded machine little happens in one run: what has happened is judged, and it runs again."""
    schedule = SCHEDULES[name]
    for setup in {schedule.setup, schedule.guard} - {None, FILE, FILES, HTTP}:
        need_all(str(setup))
    left: list[str] = []
    for _ in range(MAX_RUNS):
        outcome = run_schedule(schedule, tmp_path / "history.jsonl", warn=left.append)
        if outcome.verdict.code != NOT_ENOUGH:
            break
    assert outcome.verdict.code == CLEAN, f"seed {outcome.seed}\n{story(outcome.verdict)}"
    assert left == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=lambda one: one.name)
def test_a_schedule_says_what_it_must_show(schedule: CampaignSchedule) -> None:
    assert schedule.least
    assert schedule.duration > 0
    if schedule.script:
        assert schedule.least["server_faults"] == len(schedule.script)
