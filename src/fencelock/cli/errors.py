"""Every error of a command as a line for its user and an exit code for a script.

    0   done                                   69  unavailable, or outcome unknown
    1   the command's own "no"                 70  our bug
    64  usage: the line says what to write     75  lock not obtained
    76  lease lost                             126, 127, 128+n  CMD's, as env(1) and shells have them

Promise: each class of the tree has one code. What is not of the tree is a bug of ours, and the line says how to see
and report it.
"""

import os
import signal
import sys

import click

from fencelock import errors as tree

NO = 1
USAGE = 64
UNAVAILABLE = 69
OUR_BUG = 70
NOT_OBTAINED = 75
LEASE_LOST = 76
SIGNALLED = 128
"""Plus the number of the signal that ended a process."""
BROKEN_PIPE = SIGNALLED + signal.SIGPIPE
DEBUG_VARIABLE = "FENCELOCK_DEBUG"


class NoSuchLockError(click.ClickException):
    """A command was asked about a lock that its source does not know."""


# From the special to the general: the first that fits counts.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (tree.AcquireTimeoutError, NOT_OBTAINED),
    (tree.LeaseExpiredError, LEASE_LOST),
    (tree.LeaseLostError, LEASE_LOST),
    (tree.GuardError, NO),
    (tree.UnsafeSourceError, USAGE),
    (tree.SourceError, UNAVAILABLE),
    (tree.MissingDependencyError, UNAVAILABLE),
    (tree.ConfigError, USAGE),
    (click.UsageError, USAGE),
    (click.ClickException, NO),
    (click.Abort, SIGNALLED + signal.SIGINT),
    (KeyboardInterrupt, SIGNALLED + signal.SIGINT),
)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ended by this error."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0 if error.code is None else NO
    return next((code for kind, code in _CODES if isinstance(error, kind)), OUR_BUG)


def report(error: BaseException, *, as_json: bool = False) -> int:
    """Tell the user on stderr how the command ended, and return its exit code."""
    code = exit_code(error)
    if os.environ.get(DEBUG_VARIABLE):
        import traceback

        traceback.print_exception(error)
    lines = _lines(error, code)
    if lines and as_json:
        import json

        described = {
            "type": type(error).__name__,
            "message": "\n".join(lines),
            "exit_code": code,
            "definite": getattr(error, "definite", None),
        }
        lines = [json.dumps({"error": described})]
    elif lines:
        lines[0] = f"fencelock: {lines[0]}"
    for line in lines:
        print(line, file=sys.stderr)
    return code


def complain(message: str) -> None:
    """Print one line on stderr about something that does not end the command."""
    print(f"fencelock: {message}", file=sys.stderr)


def _lines(error: BaseException, code: int) -> list[str]:
    if isinstance(error, click.exceptions.Exit | SystemExit | KeyboardInterrupt | click.Abort):
        return []
    if isinstance(error, click.UsageError):
        return [error.format_message(), *_what_to_write(error)]
    if isinstance(error, click.ClickException):
        return [error.format_message()]
    if code == OUR_BUG:
        return [
            f"unexpected {type(error).__name__}: {error}",
            f"This is a bug of fencelock: please report it with what {DEBUG_VARIABLE}=1 shows.",
        ]
    return [str(error)]


def _what_to_write(error: click.UsageError) -> list[str]:
    if error.ctx is None:
        return []
    usage = " ".join((error.ctx.command_path, *error.ctx.command.collect_usage_pieces(error.ctx)))
    return [f"Write: {usage}  ({error.ctx.command_path} --help tells more)"]
