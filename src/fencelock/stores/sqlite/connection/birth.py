"""Which file a path names: its inode, and when that was born, so that a copy is told from the original.

A file that was removed and then copied back often gets the inode that it had (ext4 gives out the lowest free one), so
the inode alone proves little; the time of birth cannot be set by any program.
Promise: nothing is opened, since closing a descriptor of a database takes away every lock that this process has on it.
Never: an error where the file system or the C library keeps no time of birth; it is 0 there, which proves nothing.
"""

import os
import struct
from pathlib import Path
from typing import NamedTuple

_HERE = -100  # AT_FDCWD: the path is looked up as open() does it.
_WANTED = 0x900  # STATX_INO | STATX_BTIME
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
        """Tell whether this can be the same file as `other`."""
        return self.inode == other.inode and (self.born_ns == other.born_ns or 0 in (self.born_ns, other.born_ns))


def file_identity(path: Path) -> FileIdentity:
    """Return the identity of the file; OSError if there is none."""
    answer = _statx(path)
    if answer is None:
        return FileIdentity(os.stat(path).st_ino, 0)
    (mask,) = _MASK.unpack_from(answer)
    (inode,) = _INODE.unpack_from(answer, _INODE_OFFSET)
    seconds, nanoseconds = _BIRTH.unpack_from(answer, _BIRTH_OFFSET)
    return FileIdentity(inode, seconds * _NS_PER_S + nanoseconds if mask & _WANTED == _WANTED else 0)


def _statx(path: Path) -> bytes | None:
    try:
        import ctypes

        statx = ctypes.CDLL(None).statx
    except (ImportError, AttributeError):
        return None  # Python without libffi, or a C library without the call; os.statx comes with Python 3.15.
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    failed = statx(_HERE, os.fsencode(path), 0, _WANTED, answer)
    return None if failed else answer.raw
