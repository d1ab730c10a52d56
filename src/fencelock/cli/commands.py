"""The table of built-in commands, and the one place where a command's outcome becomes an exit code.

Beside the table: what a wrong name is told ("Did you mean"), and what a shell is told that completes a line.

Promise: a command's module is imported when that command is called, or when `--help` lists all commands. Commands of
other packages come from `extensions`; `plugin` is what they may use.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from fencelock.cli import errors, extensions

COMPLETION_VARIABLE = "_FENCELOCK_COMPLETE"
"""Set by click's own scripts, which the shell runs: see `docs/reference/cli.md`."""

_MODULES = {
    "run": "fencelock.cli.run",
    "lead": "fencelock.cli.lead",
    "locks": "fencelock.cli.locks",
    "show": "fencelock.cli.locks",
    "break": "fencelock.cli.breaking",
    "purge": "fencelock.cli.purging",
    "install": "fencelock.cli.installation",
    "uninstall": "fencelock.cli.installation",
    "epoch": "fencelock.cli.epoch",
    "protect": "fencelock.cli.guards",
    "unprotect": "fencelock.cli.guards",
    "rebind": "fencelock.cli.guards",
    "marks": "fencelock.cli.marks",
    "rights": "fencelock.cli.rights",
    "grant": "fencelock.cli.rights",
    "revoke": "fencelock.cli.rights",
    "unpoison": "fencelock.cli.rights",
    "keys": "fencelock.cli.keys",
    "sequencer": "fencelock.cli.sequencers",
    "doctor": "fencelock.cli.doctor",
}
"""The module of each command, in the order of the help."""

_INSTEAD = {
    "acquire": "run NAME -- CMD",
    "help": "--help, or fencelock COMMAND --help",
    "list": "locks",
    "lock": "run NAME -- CMD",
    "ls": "locks",
    "release": "break NAME --reason TEXT",
    "status": "show NAME, or fencelock locks",
    "unlock": "break NAME --reason TEXT",
    "version": "--version",
}
"""What to write in place of other programs' commands."""


class CommandGroup(click.Group):
    """A group that imports a command when it is called or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the built-in names in the order of the table, then those of installed packages."""
        return [*_MODULES, *extensions.names(_MODULES)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; entry points are read only if the name is not built in."""
        if cmd_name in _MODULES:
            found: list[click.Command] = import_module(_MODULES[cmd_name]).COMMANDS
            return next(command for command in found if command.name == cmd_name)
        return extensions.load(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the words begin with; for an unknown one, name the one that is spelled like it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if instead := _INSTEAD.get(args[0]):
                raise click.UsageError(f"No such command {args[0]!r}. Write: fencelock {instead}", ctx) from None
            from difflib import get_close_matches

            near = get_close_matches(args[0], {*self.list_commands(ctx), *extensions.LAB_COMMANDS}, 1)
            if not near:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]!r}?", ctx) from None


def _print_version(ctx: click.Context, _parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from fencelock import __version__

        click.echo(f"fencelock {__version__}")
        ctx.exit()


@click.group(
    cls=CommandGroup,
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

    Every lease has a fencing token, and the protected resource itself refuses stale tokens.
    `fencelock run` holds a lock while a command runs.

    \b
    The source of locks: --source, else $FENCELOCK_SOURCE, else this user's own file.
    Exit codes: 0 success, 1 negative result, 64 usage error, 69 unavailable or outcome
    unknown, 70 bug in fencelock, 74 stdout cannot be written, 75 lock not obtained,
    76 lease lost, 126 or 127 CMD cannot be executed, 128+n ended by signal n.
    """


def execute(words: Sequence[str]) -> int:
    """Run one command line and return its exit code; or print what a shell asks for to complete one."""
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "fencelock", COMPLETION_VARIABLE, instruction)
    try:
        with cli.make_context("fencelock", list(words)) as context:
            code = cli.invoke(context)
        # Only `run` and the commands with a negative result return a code.
        sys.stdout.flush()
    except BaseException as error:
        return errors.report(error, as_json=_asks_for_json(words))
    return code if isinstance(code, int) else 0


def _asks_for_json(words: Sequence[str]) -> bool:
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own
