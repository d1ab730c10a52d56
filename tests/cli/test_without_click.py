"""The library without its extra `cli`: the command exists, and says what it needs."""

import subprocess
import sys

import pytest

_WITHOUT = "import sys; sys.modules['{absent}'] = None; from fencelock.cli import main; main()"


def run_without(absent: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command where one package cannot be imported."""
    command = [sys.executable, "-c", _WITHOUT.format(absent=absent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.reduced
def test_without_click_the_command_names_the_extra() -> None:
    done = run_without("click", "locks")
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.splitlines() == [done.stderr.strip()]
    assert "from a clone of fencelock, run pip install '.[cli]'" in done.stderr


def test_without_rich_the_command_still_works() -> None:
    done = run_without("rich", "--help")
    assert done.returncode == 0
    assert "doctor" in done.stdout
