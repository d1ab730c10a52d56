"""`fencelock run` and signals: CMD gets them once it runs; before that, they end the wait for the lock for certain."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.program import SAY_READY, Program, child, is_gone, program, ready, running
from tests.support.helpers import DEADLINE_S, wait_until

__all__ = ["program"]
pytestmark = pytest.mark.process

FORWARDED = ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"]


# --- what CMD inherits
def test_dispositions_of_signals_are_cmds_defaults(program: Program) -> None:
    """Python ignores SIGPIPE and SIGXFSZ: a CMD that inherited that would not end when nobody reads it."""
    show = ["grep", "-E", "Sig(Ign|Blk)", "/proc/self/status"]
    plain = subprocess.run(show, capture_output=True, text=True, check=True, restore_signals=True)
    assert program("run", "x", "--", *show).stdout == plain.stdout


def test_an_ignored_hangup_stays_ignored(program: Program) -> None:
    os.mkfifo(program.folder / "go")
    process = program.start(
        "run",
        "x",
        "--",
        "sh",
        "-c",
        SAY_READY + "read -r _ < go; echo survived",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    ready(process)
    process.send_signal(signal.SIGHUP)
    os.killpg(running(process).pid, signal.SIGHUP)
    (program.folder / "go").write_text("\n")
    out, _ = process.communicate()
    assert (out, process.returncode) == ("survived\n", 0)


def test_an_ignored_hangup_does_not_end_the_wait(program: Program) -> None:
    with program.source() as source:
        with source.lock("x"):
            process = program.start(
                *("run", "x", "--", "echo", "ran"),
                preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
            )
            wait_until(lambda: source.info("x").waiters)
            process.send_signal(signal.SIGHUP)
        out, _ = process.communicate()
    assert (out, process.returncode) == ("ran\n", 0)


def test_an_ignored_sigchld_of_the_parent_loses_no_exit_code(program: Program) -> None:
    process = program.start(
        "run", "x", "--", "sh", "-c", "exit 7", preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    )
    assert process.wait() == 7


# --- passed on, or the end of the wait
@pytest.mark.parametrize("name", FORWARDED)
def test_a_signal_is_forwarded_to_cmds_group(program: Program, name: str) -> None:
    process = program.start("run", "x", "--", "sh", "-c", SAY_READY + "sleep 60; exit 5")
    ready(process)
    sleep = child(running(process), "sleep")
    number = getattr(signal, f"SIG{name}")
    process.send_signal(number)
    assert process.wait() == 128 + number
    assert is_gone(sleep.pid)
    assert not program.source().info("x").is_held


@pytest.mark.parametrize("name", ["TERM", "HUP"])
def test_a_stopped_cmd_is_continued_to_end(program: Program, name: str) -> None:
    process = program.start("run", "x", "--", "sh", "-c", SAY_READY + "kill -STOP $$; exit 5")
    ready(process)
    stopped = running(process)
    wait_until(lambda: stopped.status() == "stopped")
    number = getattr(signal, f"SIG{name}")
    process.send_signal(number)
    assert process.wait() == 128 + number
    assert not program.source().info("x").is_held


def test_cmd_may_handle_a_forwarded_signal(program: Program) -> None:
    process = program.start("run", "x", "--", "sh", "-c", f"trap 'echo bye; exit 9' TERM; {SAY_READY} sleep 60 & wait")
    ready(process)
    process.terminate()
    out, _ = process.communicate()
    assert (out, process.returncode) == ("bye\n", 9)


@pytest.mark.parametrize("name", FORWARDED)
def test_a_signal_while_waiting_leaves_the_queue(program: Program, name: str) -> None:
    number = getattr(signal, f"SIG{name}")
    with program.source() as source, source.lock("x"):
        process = program.start("run", "x", "--", "touch", "ran")
        wait_until(lambda: source.info("x").waiters)
        process.send_signal(number)
        out, complaint = process.communicate()
        assert (process.returncode, out) == (128 + number, "")
        # Whoever waits for a second says so: on a loaded machine this one may.
        assert all(line.startswith("fencelock: waiting for lock 'x'") for line in complaint.splitlines())
        assert source.info("x").waiters == ()
    assert not (program.folder / "ran").exists()


SWALLOWED = {
    "in a finalizer": """
class Finalized:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
with told.interrupting():
    Finalized()
    time.sleep(600)
""",
    "by a client": """
with told.interrupting():
    try:
        signal.raise_signal(signal.SIGTERM)
    except BaseException:
        time.sleep(600)
""",
}
LEAVING = {
    "hangs": "",
    "hangs in a call that began just after the alarm": """
    signal.sigwait({signal.SIGALRM})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
""",
    "begins with a reminder of the wait": """
    told._remind(signal.SIGALRM, None)
""",
}
BEGIN = """
import signal, time
from fencelock.cli.run import events, signals
signals.REMINDER_S = {reminder_s}
signals.LEAVING_S = {leaving_s}
told = signals.Signals(events.Events(), children=())
"""


def ended(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.parametrize("place", SWALLOWED)
def test_a_swallowed_signal_ends_the_wait(place: str) -> None:
    done = ended(BEGIN.format(reminder_s=0.01, leaving_s=60) + SWALLOWED[place])
    assert done.returncode == 1
    assert done.stderr.endswith("InterruptedWait\n")


@pytest.mark.parametrize("leaving", LEAVING)
def test_a_leaving_that_hangs_is_cut_off(leaving: str) -> None:
    """Not before its time: it says that it began, within half a second of each alarm."""
    done = ended(
        BEGIN.format(reminder_s=0.5, leaving_s=0.5)
        + f"""
try:
    with told.interrupting():
        signal.raise_signal(signal.SIGTERM)
except signals.InterruptedWait:
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGALRM}} if {"sigwait" in LEAVING[leaving]} else ())
{LEAVING[leaving]}
    print("leaving", flush=True)
    time.sleep(600)
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "leaving\n", "")


def test_a_reminder_at_the_end_of_the_wait_does_not_disturb_the_leaving() -> None:
    done = ended(
        BEGIN.format(reminder_s=0.01, leaving_s=60)
        + """
end = told._end_wait
def hit():
    told._end_wait = end
    told._remind(signal.SIGALRM, None)
told._end_wait = hit
try:
    with told.interrupting():
        signal.raise_signal(signal.SIGTERM)
except signals.InterruptedWait:
    told._remind(signal.SIGALRM, None)
    print("left")
"""
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "left\n", "")


@pytest.mark.parametrize("step", range(8))
def test_a_signal_at_any_moment_of_the_start_ends_everything(program: Program, step: int) -> None:
    process = program.start("run", "x", "--", "sh", "-c", "sleep 60; touch ran")
    time.sleep(0.05 * step)  # Whatever line it is on then.
    process.terminate()
    process.communicate()
    assert process.returncode in {-signal.SIGTERM, 128 + signal.SIGTERM}
    wait_until(lambda: program.left() == [])  # Behind its gate CMD ends a moment after who was to open it.
    assert not program.source().info("x").is_held
    assert not (program.folder / "ran").exists()
