"""The files that `fencelock verify` writes: what cannot be written is told beforehand, and no history is lost."""

import re
from pathlib import Path

import pytest

from tests.cli.program import Program, program
from tests.lab.campaigns.test_campaign import SHORT, file_at
from tests.lab.campaigns.test_check_command import busy, file_of

__all__ = ["program"]

FULL = Path("/dev/full")
"""Can be opened; nothing can be written to it."""


@pytest.mark.parametrize("words", [("--history", "gone/x"), ("--html", "gone/x"), ("--history", "/proc/x")])
def test_a_file_that_cannot_be_written_is_told_before_the_campaign(program: Program, words: tuple[str, str]) -> None:
    done = program("verify", "--guard", file_at(program.folder), *words)
    assert (done.returncode, done.stdout) == (64, "")
    assert f"{words[0]}: {words[1]} cannot be written: No such file or directory" in done.stderr
    assert "seed" not in done.stderr


def test_a_page_that_cannot_be_written_is_told_before_a_history_is_judged(program: Program) -> None:
    done = program("verify", "--check", file_of(busy(), program.folder), "--html", "gone/x")
    assert (done.returncode, done.stdout) == (64, "")
    assert "--html: gone/x cannot be written" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--guard", "sqlite:///app.db", "--history", "x", "--html", "x"),
        ("--guard", "sqlite:///app.db", "--history", "x", "--html", "./link"),
        ("--check", "history.jsonl", "--html", "history.jsonl"),
        ("--check", "history.jsonl", "--html", "hard"),
    ],
)
def test_no_file_is_written_over_another(program: Program, words: tuple[str, ...]) -> None:
    history = Path(file_of(busy(), program.folder))
    (program.folder / "link").symlink_to("x")
    (program.folder / "hard").hardlink_to(history)
    before = history.read_bytes()
    done = program("verify", *words)
    assert (done.returncode, done.stdout) == (64, "")
    assert "would overwrite what --" in done.stderr
    assert history.read_bytes() == before


def test_trying_a_file_leaves_it_as_it_is(program: Program) -> None:
    kept = program.folder / "kept.jsonl"
    kept.write_text("older")
    done = program("verify", "--guard", "sqlite:///gone.db", "--history", str(kept), "--html", "new.html")
    assert done.returncode == 69
    assert kept.read_text() == "older"
    assert not (program.folder / "new.html").exists()


def test_a_page_that_finds_no_room_takes_no_verdict_away(program: Program) -> None:
    done = program("verify", "--check", file_of(busy(), program.folder), "--html", str(FULL))
    assert done.returncode == 69
    assert "CLEAN" in done.stdout
    assert done.stderr == f"fencelock: {FULL} could not be written: No space left on device\n"


@pytest.mark.campaign
@pytest.mark.process
@pytest.mark.slow
def test_a_history_that_finds_no_room_is_kept_elsewhere(program: Program) -> None:
    program.environment["TMPDIR"] = str(program.folder)
    words = ("--guard", file_at(program.folder), "--history", str(FULL), "--html", "page.html", *SHORT)
    done = program("verify", *words)
    assert done.returncode == 69
    assert f"{FULL} could not be written: No space left on device" in done.stderr
    assert "events in" in done.stdout
    assert (program.folder / "page.html").exists()
    found = re.search(r"the history is in (.+)", done.stderr)
    assert found is not None
    assert program("verify", "--check", found[1]).stdout == done.stdout
