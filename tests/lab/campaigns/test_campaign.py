"""Campaigns with real processes: a sound set-up passes, every broken guard is caught, and nothing is left behind."""

import json
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import inspect_resources
from fencelock._api import lock_options
from fencelock_lab.campaigns.controls import CONTROLS, DOCUMENT_CONTROLS, SOUND
from fencelock_lab.campaigns.verdict import CLEAN, NOT_ENOUGH, VIOLATION
from tests.cli.program import Program, program
from tests.etcd.fix_etcd import Corner
from tests.support.helpers import wait_until

__all__ = ["program"]
pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(600)]

MAX_CAMPAIGNS = 5
REQUEST_TIMEOUT_S = 180
KILLS_EARLY = "59"
"""A seed whose faults of each worker's first two tenures hold kills and writes without a token."""
LOOK_S = 0.2
SHORT = ("--ttl", "0.3", "--duration", "4")
TELLING = {
    "unfenced": {"stale-token-accepted", "overwritten-write", "lost-write"},
    "strict": {"newest-holder-refused"},
    "no-seal": {"stale-token-accepted", "overwritten-write"},
    "seal-after-read": {"stale-token-accepted", "overwritten-write"},
    "memory-mark": {"stale-token-accepted", "overwritten-write"},
    "per-row": {"stale-token-accepted", "overwritten-write"},
    "unremembered": {"lost-write"},
    "seal-one": {"sealed-late"},
    "untold": {"loss-untold"},
    "compare-first": {"stale-token-accepted", "overwritten-write", "lost-write"},
    "check-first": {"stale-token-accepted", "overwritten-write", "lost-write"},
    "no-seal-strict": {"stale-token-accepted", "overwritten-write", "lost-write"},
}
"""Rules of which each broken guard must break at least one."""


def file_at(folder: Path) -> str:
    """Make a database, as a user has one, and return its URL."""
    path = folder / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE users_own (value)")
    return f"sqlite:///{path}"


