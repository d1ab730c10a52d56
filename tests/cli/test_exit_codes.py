"""The documented exit codes, and that no traceback reaches a user."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import click
import pytest

from fencelock import errors as tree
from fencelock.cli import errors
from tests.cli.program import PROGRAM, Program, program
from tests.support.helpers import wait_until

__all__ = ["program"]

USAGE = [
    ([], "Missing command"),
    (["frobnicate"], "No such command 'frobnicate'"),
    (["show"], "Missing argument 'NAME'"),
    (["show", "a", "b"], "unexpected extra argument"),
    (["locks", "--colour"], "No such option"),
    (["locks", "--source", "gopher://x"], "no store is known for gopher://"),
    (["locks", "--source", "redis://x"], "cannot be a source of fencing tokens"),
    (["locks", "--source", "locks.db"], "is not a URL"),
    (["show", ""], "must not be empty"),
    (["show", "x" * 513], "512 bytes"),
    (["run", "x"], "two dashes"),
    (["run", "x", "true"], "two dashes"),
    (["run", "x", "--"], "no CMD after"),
    (["run", "--", "true"], "Missing argument 'NAME'"),
    (["run", "x", "--ttl", "0", "--", "true"], "--ttl 0"),
    (["run", "x", "--ttl", "nan", "--", "true"], "--ttl nan"),
    (["run", "x", "--ttl", "0.001", "--", "true"], "outside what this source can grant"),
    (["run", "x", "--ttl", "soon", "--", "true"], "'soon' is not a valid float"),
    (["run", "x", "--grace", "11", "--", "true"], "write 0 to 10"),
    (["run", "x", "--grace", "-1", "--", "true"], "--grace -1"),
    (["run", "x", "--wait", "-1", "--", "true"], "--wait -1"),
    (["run", "x", "--wait", "1", "--no-wait", "--", "true"], "exclude each other"),
    (["run", "", "--", "true"], "must not be empty"),
]


@pytest.mark.parametrize(("words", "complaint"), USAGE)
def test_64_usage_says_what_to_write(program: Program, words: list[str], complaint: str) -> None:
    done = program.inside(*words)
    assert done.returncode == 64
    assert done.stdout == ""
    assert complaint in done.stderr
    assert done.stderr.startswith("fencelock: ")
    assert 1 <= len(done.stderr.splitlines()) <= 2


def test_75_not_obtained_names_the_holder(program: Program) -> None:
    with program.source() as source, source.lock("x", holder="the other one"):
        for words in (["--no-wait"], ["--wait", "0"], ["--wait", "0.1"]):
            done = program("run", "x", *words, "--", "touch", "ran")
            assert (done.returncode, done.stdout) == (75, "")
            assert "the other one holds it" in done.stderr
            assert len(done.stderr.splitlines()) == 1
        assert source.info("x").waiters == ()
    assert not (program.folder / "ran").exists()


@pytest.mark.parametrize("command", [["locks"], ["epoch"], ["run", "x", "--", "touch", "ran"]])
def test_69_unavailable(program: Program, command: list[str]) -> None:
    (program.folder / "locks.db").write_bytes(b"this is no database" * 100)
    done = program(*command)
    assert (done.returncode, done.stdout) == (69, "")
    assert "locks.db" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (program.folder / "ran").exists()


def test_69_a_read_only_folder(program: Program) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    program.folder.chmod(0o555)
    done = program("run", "x", "--", "true")
    assert done.returncode == 69


def test_126_and_127_are_those_of_env(program: Program) -> None:
    script = program.folder / "script"
    script.write_text("true\n")
    for words in (["no-such-command"], [str(script)], [str(program.folder)], ["/no/such/file"], [f"{script}/x"], [""]):
        plain = subprocess.run(["env", *words], capture_output=True, check=False)
        done = program("run", "x", "--", *words)
        assert done.returncode == plain.returncode
        assert repr(words[0]) in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_127_says_that_cmd_is_empty(program: Program) -> None:
    done = program("run", "x", "--", "", "word")
    assert (done.returncode, done.stderr) == (127, "fencelock: '' cannot be executed: CMD is empty\n")


def test_cmd_is_found_and_executed_as_by_env(program: Program) -> None:
    """A script without `#!` is run by sh; the first executable file on the PATH is CMD, as execvp(3) does it."""
    folders = [program.folder / name for name in ("denied", "first", "second")]
    for folder, mode in zip(folders, (0o644, 0o755, 0o755), strict=True):
        folder.mkdir()
        script = folder / "script"
        script.write_text('echo "$0" "$@"; exit 5\n')
        script.chmod(mode)
    (folders[2] / "script").write_text("#!/bin/sh\necho another script\n")
    program.environment["PATH"] = ":".join((*map(str, folders), "/etc/hostname", os.environ["PATH"]))
    for words in (["script", "a b", "--"], [str(folders[1] / "script")], ["../first/script"]):
        plain, done = (
            subprocess.run([*first, *words], capture_output=True, cwd=folders[0], env=program.environment, check=False)
            for first in (["env"], [*PROGRAM, "run", "x", "--"])
        )
        assert (done.returncode, done.stdout, done.stderr) == (5, plain.stdout, b"")
        assert plain.returncode == 5


def test_cmds_own_code_and_128_plus_its_signal(program: Program) -> None:
    for code in (0, 1, 42, 255):
        assert program("run", "x", "--", "sh", "-c", f"exit {code}").returncode == code
    for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE):
        assert program("run", "x", "--", "sh", "-c", f"kill -{int(number)} $$").returncode == 128 + number


def test_130_ctrl_c(program: Program) -> None:
    with program.source() as source, source.lock("x"):
        process = program.start("run", "x", "--", "true")
        wait_until(lambda: source.info("x").waiters)
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "")
        assert process.returncode == 130


@pytest.mark.parametrize("module", ["click", "fencelock.cli.commands"])
def test_130_ctrl_c_while_modules_are_loaded(program: Program, module: str) -> None:
    script = (
        "import sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from fencelock.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", script, "locks"]
    done = subprocess.run(command, capture_output=True, text=True, env=program.environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_141_a_broken_pipe_is_quiet(program: Program) -> None:
    with program.source() as source:
        for number in range(50):
            with source.lock(f"lock {number}"):
                pass
    reader, writer = os.pipe()
    os.close(reader)
    process = program.start("locks", stdout=writer)
    os.close(writer)
    _, complaint = process.communicate()
    assert (process.returncode, complaint) == (141, "")


def redirected(program: Program, redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `fencelock` with a redirection, as a shell makes it."""
    line = ["sh", "-c", f'exec "$@" {redirection}', "sh", *PROGRAM, *words]
    return subprocess.run(line, capture_output=True, text=True, env=program.environment, check=False)


