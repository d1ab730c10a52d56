"""Which processes are left in this process's group. The watchdog uses it, as a member of CMD's group.

Promise: the list contains living processes only, no zombies, and no process outside the group: the kernel does not
reuse the group's id while the caller is in it.
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
    # A system call instead of reading a file for each process of the machine.
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def is_alive(pid: int) -> bool:
    """Return whether the process exists and has not ended."""
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
    # `pid (name) state …`: the name may contain parentheses, so the last one counts.
    return stat[stat.rindex(b")") + 2] not in _ENDED
