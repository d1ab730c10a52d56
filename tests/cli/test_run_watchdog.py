"""The watchdog of `fencelock run`: CMD's group ends in time also when `run` itself is frozen, killed or cut off."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from fencelock.cli.run import group
from tests.cli.program import Program, child, is_gone, program, running, watchdog
from tests.support.helpers import ROOT, freeze, wait_until

__all__ = ["program"]
pytestmark = pytest.mark.process

TRIES = 5
STUBBORN = "trap '' TERM INT HUP; echo ready; while :; do sleep 0.1; done"


def start(program: Program, *options: str, script: str = "echo ready; sleep 60") -> subprocess.Popen[str]:
    """Start a run and wait until its CMD reports that it is ready."""
    process = program.start("run", "x", *options, "--", "sh", "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


# --- frozen
@pytest.mark.parametrize("script", ["echo ready; sleep 60", STUBBORN])
def test_the_cmd_of_a_frozen_run_ends_before_another_holder_gets_the_lock(program: Program, script: str) -> None:
    process = start(program, "--ttl", "4", script=script)
    command = running(process)
    freeze(process.pid, program.folder / "locks.db")
    with program.source() as source, source.lock("x"):
        assert is_gone(command.pid)
    process.send_signal(signal.SIGCONT)
    _, complaint = process.communicate()
    assert process.returncode == 76
    assert "the lease was lost" in complaint
    assert program.left() == []


def test_a_freeze_that_ends_before_the_deadline_but_after_the_grace_is_a_loss_too(program: Program) -> None:
    """CMD has got SIGTERM, so a later renewal no longer matters."""
    for _ in range(TRIES):
        process = start(program, "--ttl", "6", "--grace", "2")
        command = running(process)
        freeze(process.pid, program.folder / "locks.db")
        wait_until(lambda command=command: is_gone(command.pid))
        was_held = program.source().info("x").is_held
        process.send_signal(signal.SIGCONT)
        assert process.wait() == 76
        if was_held:  # Else a busy machine was too late to look.
            return
    raise AssertionError("CMD ends before the deadline")


def test_a_short_freeze_is_harmless(program: Program) -> None:
    os.mkfifo(program.folder / "go")
    process = start(program, "--ttl", "30", script="echo ready; read -r line < go; echo $line")
    freeze(process.pid, program.folder / "locks.db")
    process.send_signal(signal.SIGCONT)
    (program.folder / "go").write_text("went on\n")
    out, _ = process.communicate()
    assert (out, process.returncode) == ("went on\n", 0)


def test_a_renewed_lease_outlives_its_first_deadline(program: Program) -> None:
    process = start(program, "--ttl", "2.8", "--grace", "0", script="echo ready; sleep 3; echo done")
    out, _ = process.communicate()
    assert (out, process.returncode) == ("done\n", 0)


def test_a_run_frozen_in_the_queue_does_not_start_cmd_too_late(program: Program) -> None:
    with program.source() as source:
        with source.lock("x"):
            process = program.start("run", "x", "--ttl", "2", "--", "touch", "ran")
            wait_until(lambda: source.info("x").waiters)
            freeze(process.pid, program.folder / "locks.db")
        wait_until(lambda: not source.info("x").waiters)
        with source.lock("x"):
            process.send_signal(signal.SIGCONT)
            wait_until(lambda: source.info("x").waiters)
            assert not (program.folder / "ran").exists()
        assert process.wait() == 0


# --- killed
@pytest.mark.parametrize("script", ["echo ready; sleep 60 & wait", STUBBORN])
def test_a_killed_run_has_its_whole_group_ended(program: Program, script: str) -> None:
    process = start(program, "--ttl", "20", "--grace", "0.2", script=script)
    process.kill()
    wait_until(lambda: program.left() == [])
    # The lease was not released: it stays until its ttl.
    assert program.source().info("x").is_held


def test_cmd_has_its_grace_when_run_is_killed(program: Program) -> None:
    script = "trap 'sleep 0.2; echo cleaned; exit' TERM; echo ready; sleep 60 & wait"
    process = start(program, "--grace", "8", script=script)
    child(running(process), "sleep")
    process.kill()
    out, _ = process.communicate()
    assert out == "cleaned\n"


@pytest.mark.parametrize("step", range(10))
def test_a_run_killed_at_any_moment_leaves_nothing_running(program: Program, step: int) -> None:
    process = program.start("run", "x", "--ttl", "3", "--", "sh", "-c", "sleep 60 & wait")
    time.sleep(0.04 * step)  # Whatever line it is on then.
    process.kill()
    wait_until(lambda: program.left() == [])


def test_a_run_killed_in_the_queue_leaves_nothing_running(program: Program) -> None:
    with program.source() as source, source.lock("x"):
        process = program.start("run", "x", "--", "touch", "ran")
        wait_until(lambda: source.info("x").waiters)
        process.kill()
        wait_until(lambda: program.left() == [])
    assert not (program.folder / "ran").exists()


def test_processes_that_cmd_left_behind_end_also_if_run_is_killed_meanwhile(program: Program) -> None:
    os.mkfifo(program.folder / "go")
    script = "sh -c 'trap \"\" TERM; echo ready; sleep 60' & read -r _ < go"
    process = start(program, "--ttl", "6", "--grace", "2", script=script)
    command = running(process)
    (program.folder / "go").write_text("\n")
    wait_until(lambda: is_gone(command.pid))
    process.kill()
    wait_until(lambda: program.left() == [])


# --- the watchdog itself
def test_the_watchdog_ignores_signals_to_cmds_group(program: Program) -> None:
    process = start(
        program, "--grace", "1", script="trap '' TERM INT HUP QUIT USR1 USR2 TSTP ALRM; echo ready; sleep 60"
    )
    guardian = watchdog(process)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT}:
        guardian.send_signal(number)
    process.kill()
    wait_until(lambda: program.left() == [])


def test_the_watchdog_keeps_no_descriptor_of_cmds(program: Program) -> None:
    process = start(program)
    guardian = watchdog(process)
    assert guardian.cwd() == "/"
    assert guardian.open_files() == []
    targets = [os.readlink(f"/proc/{guardian.pid}/fd/{name}") for name in os.listdir(f"/proc/{guardian.pid}/fd")]
    assert len(targets) == 2
    assert all(target.startswith("pipe:") for target in targets)


def test_the_watchdog_sleeps(program: Program) -> None:
    process = start(program, "--ttl", "30")
    guardian = watchdog(process)
    before, began_s = guardian.num_ctx_switches().voluntary, time.monotonic()
    wait_until(lambda: time.time() - guardian.create_time() > 3)
    # It looks at the clock each second, and hears of a beat or two.
    assert guardian.num_ctx_switches().voluntary - before <= 3 + time.monotonic() - began_s


def test_a_killed_watchdog_is_noticed_and_cmd_is_not_left_alone(program: Program) -> None:
    process = start(program)
    watchdog(process).kill()
    _, complaint = process.communicate()
    assert process.returncode == 128 + signal.SIGKILL
    assert "the watchdog process was killed" in complaint
    assert program.left() == []


def test_a_stopped_watchdog_does_not_hold_up_the_end(program: Program) -> None:
    os.mkfifo(program.folder / "go")
    process = start(program, "--grace", "0.1", script="echo ready; read -r _ < go; exit 4")
    watchdog(process).suspend()
    (program.folder / "go").write_text("\n")
    assert process.wait() == 4
    assert program.left() == []


def test_a_loss_is_enforced_though_the_watchdog_is_stopped(program: Program) -> None:
    process = start(program, "--ttl", "3", "--grace", "0.1")
    watchdog(process).suspend()
    program("break", "x", "--reason", "a test")
    assert process.wait() == 76
    assert program.left() == []


def test_cmd_may_kill_its_whole_group(program: Program) -> None:
    process = start(program, script="echo ready; kill -9 0")
    assert process.wait() == 128 + signal.SIGKILL
    assert program.left() == []


def succeeds(script: str) -> None:
    """Run a program that looks at one piece from inside, in a process and a group of its own."""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr


def test_after_the_deadline_there_is_no_grace() -> None:
    """As after a freeze of the whole machine: the watchdog kills at once."""
    succeeds("""
