"""The `fencelock` command: it parses, calls the library and prints. No rule of locks or guards is implemented here.

Promise: stdout gets results only; errors are one or two lines on stderr, or one JSON object under `--json`; exit codes
are a contract (`errors.py`). No traceback reaches a user unless FENCELOCK_DEBUG=1 is set. Importing this package loads
neither click nor the library: each command loads what it needs.
"""

import atexit
import os
import sys
from contextlib import suppress

from fencelock.cli import streams

AGAIN = -1
"""What a command returns to be begun anew, as a process without threads, connections and leases."""
_BUG = 70
_UNAVAILABLE = 69
_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit: the entry point of the `fencelock` script."""
    code = _BUG

    def leave() -> None:
        """End the process without tearing down the interpreter, which takes longer than many a CMD runs."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        try:
            if code == AGAIN:
                os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        finally:
            os._exit(_BUG if code == AGAIN else code)

    # Registered first, so that it runs last, after the library's own exit handlers.
    atexit.register(leave)
    streams.prepare()
    try:
        code = _execute(sys.argv[1:])
    except KeyboardInterrupt:  # While the modules were loaded: later ones are the command's.
        code = _INTERRUPTED
    sys.exit(code)


def _execute(words: list[str]) -> int:
    try:
        import click  # noqa: F401 - only to see whether it is installed.
    except ModuleNotFoundError:
        from fencelock._install import install_extra

        sys.stderr.write(f"fencelock: the command needs the extra cli: {install_extra('cli')}\n")
        return _UNAVAILABLE
    from fencelock.cli.commands import execute

    return execute(words)
