"""`fencelock lead`: CMD runs whenever the lock is held, again after a loss, and no more after a signal to end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fencelock.cli import AGAIN
from tests.cli.program import PROGRAM, Program, is_gone, program, ready
from tests.support.helpers import DEADLINE_S, freeze, wait_until

__all__ = ["program"]
pytestmark = pytest.mark.process

ENDS_S = 100
BREAK = f"{' '.join(PROGRAM)} break x --reason test >&2; "
TOKEN = 'echo "$FENCELOCK_TOKEN"; '
UNTIL_BROKEN = "touch begun; until [ -e broken ]; do sleep 0.02; done; "
UNTIL_OVER = f"[ -e over ] && {{ {TOKEN} exit 0; }}; {TOKEN} exec sleep 60"
"""It looks before it writes: what a test does after it has read the token concerns the next term alone."""


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return how it ended, and what it has written to stderr."""
    _, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, err


def break_it(program: Program) -> None:
    """Break the lock of a CMD that has begun, and let it go on: without a further interpreter, which takes its time."""
    wait_until((program.folder / "begun").exists)
    assert program.inside("break", "x", "--reason", "a test").returncode == 0
    (program.folder / "broken").touch()


def last_token(process: subprocess.Popen[str]) -> int:
    """Return the token of its last term: on a busy machine, a short lease may end once more than it has to."""
    assert process.stdout is not None
    return int(process.stdout.readlines()[-1])


def test_k1_cmd_runs_again_with_a_higher_token_after_a_loss(program: Program) -> None:
    """In the same process, which keeps its id; and CMD sees nothing of the failures before."""
    script = f'echo "$PPID $FENCELOCK_TOKEN $FENCELOCK_FAILURES."; [ -e begun ] && exit 5; {UNTIL_BROKEN} exit 0'
    process = program.start("lead", "x", "--", "sh", "-c", script)
    break_it(program)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 5, err
    one, two = [line.split(" ") for line in out.splitlines()]
    assert one[0] == two[0] == str(process.pid)
    assert int(one[1]) < int(two[1])
    assert one[2] == two[2] == "."
    assert "the lease was lost" in err
    assert "campaigning again in 0." in err
    assert program.json("show", "x")["holder"] is None


def test_k1_cmd_is_ended_by_a_loss_and_runs_again(program: Program) -> None:
    process = program.start("lead", "x", "--ttl", "3", "--", "sh", "-c", UNTIL_OVER)
    assert process.stdout is not None
    first = int(process.stdout.readline())
    with program.source() as source:
        (program.folder / "over").touch()
        broken = source.break_lock("x", reason="a test")
    assert last_token(process) > broken.token > first
    assert outcome(process)[0] == 0


def test_k1_a_leader_that_is_frozen_past_its_ttl_leads_again(program: Program) -> None:
    process = program.start("lead", "x", "--ttl", "1", "--", "sh", "-c", UNTIL_OVER)
    assert process.stdout is not None
    first = int(process.stdout.readline())
    freeze(process.pid, program.folder / "locks.db")
    with program.source() as source, source.lock("x", ttl=30.0) as lease:
        assert lease.token > first
        (program.folder / "over").touch()
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: source.info("x").waiters)
    assert last_token(process) > lease.token
    assert outcome(process)[0] == 0


def test_k1_a_source_that_cannot_be_reached_is_tried_again(program: Program, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    process = program.start("lead", "x", "--source", f"sqlite:///{folder}/locks.db", "--", "true")
    assert process.stderr is not None
    line = ""
    while "campaigning again" not in line:
        line = process.stderr.readline()
        assert process.poll() is None, line
    folder.mkdir()
    assert outcome(process)[0] == 0


ONE_TERM = """
import os, sys
from fencelock._api import leading
from fencelock.cli import commands, lead
leading.FIRST_PAUSE_S, lead.LONGEST_PAUSE_S = 0.0, 1e-9
os.environ["FENCELOCK_FAILURES"] = "3"
print(commands.execute(sys.argv[1:]), os.environ["FENCELOCK_FAILURES"], file=sys.stderr)
"""
"""One campaign after three failures, in which every term counts as a long one; it prints how many it counts then."""


def test_k1_only_a_long_term_makes_the_pauses_short_again_and_no_long_wait(program: Program) -> None:
    lost = ["x", "--", "sh", "-c", f"{BREAK} exit 0"]
    missed = ["x", "--source", f"sqlite:///{program.folder}/missing/locks.db", "--", "true"]
    for words, failures in (lost, 1), (missed, 4):
        ended = subprocess.run(
            [sys.executable, "-c", ONE_TERM, "lead", *words],
            capture_output=True, text=True, env=program.environment, timeout=ENDS_S, check=False,
        )  # fmt: skip
        assert ended.stderr.splitlines()[-1] == f"{AGAIN} {failures}", ended.stderr


def test_k2_what_only_a_person_can_mend_ends_it(program: Program) -> None:
    assert program("lead", "x", "--source", "redis://localhost", "--", "true").returncode == 64
    assert program("lead", "x", "--", "no-such-program").returncode == 127


def test_cmds_own_end_is_the_end(program: Program) -> None:
    assert program("lead", "x", "--", "sh", "-c", "exit 76").returncode == 76
    assert program("lead", "x", "--", "true").returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_k3_a_signal_ends_the_wait_and_leaves_the_queue(program: Program, number: signal.Signals) -> None:
    with program.source() as source, source.lock("x"):
        process = program.start("lead", "x", "--", "touch", "ran")
        wait_until(lambda: source.info("x").waiters)
        process.send_signal(number)
        assert outcome(process)[0] == 128 + number
        assert not source.info("x").waiters
    assert not (program.folder / "ran").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_k3_a_cmd_that_ignores_the_signal_to_end_is_killed_after_the_grace(
    program: Program, number: signal.Signals
) -> None:
    script = "trap '' TERM INT; echo ready; while :; do sleep 0.02; done"
    process = program.start("lead", "x", "--grace", "0.2", "--", "sh", "-c", script)
    ready(process)
    process.send_signal(number)
    assert outcome(process)[0] == 128 + signal.SIGKILL
    assert program.left() == []
    assert program.json("show", "x")["holder"] is None


def test_k3_no_term_follows_a_signal_to_end(program: Program) -> None:
    """Though the lease is lost meanwhile."""
    script = f"trap '{UNTIL_BROKEN} exit 0' TERM; echo ready; while :; do sleep 0.02; done"
    process = program.start("lead", "x", "--grace", "10", "--", "sh", "-c", script)
    ready(process)
    process.send_signal(signal.SIGTERM)
    break_it(program)
    code, err = outcome(process)
    assert code == 76, err
    assert "campaigning again" not in err


def test_a_leader_that_is_killed_leaves_nothing_behind(program: Program) -> None:
    process = program.start("lead", "x", "--", "sh", "-c", "echo $$; exec sleep 60")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: is_gone(pid))
