"""What the command shows while it works: whom it waits for, locks as they change, completions and suggestions."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
from click.shell_completion import BashComplete

import fencelock
from fencelock import LockInfo
from fencelock._api import lock_options
from fencelock.cli.commands import COMPLETION_VARIABLE, cli
from fencelock.cli.locks import changes
from tests.cli.program import PROGRAM, Program, program
from tests.cli.pseudo_terminal import Terminal

__all__ = ["program"]


@pytest.mark.process
def test_run_says_for_whom_it_waits(program: Program) -> None:
    with fencelock.connect(program.url) as source, source.lock("x", holder="somebody") as lease:
        process = program.start("run", "x", "--", "echo", "ran")
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith(f"fencelock: waiting for lock 'x': somebody holds it with token {lease.token}, ")
        assert line.endswith(" s left of its lease; waiting: 1\n")
    out, err = process.communicate()
    assert (process.returncode, out, err) == (0, "ran\n", "")


def info(name: str, token: int, holder: str | None = None, *waiters: str, left: float = 0.0) -> LockInfo:
    return LockInfo(name, token, holder, left, 10.0, waiters)


def test_a_change_is_another_token_holder_or_waiter_and_not_the_time_left() -> None:
    before = {one.name: one for one in (info("a", 1, "me", left=9.0), info("b", 2, "me"), info("c", 3), info("d", 4))}
    now = {
        one.name: one
        for one in (info("a", 1, "me", left=8.0), info("b", 2, "me", "w"), info("c", 5, "x"), info("e", 6))
    }
    assert [(one.name, one.token) for one in changes(before, now)] == [("b", 2), ("c", 5), ("e", 6), ("d", None)]
    assert changes(now, now) == []


@pytest.mark.process
@pytest.mark.parametrize("is_json", [True, False])
def test_a_piped_watch_prints_a_line_for_each_change(program: Program, is_json: bool) -> None:
    with fencelock.connect(program.url) as source:
        lease = source.lock("x", holder="me").acquire()
        assert lease is not None
        process = program.start("locks", "--watch", *(["--json"] if is_json else []))
        assert process.stdout is not None
        first = process.stdout.readline()
        lease.release()
        second = process.stdout.readline()
    process.terminate()
    assert process.communicate() == ("", "")
    if is_json:
        assert [json.loads(line)["holder"] for line in (first, second)] == ["me", None]
    else:
        assert "x  token 1  held by me, left " in first
        assert "x  token 1  free  waiters 0" in second


@pytest.mark.process
def test_a_watched_terminal_is_redrawn(program: Program) -> None:
    with fencelock.connect(program.url) as source, source.lock("x", holder="me"):
        environment = program.environment | {"TERM": "xterm"}
        terminal = Terminal(program.folder, environment, [*PROGRAM, "locks", "--watch"])
        try:
            terminal.expect(r"LOCK +TOKEN")
            terminal.expect(r"\x1b\[2J")
            terminal.expect(r"x +1 .* me")
        finally:
            terminal.process.send_signal(signal.SIGINT)
            terminal.process.wait()


def completions(*words: str) -> list[str]:
    """Return what a shell is told for the last of these words."""
    completer = BashComplete(cli, {}, "fencelock", COMPLETION_VARIABLE)
    return [found.value for found in completer.get_completions([*words[:-1]], words[-1])]


def test_a_shell_completes_commands_options_and_the_names_of_locks(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"
    with fencelock.connect(url) as source, source.lock("nightly"), source.lock("import"):
        assert completions("unp") == ["unprotect", "unpoison"]
        assert completions("locks", "--w") == ["--watch"]
        assert completions("show", "--source", url, "ni") == ["nightly"]
        assert completions("break", "--source", url, "") == ["import", "nightly"]
        assert completions("run", "--source", url, "i") == ["import"]
        assert completions("run", "--source", url, "import", "--", "echo", "ni") == []


def test_a_completion_without_a_source_is_empty_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FENCELOCK_SOURCE", raising=False)
    monkeypatch.setattr(lock_options, "is_root", lambda: False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert completions("show", "ni") == []
    assert completions("show", "--source", "no url", "ni") == []
    assert list(tmp_path.iterdir()) == []


def test_a_shell_gets_the_script_and_the_completions(program: Program) -> None:
    def asked(instruction: str, **more: str) -> str:
        environment = program.environment | {COMPLETION_VARIABLE: instruction, **more}
        return subprocess.run(PROGRAM, env=environment, capture_output=True, text=True, check=True).stdout

    assert "#compdef fencelock" in asked("zsh_source")
    assert asked("bash_complete", COMP_WORDS="fencelock doc", COMP_CWORD="1") == "plain,doctor\n"


@pytest.mark.parametrize(("wrong", "right"), [("loks", "locks"), ("verfy", "verify"), ("docter", "doctor")])
def test_an_unknown_command_is_told_the_one_that_is_spelled_like_it(program: Program, wrong: str, right: str) -> None:
    done = program.inside(wrong)
    assert done.returncode == 64
    assert done.stderr.startswith(f"fencelock: No such command '{wrong}'. Did you mean '{right}'?\n")
    assert "Did you mean" not in program.inside("xyzzy").stderr


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("help", "--help"),
        ("help run", "COMMAND --help"),
        ("version", "--version"),
        ("lock a true", "run NAME -- CMD"),
        ("unlock a", "break NAME --reason TEXT"),
    ],
)
def test_a_command_of_other_programs_is_told_what_to_write(program: Program, words: str, right: str) -> None:
    command, *others = words.split()
    done = program.inside(command, *others)
    assert done.returncode == 64
    assert done.stderr.startswith(f"fencelock: No such command '{command}'. Write: fencelock ")
    assert right in done.stderr.splitlines()[0]


def test_timeout_is_told_that_it_is_wait_here(program: Program) -> None:
    done = program.inside("run", "a", "--timeout", "1", "--", "true")
    assert done.returncode == 64
    assert done.stderr.startswith("fencelock: No such option '--timeout'. Did you mean '--wait'?\n")
    assert "Did you mean" not in program.inside("show", "a", "--timeout", "1").stderr
