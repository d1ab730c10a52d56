"""`fencelock run`: hold a lock while a command runs.

Promise: CMD runs only while the lease is valid, and its process group ends at the lease's deadline at the latest, also
if this process is frozen or killed (`watchdog.py`). An interrupted wait leaves no queue entry.
Never: a shell between this process and CMD, except for a script without `#!`, which env(1) also gives to sh.
"""

from typing import Any

import click

from fencelock._platform import check_command
from fencelock.cli.options import guard_option, lock_argument, source_option
from fencelock.cli.run.options import DEFAULT_TTL_S, RunOptions


class RunCommand(click.Command):
    """A command line in two halves: click parses the part before `--`; CMD after it is passed on unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split CMD off the command line, and let click parse the rest."""
        if ctx.resilient_parsing:  # A shell completes the line.
            return super().parse_args(ctx, args[: args.index("--")] if "--" in args else args)
        if {"-h", "--help"} & set(args[: args.index("--") if "--" in args else None]):
            return super().parse_args(ctx, args)
        if "--" not in args:
            raise click.UsageError("no CMD: write it after two dashes", ctx)
        at = args.index("--")
        if at + 1 == len(args):
            raise click.UsageError("no CMD after the two dashes", ctx)
        rest = super().parse_args(ctx, args[:at])
        ctx.params["words"] = tuple(args[at + 1 :])
        return rest

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show CMD in the usage line."""
        return [*super().collect_usage_pieces(ctx), "-- CMD [ARG]..."]


ttl_option = click.option(
    "--ttl",
    metavar="S",
    type=float,
    default=DEFAULT_TTL_S,
    show_default=True,
    help="Length of the lease in seconds; it is renewed while CMD runs.",
)
grace_option = click.option(
    "--grace",
    metavar="S",
    type=float,
    help="Seconds between SIGTERM and SIGKILL when the lease ends. SIGKILL is sent at the lease's deadline at the"
    " latest, and SIGTERM this long before it.  [default: a sixth of the ttl, at most 10; maximum: a third]",
)
holder_option = click.option("--holder", metavar="TEXT", help="The holder's name in listings.  [default: host:pid:CMD]")


@click.command(cls=RunCommand)
@lock_argument
@source_option
@ttl_option
@click.option("--wait", metavar="S", type=float, help="Wait at most S seconds for the lock.  [default: without limit]")
@click.option("--no-wait", is_flag=True, help="Do not wait: exit with 75 if the lock is held.")
@grace_option
@guard_option("At the end, close the resources of this URL that are bound to NAME, so that they refuse CMD's token.")
@click.option(
    "--once",
    metavar="KEY",
    help="Run CMD at least once for this key, and not again once it has ended with 0: that is recorded at the guard,"
    " whose URL --guard names, after CMD's end. A crash in between runs CMD again.",
)
@holder_option
def run(**given: Any) -> int:
    """Hold the lock NAME while CMD runs.

    CMD gets FENCELOCK_LOCK, FENCELOCK_TOKEN and FENCELOCK_SEQUENCER, which fencelock.guard
    accepts in place of a lease. Signals are passed on to CMD's process group. If the lease is lost or cannot be
    renewed in time, the whole group is ended before another holder can get the lock.

    \b
    Examples:
      fencelock run nightly-report --no-wait -- ./report.sh
      fencelock run import --wait 60 --guard sqlite:////srv/app.db -- python import.py
      fencelock run nightly --once $(date -u +%F) --guard sqlite:////srv/app.db -- ./report.sh

    \b
    Exit codes: CMD's own, 128+n if signal n ended it, 126 or 127 if it cannot be executed,
    75 if the lock was not obtained, 76 if the lease was lost (also when CMD exited with 0).
    With --once: 0 if the key was done before (CMD is not run, and a line on stderr says so),
    69 if CMD ended with 0 and that could not be recorded.
    """
    check_command("run")
    from fencelock.cli.run.session import hold_and_run

    return hold_and_run(RunOptions.checked(**given)).code


COMMANDS = [run]
