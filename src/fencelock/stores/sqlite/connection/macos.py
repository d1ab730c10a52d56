"""What the SQLite store asks of macOS in place of Linux's /proc, statx(2) and fsync(2). It was never run there.

Promise: nothing here runs unless the URL ends in `?experimental=macos`. By the manuals, `kern.bootsessionuuid` is drawn
anew at each boot, gethostuuid(2) stays with the machine, and only `PRAGMA fullfsync` makes a commit survive a power cut
(T1): fsync(2) there returns before the disk has written.
"""

import os
import sqlite3
from pathlib import Path
from typing import Any

from fencelock._platform import IS_MACOS
from fencelock.errors import UnsupportedError

OPTION = "?experimental=macos"
_BOOT_ID = b"kern.bootsessionuuid"
_TEXT_BYTES = 64
_UUID_BYTES = 16


def check_asked_for(is_asked: bool) -> None:
    """Raise UnsupportedError on macOS unless the URL asks for what was never run."""
    if IS_MACOS and not is_asked:
        raise UnsupportedError(
            f"sqlite:// on macOS was written by the manual and never run: append {OPTION} to the URL to try it, or use "
            f"a server store"
        )


def boot_id() -> str:
    """Return the id of this boot; UnsupportedError if the system does not tell it."""
    import ctypes

    text = ctypes.create_string_buffer(_TEXT_BYTES)
    size = ctypes.c_size_t(_TEXT_BYTES)
    if _system_library().sysctlbyname(_BOOT_ID, text, ctypes.byref(size), None, ctypes.c_size_t(0)) or not text.value:
        raise UnsupportedError("sysctl kern.bootsessionuuid cannot be read, so nothing tells whose clock a lease is on")
    return text.value.decode()


def machine_id() -> str:
    """Return the machine's id; "" if the system does not tell it."""
    import ctypes

    answer = ctypes.create_string_buffer(_UUID_BYTES)
    no_wait = (ctypes.c_long * 2)(0, 0)  # A struct timespec.
    failed = _system_library().gethostuuid(answer, no_wait)
    return "" if failed else answer.raw.hex()


def _system_library() -> Any:
    import ctypes

    return ctypes.CDLL(None)


def flush_to_disk(native: sqlite3.Connection) -> None:
    """Make the connection's flushes reach the disk itself, those of a checkpoint too."""
    native.execute("PRAGMA fullfsync = ON")
    native.execute("PRAGMA checkpoint_fullfsync = ON")


def make_file(path: Path) -> None:
    """Create an empty file with mode 0600; FileExistsError if it exists. Only root may mknod(2) on macOS.

    The descriptor stays open: closing it drops every lock that this process has on the file, in another thread too.
    """
    os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
