"""A worker's wall clock jumps, and nothing else does."""

import subprocess
import sys
from pathlib import Path

import pytest

from fencelock.cli.commands import execute
from fencelock_lab.campaigns import clocks
from fencelock_lab.campaigns.verdict import CLEAN
from fencelock_lab.servers import faketime, programs
from tests.cli.program import Program, program
from tests.lab.campaigns.test_campaign import attack_until, file_at
from tests.support.programs import need

__all__ = ["program"]

SHARED = Path("/dev/shm")  # noqa: S108 - where the system has it
JUMPS = """
import time
from fencelock_lab.campaigns import clocks
clocks.prepare()
def read():
    return time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
before = read()
for seconds in (7200, -7200, 0):
    clocks.jump(seconds)
    time.sleep(0.05)
    print(*(round((now - then) / 3600) for now, then in zip(read(), before)))
"""


@pytest.fixture
def libfaketime() -> None:
    need(programs.FAKETIME)


@pytest.mark.usefixtures("libfaketime")
def test_a_jump_moves_the_time_of_day_alone(tmp_path: Path) -> None:
    variables = programs.environment(**faketime.variables(tmp_path / "clock"))
    command = [sys.executable, "-P", "-c", JUMPS]
    process = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
    told, _ = process.communicate(timeout=30)
    assert told.splitlines() == ["2 0 0", "-2 0 0", "0 0 0"]


@pytest.mark.usefixtures("libfaketime")
def test_what_a_killed_process_shares_is_removed(tmp_path: Path) -> None:
    variables = programs.environment(**faketime.variables(tmp_path / "clock"))
    command = [sys.executable, "-P", "-c", "import time; time.time(); print(flush=True); input()"]
    with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    assert list(SHARED.glob(f"*faketime_*_{process.pid}"))
    clocks.forget(process.pid)
    assert not list(SHARED.glob(f"*faketime_*_{process.pid}"))


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.slow
@pytest.mark.usefixtures("libfaketime")
def test_a_set_up_whose_clocks_jump_stands(program: Program) -> None:
    words = ("--guard", file_at(program.folder), "--faults", "freeze,kill,jump", "--ttl", "0.3", "--duration", "6")
    code, verdict = attack_until(CLEAN, program, *words)
    assert (code, verdict["violations"]) == (0, []), verdict
    assert verdict["amounts"]["jumps"] > 0


@pytest.fixture
def no_faketime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "FAKETIME", "/nonexistent/*")
    monkeypatch.setitem(programs.PACKAGES, "/nonexistent/*", "libfaketime")


@pytest.mark.usefixtures("no_faketime")
def test_without_libfaketime_a_run_that_asks_for_jumps_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attacked(tmp_path, monkeypatch, "--faults", "freeze,jump") == 69
    assert "apt-get install libfaketime" in capsys.readouterr().err


@pytest.mark.usefixtures("no_faketime")
def test_without_libfaketime_other_runs_say_so_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attacked(tmp_path, monkeypatch) == 0
    told = capsys.readouterr()
    assert "no clock will jump: libfaketime is not installed" in told.err
    assert "jump" not in told.out


def attacked(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Return how a dry run ends, in this very process."""
    monkeypatch.delenv("FENCELOCK_DEBUG", raising=False)
    return execute(["verify", "--guard", file_at(folder), "--dry-run", *words])
