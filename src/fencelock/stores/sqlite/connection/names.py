"""Whether a file has one name: SQLite keeps the log beside the name by which a file was opened.

Processes that open one file by two names have a log and locks each: both got the same lock, with the same token. A
symbolic link is no second name, since SQLite follows it first. A hard link is one, and so is a file that is mounted by
itself, as `docker run -v /srv/locks.db:/locks.db` does: its folder in the container is another one.

Promise: a file with another name is refused, with the remedy. Never: a file changed or opened.
"""

import os
from pathlib import Path

from fencelock.errors import SourceUnavailableError

MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT = 4
"""Which field of a line it is, counted from 0 (proc_pid_mountinfo(5))."""


def check_one_name(path: Path, links: int) -> None:
    """Raise SourceUnavailableError if the file, which has so many hard links, can be opened by another name."""
    if links > 1:
        reason, remedy = f"has {links} names (hard links)", "leave it one: find the others by `find -samefile`"
    elif _is_mounted_alone(path):
        reason, remedy = "is mounted by itself, apart from its folder", "mount the folder that it is in"
    else:
        return
    raise SourceUnavailableError(
        f"{path} {reason}: SQLite keeps the log beside the name, so that processes which use different names do not "
        f"see what the others write, and one lock would have two holders. Stop all of them, and {remedy}"
    )


def _is_mounted_alone(path: Path) -> bool:
    name = _escaped(os.fsencode(os.path.realpath(path)))
    try:
        mounts = MOUNTS.read_bytes()
    except OSError:
        return False  # Without /proc nobody tells.
    return name in mounts and any(line.split()[_MOUNT_POINT] == name for line in mounts.splitlines())


def _escaped(name: bytes) -> bytes:
    """Return a name as the kernel writes it in that list."""
    return b"".join(b"\\%03o" % byte if byte in b" \t\n\\" else bytes((byte,)) for byte in name)
