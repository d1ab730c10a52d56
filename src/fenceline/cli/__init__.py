"""The `fenceline` command: parses, asks the library, prints; no rule of locks or guards lives here.

Promise: results go to stdout and nothing else does; errors are one or two lines on stderr, or one JSON object under
`--json`; exit codes are a contract (`errors.py`). No traceback reaches a user unless FENCELINE_DEBUG=1 asks for it.
Importing this package loads neither click nor the library: each command loads what it needs.
"""

import sys

EXIT_UNAVAILABLE = 69


def main() -> None:
    """Run the command line and exit; what the package's `fenceline` script calls."""
    try:
        import click  # noqa: F401 - only to see whether it is there.
    except ModuleNotFoundError:
        sys.stderr.write("fenceline: the command needs an extra: pip install 'fenceline[cli]'\n")
        sys.exit(EXIT_UNAVAILABLE)
    from fenceline.cli.commands import execute

    sys.exit(execute(sys.argv[1:]))
