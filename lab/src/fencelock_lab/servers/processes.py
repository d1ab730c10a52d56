"""Processes as /proc shows them: children, states, processor time, and waiting for a condition.

Never: needs a library outside the standard one.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from fencelock.errors import SourceError

DEADLINE_S = 60.0
"""How long a server may take to start or to end on a loaded machine."""
STOPPED, GONE = "TZX", "ZX"
"""States of a process that does not run (stopped, zombie, dead), and of one that has ended."""
_PAUSE_S = 0.01
Value = TypeVar("Value")
_USER_TIME, _SYSTEM_TIME = 11, 12
"""Fields of /proc/PID/stat after the name of the program."""


def family_of(pid: int) -> list[int]:
    """Return a process and all processes that descend from it."""
    found = [pid]
    for each in found:
        found += children_of(each)
    return found


def children_of(pid: int) -> list[int]:
    """Return the living processes that a process has started."""
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def state_of(pid: int) -> str:
    """Return the letter that proc(5) has for a process's state; X if the process is gone.

    An orphan stays a zombie until the system's first process reaps it.
    """
    fields = _stat(pid)
    return fields[0] if fields else "X"


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used; 0 if it is gone."""
    fields = _stat(pid)
    ticks = int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME]) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    with suppress(OSError):
        # The program's name, in parentheses, may itself contain some.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def wait_for(condition: Callable[[], Value], complaint: str, timeout_s: float = DEADLINE_S) -> Value:
    """Return the first true value of the condition; SourceError with the complaint if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise SourceError(f"{complaint} within {timeout_s:g} s")
        time.sleep(_PAUSE_S)
    return value
