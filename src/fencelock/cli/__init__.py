"""The `fencelock` command: parses, asks the library, prints; no rule of locks or guards lives here.

Promise: results go to stdout and nothing else does; errors are one or two lines on stderr, or one JSON object under
`--json`; exit codes are a contract (`errors.py`). No traceback reaches a user unless FENCELOCK_DEBUG=1 asks for it.
Importing this package loads neither click nor the library: each command loads what it needs.
"""

import atexit
import os
import sys
from contextlib import suppress

_OUR_BUG = 70
_UNAVAILABLE = 69


def main() -> None:
    """Run the command line and exit; what the package's `fencelock` script calls."""
    code = _OUR_BUG

    def leave() -> None:
        """End the process without taking the interpreter apart, which costs more than many a CMD."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)

    # Registered first, so that it runs last: what the library does at exit is done before.
    atexit.register(leave)
    code = _execute(sys.argv[1:])
    sys.exit(code)


def _execute(words: list[str]) -> int:
    try:
        import click  # noqa: F401 - only to see whether it is there.
    except ModuleNotFoundError:
        sys.stderr.write("fencelock: the command needs an extra: pip install 'fencelock[cli]'\n")
        return _UNAVAILABLE
    from fencelock.cli.commands import execute

    return execute(words)
