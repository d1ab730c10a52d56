"""`fencelock run --once`: CMD is run at least once for a key. `fencelock purge --done`: old results are forgotten."""

import signal
import sys
from pathlib import Path

import pytest

import fencelock
from tests.cli.program import SAY_READY, Program, program, ready
from tests.support.guards import HandmadeLease, ask, make_file, url_of

__all__ = ["program"]
pytestmark = pytest.mark.process
NIGHT = "2026-11-22"


@pytest.fixture
def app(tmp_path: Path) -> str:
    return url_of(make_file(tmp_path / "app.db"))


def kept(app: str) -> list[tuple[object, ...]]:
    path = Path(app.removeprefix("sqlite:///"))
    return ask(path, "SELECT resource, key, result FROM fencelock_effect")


def test_g14_cmd_is_not_run_again_after_it_has_ended_with_0(program: Program, app: str) -> None:
    once = ("run", "nightly", "--once", NIGHT, "--guard", app, "--", "sh", "-c", "echo ran")
    first, second = program(*once), program(*once)
    assert (first.returncode, first.stdout, first.stderr) == (0, "ran\n", "")
    assert (second.returncode, second.stdout) == (0, "")
    assert second.stderr == f"fencelock: '{NIGHT}' was done before, with token 1: CMD is not run\n"
    assert kept(app) == [("nightly", NIGHT, "")]
    assert program.json("show", "nightly")["holder"] is None
    another = program("run", "nightly", "--once", "2026-11-23", "--guard", app, "--", "sh", "-c", "echo ran")
    assert another.stdout == "ran\n"


def test_g14_a_cmd_that_fails_is_run_again(program: Program, app: str) -> None:
    once = (
        "run",
        "nightly",
        "--once",
        NIGHT,
        "--guard",
        app,
        "--",
        "sh",
        "-c",
        "test -e app.done || { touch app.done; exit 3; }",
    )
    assert [program(*once).returncode for _ in range(3)] == [3, 0, 0]
    assert kept(app) == [("nightly", NIGHT, "")]


def test_g14_a_cmd_that_was_killed_is_run_again(program: Program, app: str) -> None:
    running = program.start(
        "run", "nightly", "--ttl", "1", "--once", NIGHT, "--guard", app, "--", "sh", "-c", f"{SAY_READY}sleep 60"
    )
    ready(running)
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert program("run", "nightly", "--once", NIGHT, "--guard", app, "--", "true").returncode == 0


def test_g14_another_cmd_under_the_key_is_refused(program: Program, app: str) -> None:
    assert program("run", "nightly", "--once", NIGHT, "--guard", app, "--", "true").returncode == 0
    refused = program("run", "nightly", "--once", NIGHT, "--guard", app, "--", "echo", "another")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "stands for another request" in refused.stderr


def test_g14_what_could_not_be_recorded_is_told(program: Program, app: str) -> None:
    """A later holder has sealed the resource while CMD ran."""
    guard = fencelock.guard(app, resource="nightly", lock="nightly")
    steal = "import fencelock; "
    steal += "from dataclasses import replace; old = fencelock.Sequencer.from_env(); "
    steal += f"fencelock.guard('{app}', resource='nightly', lock='nightly').seal(replace(old, token=99))"
    done = program("run", "nightly", "--once", NIGHT, "--guard", app, "--", sys.executable, "-c", steal)
    assert done.returncode == 69
    assert f"CMD ended with 0, but '{NIGHT}' was not recorded, so it will be run again" in done.stderr
    assert guard.mark().token == 99


@pytest.mark.parametrize("guards", [(), ("--guard", "sqlite:///a.db", "--guard", "sqlite:///b.db")])
def test_a_key_needs_one_guard(program: Program, guards: tuple[str, ...]) -> None:
    done = program("run", "nightly", "--once", NIGHT, *guards, "--", "true")
    assert done.returncode == 64
    assert f"--once {NIGHT}: write one --guard URL" in done.stderr


def test_purge_done_forgets_old_results(program: Program, app: str) -> None:
    guard = fencelock.guard(app, resource="nightly", lock="nightly")
    with guard.transaction(HandmadeLease(5, lock="nightly"), once=NIGHT):
        pass
    guard.seal(HandmadeLease(6, lock="nightly"))
    assert program("purge", "--done", "--guard", app, "--older-than", "1").stdout == "0 forgotten\n"
    assert program.json("purge", "--done", "--guard", app, "--older-than", "0") == {"purged": 1}
    assert kept(app) == []


@pytest.mark.parametrize(
    "words",
    [
        ("--done",),
        ("--marks",),
        ("--older-than", "1"),
        ("--guard", "sqlite:///a.db"),
        ("--done", "--older-than", "1"),
        ("--marks", "--older-than", "1"),
    ],
)
def test_purge_takes_all_of_its_options_or_none(program: Program, words: tuple[str, ...]) -> None:
    done = program("purge", *words)
    assert done.returncode == 64
    assert "write --done --guard URL --older-than DAYS, or --marks --guard URL" in done.stderr
