"""The command's standard streams, which may be closed, full, or without a reader.

Promise: a failed write to stdout raises OutputError and no other error, so that it is never taken for an error of a
source or a guard. A failed write to stderr has no effect: the exit code still tells how the command ended. No database
and no pipe gets the number of a standard descriptor that was closed at the start; CMD finds that descriptor closed.
"""

import errno
import io
import os
import sys
from typing import TextIO

_PLACEHOLDERS = ((0, os.O_WRONLY), (1, os.O_RDONLY), (2, os.O_RDONLY))
"""The standard descriptors, each with the wrong direction: using such a placeholder fails as on a closed one."""


class OutputError(OSError):
    """Stdout does not take what the command prints."""


class _Stdout(io.FileIO):
    """Descriptor 1; its errors are OutputErrors."""

    def write(self, data: memoryview) -> int:  # type: ignore[override]  # A BufferedWriter passes nothing else.
        try:
            written: int | None = super().write(data)
        except OSError as error:
            raise OutputError(error.errno, error.strerror) from None
        if written is None:  # It does not block, and is full.
            raise OutputError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return written


class _Stderr(io.FileIO):
    """Descriptor 2; what it does not take is lost."""

    def write(self, data: memoryview) -> int:  # type: ignore[override]  # A BufferedWriter passes nothing else.
        try:
            return super().write(data) or data.nbytes
        except OSError:
            return data.nbytes


def prepare() -> None:
    """Occupy the closed standard descriptors, and replace `sys.stdout` and `sys.stderr` by streams as promised."""
    for descriptor, direction in _PLACEHOLDERS:
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one, because the lower ones are occupied. It is closed when CMD begins.
            os.open(os.devnull, direction)
    sys.stdout = _text(_Stdout(1, "wb", closefd=False), sys.stdout)
    sys.stderr = _text(_Stderr(2, "wb", closefd=False), sys.stderr)
    sys.stderr.reconfigure(errors="backslashreplace", line_buffering=True)


def _text(raw: io.FileIO, replaced: TextIO | None) -> io.TextIOWrapper:
    """Return a text stream like the replaced one; that is None if its descriptor was closed."""
    encoding, errors = (replaced.encoding, replaced.errors) if replaced is not None else (None, None)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=raw.isatty())
