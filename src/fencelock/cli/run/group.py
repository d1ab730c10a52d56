"""Who is left in this process's group, for the watchdog, which is a member of CMD's group itself.

Promise: only living processes are named; one that has ended and waits to be reaped is not. Nobody outside
the group can be named: the group's number cannot be reused while the one who asks is in it.
"""

import os

_PROCESSES = "/proc"
_ENDED = b"ZX"
_STAT_BYTES = 4096


def others() -> list[int]:
    """Return the ids of all other living processes in the group of this one."""
    me, group = os.getpid(), os.getpgrp()
    found = (int(name) for name in os.listdir(_PROCESSES) if name.isdecimal())
    return [pid for pid in found if pid != me and _group_of(pid) == group and is_alive(pid)]


def _group_of(pid: int) -> int | None:
    # One call instead of a file for each process of the machine.
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def is_alive(pid: int) -> bool:
    """Tell whether the process exists and has not ended."""
    try:
        descriptor = os.open(f"{_PROCESSES}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        stat = os.read(descriptor, _STAT_BYTES)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    # `pid (name) state …`: the name may contain anything, a parenthesis too.
    return stat[stat.rindex(b")") + 2] not in _ENDED