def tables(url: str) -> set[str]:
    """Return the tables in the file that are not a guard's own."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {name for (name,) in rows if not name.startswith(("sqlite_", "fencelock_"))}


def is_sealed(url: str) -> bool:
    """Return, after a pause, whether a guard has raised the first mark in the file.

    A reader that comes back every few milliseconds keeps the campaign's processes from writing.
    """
    time.sleep(LOOK_S)
    marks = inspect_resources(url).marks
    return bool(marks and marks[0].token)


def attack(program: Program, *words: str) -> tuple[int, Any]:
    """Run a campaign, and return its exit code and verdict."""
    process = program.start("verify", *words, "--json")
    told, errors = process.communicate(timeout=REQUEST_TIMEOUT_S)
    assert told, errors
    return process.returncode, json.loads(told)


def attack_until(wanted: int, program: Program, *words: str, much: tuple[str, ...] = ()) -> tuple[int, Any]:
    """Run short campaigns until one comes out so, with some of each of these amounts, or finds a violation: on a loaded
    machine little happens in one.
    """
    for _ in range(MAX_CAMPAIGNS):
        code, verdict = attack(program, *words)
        if code == VIOLATION or (code == wanted and all(verdict["amounts"][amount] for amount in much)):
            break
    return code, verdict


@pytest.mark.disk  # doctor warns of a file in memory.
def test_a_sound_set_up_passes_and_nothing_is_left_behind(program: Program) -> None:
    guard = file_at(program.folder)
    history = program.folder / "history.jsonl"
    code, verdict = attack_until(
        CLEAN,
        program,
        "--guard",
        guard,
        "--history",
        str(history),
        "--seed",
        KILLS_EARLY,
        *SHORT,
        much=("kills", "strays"),
    )
    assert (code, verdict["verdict"], verdict["violations"]) == (0, "clean", []), verdict
    assert verdict["amounts"]["kills"] > 0
    assert verdict["amounts"]["strays"] > 0
    assert verdict["information"]["overlaps that an expired lease explains"] > 0
    assert tables(guard) == {"users_own"}
    assert inspect_resources(guard).protections == ()
    assert program.inside("doctor", "--guard", guard).returncode == 0
    assert [path.name for path in program.folder.iterdir() if path.suffix == ".jsonl"] == ["history.jsonl"]
    again = program("verify", "--check", str(history), "--json")
    assert json.loads(again.stdout) == verdict
    assert program.left() == []


@pytest.mark.campaign
@pytest.mark.parametrize("control", sorted({*CONTROLS} - {SOUND}))
def test_each_broken_guard_is_caught(program: Program, control: str) -> None:
    history = str(program.folder / "history.jsonl")
    code, verdict = attack(program, "--control", control, "--history", history, *SHORT)
    assert code == 1, verdict
    assert {one["rule"] for one in verdict["violations"]} & TELLING[control]
    assert verdict["explanation"]


def test_every_broken_guard_has_its_telling_rules() -> None:
    assert {*TELLING, SOUND} == {*CONTROLS}.union(*DOCUMENT_CONTROLS.values())


@pytest.mark.campaign
def test_a_sound_guard_whose_resources_are_restored_passes(program: Program) -> None:
    history = program.folder / "history.jsonl"
    words = ("--control", SOUND, "--history", str(history), *SHORT)
    code, verdict = attack_until(CLEAN, program, *words)
    assert (code, verdict["violations"]) == (0, []), verdict
    lines = history.read_text().splitlines()
    assert any('"f": "restore"' in line for line in lines)
    assert any("SealLostError" in line for line in lines)


@pytest.mark.campaign
def test_a_run_in_which_nothing_is_frozen_proves_nothing(program: Program) -> None:
    guard = file_at(program.folder)
    code, verdict = attack(program, "--guard", guard, "--faults", "kill,stray", "--ttl", "0.3", "--duration", "2")
    assert (code, verdict["verdict"]) == (2, "not enough")
    assert verdict["shortfalls"]


def test_a_dry_run_touches_nothing(program: Program) -> None:
    (program.folder / "locks.db").unlink()
    guard = file_at(program.folder)
    before = (program.folder / "app.db").read_bytes()
    told = program.json("verify", "--guard", guard, "--dry-run", "--locks", "2")
    assert len(told["makes"]) == 6
    assert (program.folder / "app.db").read_bytes() == before
    assert not (program.folder / "locks.db").exists()


def test_a_dry_run_makes_no_folder_for_the_default_source(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = program.folder / "state" / "fencelock"
    monkeypatch.setattr(lock_options, "default_folder", lambda: folder)
    program.environment["FENCELOCK_SOURCE"] = ""
    told = program.json("verify", "--guard", file_at(program.folder), "--dry-run")
    assert told["source"] == f"sqlite:///{folder}/locks.db"
    assert not folder.parent.exists()


def test_a_dry_run_says_that_the_guards_file_does_not_exist(program: Program) -> None:
    done = program.inside("verify", "--guard", "sqlite:///nosuch.db", "--dry-run")
    assert (done.returncode, done.stdout) == (69, "")
    assert f"{program.folder}/nosuch.db does not exist" in done.stderr
    assert not (program.folder / "nosuch.db").exists()


@pytest.mark.campaign
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_campaign_cleans_up(program: Program, number: signal.Signals) -> None:
    """Whoever is impatient meanwhile interrupts nothing."""
    guard = file_at(program.folder)
    process = program.start("verify", "--guard", guard, "--ttl", "0.3", "--duration", "60")
    wait_until(lambda: is_sealed(guard))
    process.send_signal(number)
    end = time.monotonic() + REQUEST_TIMEOUT_S
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
        process.send_signal(signal.SIGINT)
    # On a busy machine both come before the process looks, and Python tells it of the lower number first.
    assert process.returncode in {128 + number, 128 + signal.SIGINT}
    assert tables(guard) == {"users_own"}
    assert inspect_resources(guard).protections == ()
    assert "left behind" not in process.stderr.read()  # type: ignore[union-attr]
    wait_until(lambda: not program.left())  # One that was only just started ends when it finds no orders.


@pytest.mark.campaign
def test_no_worker_outlives_a_killed_conductor(program: Program) -> None:
    program.environment["TMPDIR"] = str(program.folder)  # What a killed conductor leaves there goes with the test.
    guard = file_at(program.folder)
    process = program.start("verify", "--guard", guard, "--ttl", "0.3", "--duration", "60")
    wait_until(lambda: is_sealed(guard))
    process.kill()
    process.wait()
    wait_until(lambda: not program.left())
    refused = program("verify", "--guard", guard, "--duration", "1")
    assert (refused.returncode, refused.stdout) == (69, "")  # 1 is for a promise that was broken.
    assert "of another run of fencelock verify" in refused.stderr
    assert "left behind" not in refused.stderr


@pytest.mark.campaign
def test_a_hangup_that_is_ignored_stays_ignored(program: Program) -> None:
    """As under nohup."""
    guard = file_at(program.folder)
    ignoring = f"trap '' HUP; exec {sys.executable} -m fencelock.cli verify --guard {guard} --ttl 0.3 --duration 2"
    with subprocess.Popen(["sh", "-c", ignoring], env=program.environment, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: is_sealed(guard))
        process.send_signal(signal.SIGHUP)
        assert process.wait(REQUEST_TIMEOUT_S) in {CLEAN, NOT_ENOUGH}


def test_a_place_that_the_guard_refuses_is_no_verdict(program: Program, etcd: Corner) -> None:
    with fencelock.connect(etcd.url) as source:
        source.install()
    refused = program("verify", "--source", etcd.url, "--guard", etcd.url, "--ttl", "1", "--duration", "1")
    assert (refused.returncode, refused.stdout) == (69, "")
    assert "could not be carried out" in refused.stderr


def test_a_control_is_never_let_loose_on_a_users_file(program: Program) -> None:
    refused = program("verify", "--control", "strict", "--guard", file_at(program.folder))
    assert refused.returncode == 64
    assert "never at a --source or --guard of yours" in refused.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "--guard URL"),
        (("--guard", "sqlite:///app.db", "--faults", "flood"), "'flood' is not a fault that can hit"),
        (("--guard", "sqlite:///app.db", "--source", "memory://here"), "a source in memory"),
        (("--control", "nonesuch"), "'nonesuch' is not one of the controls: unfenced"),
        (("--control", "per-row", "--own", "postgres"), "'per-row' is not one of the controls that work with --own"),
        (("--guard", "sqlite:///app.db", "--duration", "nan"), "'--duration': nan is not a number of seconds"),
        (("--guard", "sqlite:///app.db", "--duration", "inf"), "'--duration': inf is not a number of seconds"),
        (("--guard", "sqlite:///app.db", "--ttl", "nan"), "'--ttl': nan is not a number of seconds"),
        (("--guard", "sqlite:///app.db", "--ttl", "inf"), "'--ttl'"),
        (("--guard", "sqlite:///app.db", "--source", "etcd://host/l", "--ttl", "0.5"), "--ttl: lock"),
        (("--guard", "sqlite:///app.db", "--source", "etcd://host/l", "--ttl", "1.5"), "in steps of 1"),
        (("--guard", "sqlite:///app.db", "--source", "zookeeper://host/l", "--ttl", "0.5"), "--ttl: lock"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(program: Program, words: tuple[str, ...], complaint: str) -> None:
    done = program("verify", *words)
    assert done.returncode == 64
    assert complaint in done.stderr


def test_a_guard_that_a_campaign_cannot_write_to_is_refused(program: Program) -> None:
    (program.folder / "locks.db").unlink()
    done = program("verify", "--guard", "nonesuch://place/x")
    assert done.returncode in {64, 69}
    assert "nonesuch" in done.stderr
    assert not (program.folder / "locks.db").exists()  # The source is not made for nothing.


def test_a_guard_that_is_not_there_is_refused_before_the_source_is_made(program: Program) -> None:
    (program.folder / "locks.db").unlink()
    done = program("verify", "--guard", f"sqlite:///{program.folder}/missing.db")
    assert done.returncode == 69
    assert "missing.db does not exist" in done.stderr
    assert not (program.folder / "locks.db").exists()
