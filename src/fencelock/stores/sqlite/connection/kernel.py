"""Which kernel's clock the deadlines in a file are on, and whether the file is still the one that it was made as.

CLOCK_BOOTTIME starts anew with each boot and differs between time namespaces, so a deadline means something only to
the kernel that wrote it. Promise: an identity is equal exactly where deadlines may be compared. A reboot of the same
machine is told from a second machine by the machine id; where a machine has none, every new boot looks like another
machine.
"""

import os
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fencelock.errors import UnsupportedError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = "/proc/self/ns/time"
MACHINE_ID = Path("/etc/machine-id")
_MACHINE_ID_FORM = re.compile(rb"[0-9a-f]{32}")


class Kernel(NamedTuple):
    """The clock that deadlines are on, and the machine that it runs on ("" where it has no id)."""

    boot_id: str
    time_namespace: str
    machine_id: str

    def is_same_clock(self, other: "Kernel") -> bool:
        """Tell whether deadlines written under `other` can be compared with this kernel's clock."""
        return self[:2] == other[:2]

    def is_reboot_of(self, other: "Kernel") -> bool:
        """Tell whether this is the same machine, started again: all processes of `other` are gone then."""
        return self.boot_id != other.boot_id and self.machine_id == other.machine_id != ""


@cache
def this_kernel() -> Kernel:
    """Return the identity of the kernel that this process runs on; UnsupportedError where it does not tell."""
    try:
        boot_id = BOOT_ID.read_text().strip()
    except OSError as error:
        raise UnsupportedError(
            f"{BOOT_ID} cannot be read ({error.strerror}), so nothing tells whose clock a lease is on: mount /proc"
        ) from error
    return Kernel(boot_id, _time_namespace(), _machine_id())


# A child may be born into another time namespace than its parent's (unshare).
os.register_at_fork(after_in_child=this_kernel.cache_clear)


def _time_namespace() -> str:
    try:
        return os.readlink(TIME_NAMESPACE)
    except OSError:
        return ""  # A kernel older than 5.6 has one clock for all.


def _machine_id() -> str:
    """Return the machine's id; "" where it has none yet: an image's placeholder is the same on many machines."""
    try:
        text = MACHINE_ID.read_bytes().strip()
    except OSError:
        return ""
    return text.decode() if _MACHINE_ID_FORM.fullmatch(text) else ""