@pytest.mark.parametrize(
    ("redirection", "reason"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")]
)
@pytest.mark.parametrize("words", [["locks"], ["epoch", "--json"], ["--help"], ["run", "--help"], ["--version"]])
def test_74_stdout_that_cannot_be_written(program: Program, words: list[str], redirection: str, reason: str) -> None:
    done = redirected(program, redirection, *words)
    assert done.returncode == 74
    assert f"stdout cannot be written: {reason}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_74_a_full_pipe_that_does_not_block(program: Program) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    process = program.start("locks", stdout=writer)
    _, complaint = process.communicate()
    assert (process.returncode, "Resource temporarily unavailable" in complaint) == (74, True)
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", "2>/dev/full", "2>&-", "0<&- >&- 2>&-"])
def test_cmds_own_code_with_streams_that_are_closed_or_full(program: Program, redirection: str) -> None:
    done = redirected(program, redirection, "run", "x", "--", "sh", "-c", "exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    assert redirected(program, redirection, "run", "x", "--", "no-such-command").returncode == 127


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_an_error_that_nobody_can_read_keeps_its_code(program: Program, redirection: str) -> None:
    done = redirected(program, redirection, "locks", "--nonsense")
    assert (done.returncode, done.stdout, done.stderr) == (64, "", "")
    with program.source() as source, source.lock("x"):
        assert redirected(program, redirection, "run", "x", "--no-wait", "--", "true").returncode == 75
    program.environment["FENCELOCK_DEBUG"] = "1"
    assert redirected(program, redirection, "locks", "--nonsense").returncode == 64


def test_cmd_finds_a_closed_descriptor_closed(program: Program) -> None:
    code = "import os; print(*os.listdir('/proc/self/fd'), file=open('descriptors', 'w'))"
    show = [sys.executable, "-c", f"import os; os.chdir({str(program.folder)!r}); {code}"]
    subprocess.run(["sh", "-c", 'exec "$@" 0<&- >&- 2>&-', "sh", *show], check=True)
    plain = (program.folder / "descriptors").read_text()
    assert redirected(program, "0<&- >&- 2>&-", "run", "x", "--", *show).returncode == 0
    assert (program.folder / "descriptors").read_text() == plain


@pytest.mark.parametrize(
    ("words", "kind", "code"),
    [
        (["show", "", "--json"], "ConfigError", 64),
        (["locks", "--json", "--nonsense"], "NoSuchOption", 64),
        (["locks", "--json", "--source", "sqlite:////no/such/folder/x.db"], "SchemaError", 69),
    ],
)
def test_with_json_an_error_is_one_object(program: Program, words: list[str], kind: str, code: int) -> None:
    done = program.inside(*words)
    assert (done.returncode, done.stdout) == (code, "")
    told = json.loads(done.stderr)["error"]
    assert (told["type"], told["exit_code"]) == (kind, code)
    assert told["message"]


def test_with_json_what_to_write_is_a_line_of_its_own(program: Program) -> None:
    message = json.loads(program.inside("epoch", "--raise", "--json").stderr)["error"]["message"]
    assert message.splitlines()[0] == "--raise ends every lease: give the reason with --reason TEXT"
    assert message.splitlines()[1].startswith("Write: fencelock epoch [OPTIONS]")


def test_every_fencelock_error_has_its_code() -> None:
    kinds = [kind for kind in vars(tree).values() if isinstance(kind, type) and issubclass(kind, tree.FencelockError)]
    made = {kind.__name__: kind.__new__(kind) for kind in kinds}
    codes = {name: errors.exit_code(error) for name, error in made.items()}
    assert {name for name, code in codes.items() if code == 70} == {"FencelockError"}, "which nothing raises"
    assert codes["AcquireTimeoutError"] == 75
    assert {name for name, code in codes.items() if code == 76} == {
        # A command of another package may meet the last three.
        *("LeaseError", "LeaseLostError", "LeaseExpiredError"),
        *("LeaseReleasedError", "LeaseInheritedError", "NotHeldError"),
    }
    assert codes["OutcomeUnknownError"] == codes["SchemaError"] == codes["SourceUnavailableError"] == 69
    assert codes["StaleTokenError"] == codes["GuardError"] == 1
    assert codes["ConfigError"] == codes["UnknownSchemeError"] == codes["UnsafeSourceError"] == 64


def test_70_a_bug_is_reported_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.report(ZeroDivisionError("by zero")) == 70
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "fencelock: unexpected ZeroDivisionError: by zero"
    assert "FENCELOCK_DEBUG=1" in told[1]
    assert len(told) == 2


def test_a_traceback_is_shown_on_request(program: Program) -> None:
    assert "Traceback" not in program.inside("show", "").stderr
    program.environment["FENCELOCK_DEBUG"] = "1"
    assert "Traceback" in program.inside("show", "").stderr


def test_a_usage_error_without_a_context_has_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert errors.report(click.UsageError("say it otherwise")) == 64
    assert capsys.readouterr().err == "fencelock: say it otherwise\n"


@pytest.mark.reduced
def test_the_exit_code_survives_the_quick_exit() -> None:
    done = subprocess.run([*PROGRAM, "--version"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    script = "import sys; sys.argv = ['fencelock', 'frobnicate']; from fencelock.cli import main; main()"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 64
