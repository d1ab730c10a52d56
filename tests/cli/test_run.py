"""`fencelock run`: the lock is held while CMD runs, CMD is untouched, and its whole group ends with it."""

import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

import fencelock
from fencelock.model import Sequencer
from tests.cli.program import PROGRAM, SAY_READY, Program, child, is_gone, program, ready, running
from tests.support.helpers import wait_until

__all__ = ["program"]
pytestmark = pytest.mark.process


UNTIL = "until [ {} ]; do sleep 0.02; done"
"""Waits in a shell for what a file tells."""


# --- what CMD gets
def test_cmd_gets_the_sequencer_of_its_lease(program: Program) -> None:
    show = 'echo "$FENCELOCK_LOCK|$FENCELOCK_TOKEN|$FENCELOCK_SEQUENCER"'
    done = program("run", "nightly éxport", "--", "sh", "-c", show)
    lock, token, sequencer = done.stdout.strip().split("|")
    parsed = Sequencer.parse(sequencer)
    assert (parsed.lock, str(parsed.token)) == (lock, token) == ("nightly éxport", token)
    assert int(program.json("show", lock)["token"]) == parsed.token


def test_each_run_has_a_higher_token(program: Program) -> None:
    tokens = [int(program("run", "x", "--", "printenv", "FENCELOCK_TOKEN").stdout) for _ in range(3)]
    assert tokens == sorted(set(tokens))


def test_the_lock_is_held_while_cmd_runs_and_free_afterwards(program: Program) -> None:
    inside = program("run", "x", "--", *PROGRAM, "show", "x", "--json")
    assert '"holder": "' in inside.stdout
    assert program.json("show", "x")["holder"] is None


def test_the_holder_names_cmd(program: Program) -> None:
    process = program.start("run", "x", "--", *PROGRAM, "show", "x")
    out, _ = process.communicate()
    assert f"holder  {os.uname().nodename}:{process.pid}:{Path(PROGRAM[0]).name}\n" in out
    named = program("run", "x", "--holder", "the night shift", "--", *PROGRAM, "show", "x")
    assert "the night shift" in named.stdout


def test_input_and_outputs_pass_through_untouched(program: Program) -> None:
    data = os.urandom(1_000_000)
    done = subprocess.run(
        [*PROGRAM, "run", "x", "--", "sh", "-c", "cat; echo complaint >&2"],
        input=data,
        capture_output=True,
        env=program.environment,
        check=True,
    )
    assert done.stdout == data
    assert done.stderr == b"complaint\n"


def test_further_descriptors_pass_through_and_none_is_added(program: Program) -> None:
    reader, writer = os.pipe()
    listing = "echo through > /dev/fd/$0; ls /proc/$$/fd"
    process = program.start("run", "x", "--", "sh", "-c", listing, str(writer), pass_fds=[writer])
    os.close(writer)
    assert os.read(reader, 100) == b"through\n"
    out, _ = process.communicate()
    assert set(out.split()) == {"0", "1", "2", str(writer)}
    os.close(reader)


def test_words_after_the_dashes_are_not_parsed(program: Program) -> None:
    done = program("run", "x", "--", "printf", "%s,", "--ttl", "0", "--", "-h", "")
    assert done.stdout == "--ttl,0,--,-h,,"


def test_a_pipeline_ends_when_cmd_ends(program: Program) -> None:
    line = f"printf abc | {' '.join(PROGRAM)} run x -- cat | wc -c"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=program.environment, check=True)
    assert done.stdout.strip() == "3"


# --- the end of the group
def test_processes_that_cmd_left_behind_get_sigterm(program: Program) -> None:
    left = "(trap 'echo bye; exit' TERM; echo ready; : > trapped; sleep 60 & wait) &"
    process = program.start("run", "x", "--", "sh", "-c", f"{left} {UNTIL.format('-e trapped')}; exit 4")
    out, _ = process.communicate()
    assert (out, process.returncode) == ("ready\nbye\n", 4)


def test_processes_that_cmd_left_behind_are_killed_if_they_ignore_sigterm(program: Program) -> None:
    left = "sh -c 'trap \"\" TERM; echo $$; exec >&-; : > trapped; sleep 60' &"
    words = ("sh", "-c", f"{left} {UNTIL.format('-e trapped')}; exit 4")
    process = program.start("run", "x", "--grace", "0.2", "--", *words)
    out, _ = process.communicate()
    assert process.returncode == 4
    assert is_gone(int(out))


