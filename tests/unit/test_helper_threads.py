"""Waits for helper threads end where those threads no longer run: at the interpreter's end, and in a forked child."""

import subprocess
import sys

AT_THE_END = """
import sys
from fencelock._threads import BackgroundThread
from fencelock.errors import SourceUnavailableError
from fencelock.stores.helper_threads import in_helper_thread, in_helper_threads

class AtEnd:
    names = print, in_helper_thread, in_helper_threads, BackgroundThread, SourceUnavailableError

    def __del__(self):
        print, in_helper_thread, in_helper_threads, BackgroundThread, SourceUnavailableError = self.names
        print(in_helper_thread(lambda: 1), in_helper_threads([lambda: 2, lambda: in_helper_thread(lambda: 3)], 2))
        try:
            BackgroundThread("late").start(lambda: None)
        except SourceUnavailableError as error:
            print(str(error)[:22], flush=True)

if sys.argv[1] == "after a call":
    in_helper_threads([int, int], 2)
sys.modules["at end"] = AtEnd()
"""
IN_A_CHILD = """
import os, signal, sys, time
from fencelock.errors import OutcomeUnknownError
from fencelock.stores.helper_threads import in_helper_thread, in_helper_threads

child = None
first = iter([True])

def fork(*_):
    global child
    child = os.fork()
    time.sleep(0.5)  # Longer than the waiting thread looks once.

def sleep():
    # Has the process forked, and sleeps until the child has ended: longer than the child waits, however slow it is.
    began_s = time.monotonic()
    if next(first, False):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
    while child is None or os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.01)
        if time.monotonic() - began_s > 20:
            break
    return "slept"

signal.signal(signal.SIGALRM, fork)
try:
    result = in_helper_thread(sleep) if sys.argv[1] == "one" else in_helper_threads([sleep, sleep], 2)[1]
except OutcomeUnknownError as error:
    is_told = "was forked" in str(error)
    # A call of the child's own goes on.
    os._exit(7 if is_told and child == 0 and in_helper_thread(lambda: 1) == 1 else 1)
signal.signal(signal.SIGALRM, lambda *_: os.kill(child, signal.SIGKILL))
signal.alarm(5)
print(result, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_at_the_interpreters_end_the_caller_makes_the_call() -> None:
    for before in ("after a call", "without a call"):
        assert run(AT_THE_END, before) == "1 [2, 3]\nthis process is ending\n"


def test_a_child_forked_during_a_call_does_not_wait_for_its_parents_thread() -> None:
    for calls in ("one", "several"):
        assert run(IN_A_CHILD, calls) == "slept 7\n"


def run(script: str, argument: str) -> str:
    """Run it in a process of its own, and return what it prints."""
    command = [sys.executable, "-c", script, argument]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stderr == ""
    return ran.stdout
