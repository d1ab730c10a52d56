"""Maps every error of a command to a line for its user and an exit code for a script.

    0   success                                     70  bug in fencelock
    1   negative result                             74  stdout cannot be written
    64  usage error: the line says what to write    75  lock not obtained
    69  unavailable, or outcome unknown             76  lease lost
    126, 127, 128+n  those of CMD, as for env(1) and shells; 141 also if the reader of stdout has closed it

Promise: each subclass of FencelockError has one code, for the commands of other packages too. Any other exception
counts as a bug in fencelock, and the line says how to see its traceback and report it.
"""

import errno
import os
import signal
import sys

import click

from fencelock import errors as tree
from fencelock.cli.streams import OutputError

NEGATIVE_RESULT = 1
USAGE = 64
UNAVAILABLE = 69
BUG = 70
NO_OUTPUT = 74
NOT_OBTAINED = 75
LEASE_LOST = 76
SIGNALLED = 128
"""Plus the number of the signal that ended a process."""
BROKEN_PIPE = SIGNALLED + getattr(signal, "SIGPIPE", 13)
DEBUG_VARIABLE = "FENCELOCK_DEBUG"


class NoSuchLockError(click.ClickException):
    """The source does not know the lock that the command names."""


class InUseError(click.ClickException):
    """A command would remove what is still used."""


# Subclasses first: the first class that matches decides.
_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (tree.AcquireTimeoutError, NOT_OBTAINED),
    (tree.LeaseError, LEASE_LOST),
    (tree.GuardError, NEGATIVE_RESULT),
    (tree.UnsafeSourceError, USAGE),
    (tree.SourceError, UNAVAILABLE),
    (tree.MissingDependencyError, UNAVAILABLE),
    (tree.ConfigError, USAGE),
    (click.UsageError, USAGE),
    (click.ClickException, NEGATIVE_RESULT),
    (click.Abort, SIGNALLED + signal.SIGINT),
    (KeyboardInterrupt, SIGNALLED + signal.SIGINT),
)


def exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ended with this exception."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0 if error.code is None else NEGATIVE_RESULT
    if isinstance(error, OutputError):
        return BROKEN_PIPE if error.errno == errno.EPIPE else NO_OUTPUT
    return next((code for kind, code in _CODES if isinstance(error, kind)), BUG)


def report(error: BaseException, *, as_json: bool = False) -> int:
    """Print on stderr how the command ended, and return its exit code."""
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
    """Print one line on stderr, about something that does not end the command."""
    print(f"fencelock: {message}", file=sys.stderr)


def _lines(error: BaseException, code: int) -> list[str]:
    if code == BROKEN_PIPE or isinstance(error, click.exceptions.Exit | SystemExit | KeyboardInterrupt | click.Abort):
        return []
    if isinstance(error, click.UsageError):
        return [_problem(error), *_what_to_write(error)]
    if isinstance(error, click.ClickException):
        return [error.format_message()]
    if isinstance(error, OutputError):
        return [f"stdout cannot be written: {error.strerror}; what the command changed stays changed"]
    if code == BUG:
        return [
            f"unexpected {type(error).__name__}: {error}",
            f"This is a bug in fencelock: please report it, with the traceback that {DEBUG_VARIABLE}=1 shows.",
        ]
    return [str(error), *_whose_source(error)]


def _whose_source(error: BaseException) -> list[str]:
    """Return a line about the default source, if nobody has named one and this error says that it is not there."""
    if not isinstance(error, tree.SchemaError):
        return []
    from fencelock._api.lock_options import is_named, resolve_url

    is_default = not is_named(None) and str(error).startswith(f"{resolve_url(None, makes_folder=False)} ")
    return ["That is this user's default source: --source URL names another one"] if is_default else []


def _problem(error: click.UsageError) -> str:
    # Python's `timeout=` is `--wait` here, and no spelling leads from one to the other.
    if isinstance(error, click.NoSuchOption) and error.option_name == "--timeout" and _takes_wait(error.ctx):
        return f"No such option '{error.option_name}'. Did you mean '--wait'?"
    return error.format_message()


def _takes_wait(ctx: click.Context | None) -> bool:
    return ctx is not None and any("--wait" in parameter.opts for parameter in ctx.command.params)


def _what_to_write(error: click.UsageError) -> list[str]:
    if error.ctx is None:
        return []
    usage = " ".join((error.ctx.command_path, *error.ctx.command.collect_usage_pieces(error.ctx)))
    return [f"Write: {usage}  (see {error.ctx.command_path} --help)"]
