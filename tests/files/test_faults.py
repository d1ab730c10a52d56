"""A commit is whole or nothing: killed between any two system calls, with the power cut there, and with calls failing.

Each test runs `folder_faults.py`, which has one process for each point.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).with_name("folder_faults.py")
LOST = "cut flushed flushed"
"""Nothing is left but what was flushed: all that POSIX promises, and that a rename has both of its sides."""


def run(folder: Path, scenario: str, *actions: str, broken: str = "", counted: str = "changes") -> Any:
    """Return what the program has found."""
    command = [sys.executable, PROGRAM, folder / "disk", scenario, broken, counted, *actions]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(found: Any, *, points: int) -> None:
    assert found["wrong"] == []
    assert found["points"] >= points, "the scenario has not been cut where it does its work"


def test_several_files_and_a_key_are_committed_together_or_not_at_all(tmp_path: Path) -> None:
    found = run(tmp_path, "several", "kill", LOST)
    check(found, points=100)
    assert set(found["ends"]) == {"None", "new None"}


def test_a_file_that_is_made_again_stays_after_a_power_cut(tmp_path: Path) -> None:
    """The journal of its deletion does not come back."""
    check(run(tmp_path, "made_again", LOST), points=70)


def test_g4_a_seal_that_was_confirmed_survives(tmp_path: Path) -> None:
    check(run(tmp_path, "sealed", LOST), points=40)


def test_an_error_is_definite_until_the_first_rename(tmp_path: Path) -> None:
    """A full disk, at every call and from every call on: who is told "nothing was written" finds the old files."""
    found = run(tmp_path, "several", "fail ENOSPC on")
    check(found, points=50)
    assert {"definite SourceUnavailableError", "unknown OutcomeUnknownError", "new None"} == set(found["ends"])


@pytest.mark.campaign
@pytest.mark.parametrize("scenario", ["one", "several", "made_again", "sealed"])
@pytest.mark.parametrize(
    "action",
    [
        "kill", LOST, "cut all flushed", "cut flushed all",
        "fail ENOSPC once", "fail ENOSPC on", "fail EIO once", "fail EIO on", "fail EACCES once", "fail EACCES on",
    ],
)  # fmt: skip
def test_every_call_of_every_scenario(tmp_path: Path, scenario: str, action: str) -> None:
    counted = "changes" if action.startswith("fail") else "every"
    check(run(tmp_path, scenario, action, counted=counted), points=20)


@pytest.mark.parametrize(
    ("broken", "scenario", "action"),
    [
        pytest.param("without_journal", "several", "kill", marks=pytest.mark.campaign),
        ("without_finishing", "several", "kill"),
        pytest.param("without_flushing_drafts", "several", LOST, marks=pytest.mark.campaign),
        pytest.param("without_flushing_folders", "several", LOST, marks=pytest.mark.campaign),
        pytest.param("without_flushing_the_journal", "several", LOST, marks=pytest.mark.campaign),
        pytest.param("without_flushing_its_end", "made_again", LOST, marks=pytest.mark.campaign),
    ],
)
def test_a_guard_that_does_less_is_found_out(tmp_path: Path, broken: str, scenario: str, action: str) -> None:
    assert run(tmp_path, scenario, action, broken=broken)["wrong"]