import os, signal, subprocess
from fencelock.cli.run import watchdog
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    stubborn = subprocess.Popen(["sh", "-c", "trap '' TERM; echo ready; sleep 60"], stdout=subprocess.PIPE)
    stubborn.stdout.readline()
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    watchdog._end_group(deadline_ms=1, grace_ms=10**9)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == -9, status
""")


def test_an_action_of_the_watchdog_before_cmd_starts_is_noticed() -> None:
    """As when `run` is frozen between the acquire and the start of CMD, and wakes before the deadline."""
    succeeds("""
from fencelock.cli.run.command import Command
from fencelock.cli.run.events import Events
from fencelock.cli.run.signals import Signals
from fencelock.cli.run.supervisor import Supervisor
from fencelock.cli.run.watchdog import Watchdog
from fencelock.clock import boottime_ms
from tests.support.helpers import wait_until

command, events = Command(("touch", "/dev/null")), Events()
watchdog = Watchdog(command.pid, events=events.writer, grace_ms=1000)
signals = Signals(events, children=(command.pid, watchdog.pid))
supervisor = Supervisor(command, watchdog, events=events, signals=signals, grace_ms=1000, is_bounded=False)
watchdog.rely_until(boottime_ms() + 1000)
wait_until(watchdog.has_exited)
assert supervisor.run({"NAME": "value"}) == 128 + 15
assert supervisor.is_lost
""")


def test_others_lists_the_living_members_of_the_group() -> None:
    """`others` lists the living processes of the caller's group, without the caller and without zombies."""
    succeeds("""
import os, subprocess
from fencelock.cli.run import group
os.setpgid(0, 0)
living = subprocess.Popen(["sleep", "60"])
elsewhere = subprocess.Popen(["sleep", "60"], process_group=0)
ended = subprocess.Popen(["true"])
os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
assert group.others() == [living.pid], (group.others(), living.pid)
living.kill(), living.wait(), elsewhere.kill()
assert group.others() == []
""")


def test_a_name_with_parentheses_is_read_as_a_name(program: Program) -> None:
    path = program.folder / "a) Z (b"
    path.write_text("#!/bin/sh\nread _\n")
    path.chmod(0o755)
    process = subprocess.Popen([path], stdin=subprocess.PIPE)
    try:
        wait_until(lambda: psutil.Process(process.pid).name() == path.name)
        assert group.is_alive(process.pid)
    finally:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not group.is_alive(process.pid)
        process.communicate()
    assert not group.is_alive(process.pid)
