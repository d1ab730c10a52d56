"""`fencelock verify --check FILE`: the verdict as text, as JSON, and as an exit code."""

import json
from pathlib import Path
from typing import Any

import pytest

from fencelock_lab.campaigns.amounts import USUAL_LEAST
from fencelock_lab.campaigns.verdict import judge
from tests.cli.program import Program, program
from tests.lab.campaigns.planted import Script, two_tenures

__all__ = ["program"]


def busy(freezes: int = USUAL_LEAST["freezes"]) -> Script:
    """Return a clean history with as many rounds as are the least; in some, a process is frozen, and then refused."""
    script = Script(ttl=0.5)
    rows: list[tuple[str, int, int]] = []
    for number in range(1, USUAL_LEAST["handoffs"] + 2):
        process, at, token = str(number % 2), float(number), number * 10
        script.acquire(process, at, at + 0.1, token, until=at + 0.2)
        if number <= freezes:
            script.event(at + 0.2, "freeze", victim=process).event(at + 0.75, "thaw", victim=process)
            script.acquire("thief", at + 0.2, at + 0.7, token + 1, until=at + 0.8)
            refusal: dict[str, Any] = {"outcome": "fail", "error": "StaleTokenError", "mark": str(token + 1)}
            script.write(process, at + 0.76, at + 0.78, token, f"stale-{number}", 1, **refusal)
            script.release("thief", at + 0.8, at + 0.9, token + 1)
        else:
            rows.append((f"w{number}", len(rows) + 1, token))
            script.write(process, at + 0.3, at + 0.4, token, f"w{number}", len(rows))
        script.release(process, at + 0.91, at + 0.95, token)
    return script.event(USUAL_LEAST["handoffs"] + 0.99, "quiet", patience=5.0).final(*rows)


def file_of(script: Script, folder: Path) -> str:
    path = folder / "history.jsonl"
    path.write_text("\n".join(script.lines()) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("script", "code", "verdict", "text"),
    [
        (busy(), 0, "clean", "CLEAN: no promise was broken"),
        (two_tenures().final(("b", 1, 11)), 1, "violation", "lost-write at r: write a was acknowledged with token 10"),
        (busy(USUAL_LEAST["refusals"] - 1), 2, "not enough", "too little: 2 freezes, and 5 are the least"),
    ],
)
def test_a_verdict_is_told_three_ways(program: Program, script: Script, code: int, verdict: str, text: str) -> None:
    path = file_of(script, program.folder)
    done = program("verify", "--check", path)
    assert (done.returncode, done.stderr) == (code, "")
    assert text in done.stdout
    assert ("attack it for longer (--duration)" in done.stdout) == (code == 2)
    told = program("verify", "--check", path, "--json")
    data = json.loads(told.stdout)
    assert (told.returncode, data["exit_code"], data["verdict"]) == (code, code, verdict)


@pytest.mark.parametrize("freezes", [USUAL_LEAST["refusals"], USUAL_LEAST["freezes"] - 1])
def test_each_minimum_counts_by_itself(freezes: int) -> None:
    shortfalls = judge(busy(freezes).history()).shortfalls
    assert shortfalls == (f"{freezes} freezes, and {USUAL_LEAST['freezes']} are the least",)


def test_a_file_that_is_no_history_is_a_usage_error(program: Program) -> None:
    path = program.folder / "notes.txt"
    path.write_text("hello\n")
    done = program("verify", "--check", str(path))
    assert (done.returncode, done.stdout) == (64, "")
    assert f"--check: {path}: line 1 is not valid" in done.stderr


def test_names_in_a_history_move_no_cursor(program: Program) -> None:
    script = two_tenures().write("1\x1b[2J", 3.0, 3.1, 12, "a\x07", 1).final(("a", 1, 10), ("b", 2, 11))
    done = program("verify", "--check", file_of(script, program.folder))
    assert done.returncode == 1
    assert "\\x1b[2J" in done.stdout
    assert not any(c in done.stdout for c in "\x1b\x07")
