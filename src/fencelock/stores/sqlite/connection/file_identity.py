"""Which file a path names, whether it has one name only, and which kernel's clock the deadlines in it are on.

Promise: no function here opens the database file, because closing any descriptor of it drops every lock that this
process has on it (https://www.sqlite.org/howtocorrupt.html, section 2.2).
- A copy is told from the original by inode and time of birth. The inode alone proves little: a file that was removed
  and copied back often gets the same inode (ext4 reuses the lowest free one). No program can set the time of birth.
- A file with a second name is refused, with the remedy. SQLite keeps the log beside the name by which a file was
  opened, so processes that use different names each have a log and locks of their own, and get the same token.
- Kernel identities are equal exactly where deadlines may be compared. CLOCK_BOOTTIME restarts with each boot and
  differs between time namespaces. The machine id tells a reboot from a second machine; without a machine id, every
  new boot counts as another machine.
Never: an error where the file system or the C library keeps no time of birth; it is 0 there and proves nothing.
"""

import os
import re
import struct
from functools import cache
from pathlib import Path
from typing import NamedTuple

from fencelock._platform import IS_MACOS, at_fork
from fencelock.errors import SourceUnavailableError, UnsupportedError
from fencelock.stores.sqlite.connection import macos

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = "/proc/self/ns/time"
MACHINE_ID = Path("/etc/machine-id")
MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT = 4
"""Index of the mount point among the fields of a line (proc_pid_mountinfo(5))."""
_MACHINE_ID_FORM = re.compile(rb"[0-9a-f]{32}")

# --- statx(2) by ctypes: the offsets and flags are part of the kernel's interface ---
_AT_FDCWD = -100
_STATX_INO_AND_BTIME = 0x900  # STATX_INO | STATX_BTIME
_STATX_BYTES = 256
_MASK = struct.Struct("=I")
_INODE_OFFSET, _INODE = 32, struct.Struct("=Q")
_BIRTH_OFFSET, _BIRTH = 80, struct.Struct("=qI")
_NS_PER_S = 1_000_000_000


class FileIdentity(NamedTuple):
    """The identity of a file, in numbers that a copy does not share."""

    inode: int
    born_ns: int

    def is_of(self, other: "FileIdentity") -> bool:
        """Return whether this can be the same file as `other`."""
        return self.inode == other.inode and (self.born_ns == other.born_ns or 0 in (self.born_ns, other.born_ns))


def identify_file(path: Path) -> FileIdentity:
    """Return the identity of the file; OSError if it does not exist."""
    answer = _statx(path)
    if answer is None:
        status = os.stat(path)
        # macOS has the time of birth here; elsewhere the attribute is missing.
        return FileIdentity(status.st_ino, int(getattr(status, "st_birthtime", 0) * _NS_PER_S))
    (mask,) = _MASK.unpack_from(answer)
    (inode,) = _INODE.unpack_from(answer, _INODE_OFFSET)
    seconds, nanoseconds = _BIRTH.unpack_from(answer, _BIRTH_OFFSET)
    # The kernel clears the flag of a field that the file system does not keep.
    has_birth = mask & _STATX_INO_AND_BTIME == _STATX_INO_AND_BTIME
    return FileIdentity(inode, seconds * _NS_PER_S + nanoseconds if has_birth else 0)


def _statx(path: Path) -> bytes | None:
    try:
        import ctypes

        statx = ctypes.CDLL(None).statx
    except (ImportError, AttributeError):
        return None  # Python without libffi, or a C library without the call. Python 3.15 has os.statx.
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    failed = statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_INO_AND_BTIME, answer)
    return None if failed else answer.raw


# --- one name -----------------------------------------------------------------------------------------------------
def check_one_name(path: Path, links: int) -> None:
    """Raise SourceUnavailableError if the file, which has so many hard links, can be opened by another name.

    A symbolic link is not a second name, because SQLite resolves it first. A hard link is one, and so is a file that
    is mounted by itself (`docker run -v /srv/locks.db:/locks.db`): its folder in the container is another one.
    """
    if links > 1:
        reason, remedy = f"has {links} names (hard links)", "leave it one: find the others by `find -samefile`"
    elif _is_mounted_alone(path):
        reason, remedy = "is mounted by itself, apart from its folder", "mount its folder instead"
    else:
        return
    raise SourceUnavailableError(
        f"{path} {reason}: SQLite keeps the log beside the name, so processes that use different names do not see "
        f"each other's writes, and one lock would have two holders. Stop all of them, and {remedy}"
    )


def _is_mounted_alone(path: Path) -> bool:
    name = _escape_mount_point(os.fsencode(os.path.realpath(path)))
    try:
        mounts = MOUNTS.read_bytes()
    except OSError:
        return False  # Without /proc the mounts are unknown.
    return name in mounts and any(line.split()[_MOUNT_POINT] == name for line in mounts.splitlines())


def _escape_mount_point(name: bytes) -> bytes:
    """Return a name as the kernel writes it into the list of mounts."""
    return b"".join(b"\\%03o" % byte if byte in b" \t\n\\" else bytes((byte,)) for byte in name)


# --- the kernel ---------------------------------------------------------------------------------------------------
class Kernel(NamedTuple):
    """The clock that deadlines are on, and the machine that it runs on ("" if the machine has no id)."""

    boot_id: str
    time_namespace: str
    machine_id: str

    def is_same_clock(self, other: "Kernel") -> bool:
        """Return whether deadlines written under `other` can be compared with this kernel's clock."""
        return self[:2] == other[:2]

    def is_reboot_of(self, other: "Kernel") -> bool:
        """Return whether this is the same machine after a reboot, which ended all processes of `other`."""
        return self.boot_id != other.boot_id and self.machine_id == other.machine_id != ""


@cache
def this_kernel() -> Kernel:
    """Return the identity of the kernel that this process runs on; UnsupportedError if it cannot be read."""
    if IS_MACOS:
        return Kernel(macos.boot_id(), "", macos.machine_id())
    try:
        boot_id = BOOT_ID.read_text().strip()
    except OSError as error:
        raise UnsupportedError(
            f"{BOOT_ID} cannot be read ({error.strerror}), so nothing tells whose clock a lease is on: mount /proc"
        ) from error
    return Kernel(boot_id, _time_namespace(), _machine_id())


# A child may start in another time namespace than its parent's (unshare), so it reads its kernel's identity again.
at_fork(after_in_child=this_kernel.cache_clear)


def _time_namespace() -> str:
    try:
        return os.readlink(TIME_NAMESPACE)
    except OSError:
        return ""  # Kernels before 5.6 have no time namespaces.


def _machine_id() -> str:
    """Return the machine's id; "" if it has none yet. The placeholder of an image is the same on many machines."""
    try:
        text = MACHINE_ID.read_bytes().strip()
    except OSError:
        return ""
    return text.decode() if _MACHINE_ID_FORM.fullmatch(text) else ""
