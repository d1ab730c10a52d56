"""Which kind of file system a path is on, and which kinds cannot keep locks or data for the stores on files.

Promise: the kernel's own list of mounts is read, and nothing else is touched.
"""

import os
import re
from pathlib import Path

NETWORK_FILESYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "ceph",
    "fuse.sshfs",
    "fuse.glusterfs",
    "afs",
    "beegfs",
    "coda",
    "gfs2",
    "gpfs",
    "lustre",
    "ncpfs",
    "ocfs2",
    "orangefs",
    "prl_fs",
    "vboxsf",
    "virtiofs",
}
"""Of other machines, or of a virtual one's host: two kernels write there, each with locks and caches of its own."""
VOLATILE_FILESYSTEMS = {"tmpfs", "ramfs"}
UNJOURNALED_FILESYSTEMS = {"exfat", "ext2", "hfs", "hfsplus", "msdos", "ntfs", "vfat"}
"""After a power cut a rename may be there by half; most of these also take names for one that differ in case only."""
_MOUNTS = Path("/proc/self/mountinfo")
_MOUNT_POINT = 4
"""Index of the mount point among the fields of a line (proc_pid_mountinfo(5))."""
_OCTAL = re.compile(rb"\\([0-7]{3})")


def filesystem_of(path: Path) -> str:
    """Return the kernel's name for the type of the file's file system; "" if it is unknown."""
    best, kind = -1, ""
    # The longest mount point above the path holds it; of equally long ones the last, which is mounted over the others.
    for mount_point, found in _mounts():
        if path.is_relative_to(mount_point) and len(mount_point) >= best:
            best, kind = len(mount_point), found
    return kind


def mounted_inside(path: Path) -> list[str]:
    """Return the mount points below a folder."""
    return [point for point, _ in _mounts() if Path(point) != path and Path(point).is_relative_to(path)]


def _mounts() -> list[tuple[str, str]]:
    """Return each mount point and the type of its file system; nothing where the kernel has no such list."""
    try:
        lines = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        left, _, right = line.partition(b" - ")
        point = _OCTAL.sub(lambda match: bytes((int(match[1], 8),)), left.split()[_MOUNT_POINT])
        found.append((os.fsdecode(point), right.split()[0].decode()))
    return found