def test_a_daemon_that_leaves_the_group_is_out_of_reach(program: Program) -> None:
    """As documented: ending it needs a cgroup."""
    script = f"setsid sh -c 'echo $$; exec sleep 60' > pid & {UNTIL.format('-s pid')}"
    process = program.start("run", "x", "--", "sh", "-c", script)
    assert process.wait() == 0
    daemon = int((program.folder / "pid").read_text())
    assert not is_gone(daemon)
    os.kill(daemon, signal.SIGKILL)


def test_nothing_is_left_of_a_run(program: Program) -> None:
    process = program.start("run", "x", "--", "sh", "-c", "echo $$; kill -9 $$")
    out, _ = process.communicate()
    assert program.left() == []
    with pytest.raises(ProcessLookupError):
        os.killpg(int(out), 0)


# --- loss
def test_loss_ends_the_group_and_exits_with_76(program: Program) -> None:
    process = program.start("run", "x", "--ttl", "3", "--", "sh", "-c", SAY_READY + "sleep 60 & wait")
    ready(process)
    sleep = child(running(process), "sleep")
    assert program.inside("break", "x", "--reason", "a test").returncode == 0
    _, complaint = process.communicate()
    assert process.returncode == 76
    assert "lock 'x': the lease was lost" in complaint
    assert is_gone(sleep.pid)


def test_loss_is_76_also_when_cmd_exits_with_0(program: Program) -> None:
    process = program.start(
        "run", "x", "--ttl", "3", "--", "sh", "-c", f"trap 'exit 0' TERM; {SAY_READY} sleep 60 & wait"
    )
    ready(process)
    program.inside("break", "x", "--reason", "a test")
    assert process.wait() == 76


def test_loss_is_76_also_when_stderr_cannot_be_written(program: Program) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    process = program.start(*("run", "x", "--ttl", "3", "--", "sh", "-c", SAY_READY + "exec sleep 60"), stderr=full)
    os.close(full)
    ready(process)
    program("break", "x", "--reason", "a test")
    assert process.wait() == 76


def test_a_loss_that_only_the_release_finds_is_76(program: Program) -> None:
    """No renewal comes before CMD has ended."""
    done = program("run", "x", "--ttl", "600", "--", *PROGRAM, "break", "x", "--reason", "a test")
    assert done.returncode == 76
    assert "the lease was lost (the source had ended it before it was released" in done.stderr
    assert done.stderr.endswith("CMD ended with 0\n")


def test_loss_kills_a_cmd_that_ignores_sigterm(program: Program) -> None:
    stubborn = f"trap '' TERM; {SAY_READY} while :; do sleep 1; done"
    process = program.start("run", "x", "--ttl", "3", "--grace", "0.1", "--", "sh", "-c", stubborn)
    ready(process)
    command = running(process)
    program.inside("break", "x", "--reason", "a test")
    assert process.wait() == 76
    assert is_gone(command.pid)


def test_loss_ends_a_run_inside_a_run(program: Program) -> None:
    """Each has a group of its own; the outer one's SIGTERM reaches the inner one."""
    inner = [*PROGRAM, "run", "y", "--", "sh", "-c", "echo ready; exec sleep 60"]
    process = program.start("run", "x", "--ttl", "3", "--", *inner)
    ready(process)
    program.inside("break", "x", "--reason", "a test")
    assert process.wait() == 76
    wait_until(lambda: program.left() == [])


def test_loss_ends_a_stopped_cmd(program: Program) -> None:
    process = program.start("run", "x", "--ttl", "3", "--", "sh", "-c", SAY_READY + "kill -STOP $$")
    ready(process)
    command = running(process)
    wait_until(lambda: command.status() == "stopped")
    program.inside("break", "x", "--reason", "a test")
    assert process.wait() == 76


