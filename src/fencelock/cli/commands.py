"""The table of commands, and the one place where a command's outcome becomes an exit code.

Promise: a command's module is imported when that command is run, or when `--help` lists them all.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

import click

from fencelock.cli import errors

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

_MODULES = {
    "run": "fencelock.cli.run",
    "locks": "fencelock.cli.locks",
    "show": "fencelock.cli.locks",
    "break": "fencelock.cli.breaking",
    "purge": "fencelock.cli.locks",
    "install": "fencelock.cli.source",
    "epoch": "fencelock.cli.source",
    "protect": "fencelock.cli.guards",
    "unprotect": "fencelock.cli.guards",
    "rebind": "fencelock.cli.guards",
    "marks": "fencelock.cli.guards",
    "doctor": "fencelock.cli.doctor",
}
"""Which module has which command, in the order of the help."""
GROUP = "fencelock.commands"
"""The entry points by which other packages add commands. None of them replaces a built-in command."""
LAB_COMMANDS = ("demo", "verify")
"""The commands of fencelock-lab."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the built-in names in the order of the table, then those of installed packages."""
        return [*_MODULES, *sorted(point.name for point in _entry_points() if point.name not in _MODULES)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; entry points are read only for a name that is not built in."""
        if cmd_name in _MODULES:
            found: list[click.Command] = import_module(_MODULES[cmd_name]).COMMANDS
            return next(command for command in found if command.name == cmd_name)
        return _load_installed(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say what to install for one of the laboratory's."""
        if args and args[0] in LAB_COMMANDS and self.get_command(ctx, args[0]) is None:
            raise click.UsageError(
                f"`fencelock {args[0]}` is in the package fencelock-lab, which is not installed: from a clone of "
                f"fencelock, pip install . ./lab"
            )
        return super().resolve_command(ctx, args)


def _entry_points() -> "EntryPoints":
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


def _load_installed(name: str) -> click.Command | None:
    """Return the command that an installed package offers under this name; UsageError if it cannot be loaded."""
    for point in _entry_points():
        if point.name == name:
            try:
                command = point.load()
            except (ImportError, AttributeError) as error:
                raise click.UsageError(
                    f"`fencelock {name}` is offered by {point.value!r}, which cannot be loaded ({error}): install what "
                    f"that package needs, or uninstall it"
                ) from error
            assert isinstance(command, click.Command), f"{point.value} is not a click command"
            return command
    return None


def _print_version(ctx: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from fencelock import __version__

        click.echo(f"fencelock {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Locks that stay safe when leases do not.

    Every lease has a fencing token, and the protected resource itself refuses stale ones.
    `fencelock demo` shows why that is needed; `fencelock run` holds a lock while a command runs.

    \b
    The source of locks: --source, else $FENCELOCK_SOURCE, else this user's own file.
    Exit codes: 0 done, 1 no, 64 usage, 69 unavailable, 70 our bug, 75 not obtained,
    76 lease lost, 126 or 127 CMD cannot be executed, 128+n signal n.
    """


def execute(words: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        with cli.make_context("fencelock", list(words)) as context:
            code = cli.invoke(context)
        # Only `run` and the commands that have a "no" return a code.
        sys.stdout.flush()
    except BrokenPipeError:
        _silence_stdout()
        return errors.BROKEN_PIPE
    except BaseException as error:
        return errors.report(error, as_json=_asks_for_json(words))
    return code if isinstance(code, int) else 0


def _asks_for_json(words: Sequence[str]) -> bool:
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own


def _silence_stdout() -> None:
    """Let the interpreter flush at its end without a complaint; nobody reads any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