def test_a_run_cut_off_from_its_source_ends_before_the_deadline(program: Program) -> None:
    """CMD is dead before another holder can get the lock."""
    process = program.start("run", "x", "--ttl", "8", "--", "sh", "-c", SAY_READY + "sleep 60")
    ready(process)
    command = running(process)
    with (
        program.source() as source,
        closing(sqlite3.connect(program.folder / "locks.db", isolation_level=None)) as blocker,
    ):
        blocker.execute("BEGIN EXCLUSIVE")
        ends_s = time.monotonic() + source.info("x").remaining  # A reader; nothing is renewed from here on.
        wait_until(lambda: is_gone(command.pid))
        assert time.monotonic() < ends_s
        blocker.execute("ROLLBACK")
    assert process.wait() == 76


# --- guards
@pytest.fixture
def guard(program: Program) -> fencelock.Guard:
    """Return a guard of a protected table, bound to lock x."""
    file = program.folder / "app.db"
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE reports (day TEXT)")
    connection.close()
    made = fencelock.guard(f"sqlite:///{file}", resource="reports", lock="x")
    made.protect("reports")
    return made


@pytest.mark.parametrize("code", [0, 3])
def test_guards_are_closed_at_the_end(program: Program, guard: fencelock.Guard, code: int) -> None:
    show = f"echo $FENCELOCK_SEQUENCER; exit {code}"
    done = program("run", "x", "--guard", guard.url, "--", "sh", "-c", show)
    assert done.returncode == code
    with pytest.raises(fencelock.StaleTokenError):
        guard.seal(Sequencer.parse(done.stdout.strip()))


def test_guards_are_closed_after_a_loss(program: Program, guard: fencelock.Guard) -> None:
    process = program.start(
        *("run", "x", "--ttl", "3", "--guard", guard.url, "--"),
        *("sh", "-c", "echo $FENCELOCK_SEQUENCER; sleep 60"),
    )
    assert process.stdout is not None
    sequencer = Sequencer.parse(process.stdout.readline().strip())
    guard.seal(sequencer)
    program.inside("break", "x", "--reason", "a test")
    assert process.wait() == 76
    with pytest.raises(fencelock.StaleTokenError):
        guard.seal(sequencer)


def test_cmd_writes_with_its_sequencer(program: Program, guard: fencelock.Guard) -> None:
    code = f"""
import fencelock
guard = fencelock.guard({guard.url!r}, resource="reports", lock="x")
with guard.transaction(fencelock.Sequencer.from_env()) as connection:
    connection.execute("INSERT INTO reports VALUES ('monday')")
"""
    done = program("run", "x", "--guard", guard.url, "--", PROGRAM[0], "-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_guard_that_cannot_be_closed_is_reported_and_fails_a_good_run(program: Program) -> None:
    url = f"sqlite:///{program.folder}/missing.db"
    done = program("run", "x", "--guard", url, "--", "true")
    assert done.returncode == 69
    assert "was not closed" in done.stderr
    assert program("run", "x", "--guard", url, "--", "false").returncode == 1


def test_a_guard_without_a_resource_of_the_lock_is_named(program: Program, guard: fencelock.Guard) -> None:
    """Of a mistyped lock nothing would be closed."""
    done = program("run", "y", "--guard", guard.url, "--", "true")
    assert done.returncode == 0
    assert f"{guard.url}: no resource there is bound to lock 'y', so nothing was closed" in done.stderr


def test_an_impossible_guard_is_refused_before_cmd_runs(program: Program) -> None:
    done = program("run", "x", "--guard", "gopher://x", "--", "touch", "ran")
    assert done.returncode == 64
    assert not (program.folder / "ran").exists()


# --- the default source
def test_the_default_file_is_named_when_it_is_created(program: Program) -> None:
    folder = program.folder / "state"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    environment = os.environ | {"XDG_STATE_HOME": str(folder)}

    def complaint() -> str:
        words = [*_NOT_ROOT, *PROGRAM, "run", "x", "--", "true"]
        done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
        return done.stderr

    assert f"locks are kept in {folder}/fencelock/locks.db" in complaint()
    assert complaint() == ""


def test_a_file_that_is_named_is_told_when_it_is_created(program: Program) -> None:
    words = ("run", "x", "--source", f"sqlite:///{program.folder}/lokcs.db", "--", "true")
    assert f"locks are kept in {program.folder}/lokcs.db, which is created now\n" in program(*words).stderr
    assert program(*words).stderr == ""


# Root's default file belongs to the machine, so the test runs as another user, who may read this environment.
_NOT_ROOT = (
    ["setpriv", "--reuid=65534", "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    if os.geteuid() == 0
    else []
)
