"""`fencelock purge`: idle locks of a source, old results of a guard, or old marks of it.

Promise: what is purged is what nobody asks for any more: no token is issued again, no result goes that the last holder
may ask for, or that is in doubt, and what a mark refused is refused without it.
"""

import click

import fencelock
from fencelock.cli.options import guard_option, json_option, source_option, source_url
from fencelock.cli.output import emit, showing_work

_S_PER_DAY = 86_400


@click.command()
@source_option
@click.option("--done", "is_done", is_flag=True, help="Forget results of `once` and `dispatch` at the guards instead.")
@click.option("--marks", "is_marks", is_flag=True, help="Forget the source's old marks at the guards instead.")
@guard_option("With --done and --marks: the guard that forgets them.")
@click.option(
    "--older-than",
    metavar="DAYS",
    type=float,
    help="With --done and --marks: leave what is not older than so many days.",
)
@json_option
def purge(
    source: str | None,
    is_done: bool,
    is_marks: bool,
    guards: tuple[str, ...],
    older_than: float | None,
    as_json: bool,
) -> None:
    """Delete idle locks, or a guard's old results or marks.

    Without an option it deletes the source's locks that have no holder and no waiter; with --done the results of
    guarded blocks with a key, and of `dispatch`, that are old enough; with --marks the marks that no lease of the
    source has raised for so long.

    The tokens of deleted locks stay spent: if such a lock is used again, its tokens are higher. A key whose result was
    deleted can be done again. Results whose token is the mark stay, and so does what is in doubt.

    The floor of the source rises to the highest mark that is deleted, unless it is higher already: a resource
    without a mark takes only tokens above the floor. The marks of running leases stay, and those of resources
    that protect a table, require signatures or were moved by `rebind`.

    \b
    Examples:
      fencelock purge --done --guard sqlite:////srv/app.db --older-than 90
      fencelock purge --marks --guard sqlite:////srv/app.db --source sqlite:////srv/locks.db \\
          --older-than 30
    """
    is_at_guards = is_done or is_marks
    if is_at_guards != (older_than is not None) or is_at_guards != bool(guards) or (is_done and source is not None):
        raise click.UsageError(
            "write --done --guard URL --older-than DAYS, or --marks --guard URL --source URL --older-than DAYS, or "
            "none of them"
        )
    if is_done and is_marks:
        raise click.UsageError("write either --done or --marks")
    with showing_work("purging"):
        count = _purge(source, guards, older_than, is_done=is_done)
    emit({"purged": count}, as_json, f"{count} forgotten")


def _purge(source: str | None, guards: tuple[str, ...], older_than: float | None, *, is_done: bool) -> int:
    if older_than is None:
        with fencelock.connect(source) as connected:
            return connected.purge()
    age_s = older_than * _S_PER_DAY
    if is_done:
        return sum(fencelock.purge_effects(url, older_than=age_s) for url in guards)
    with fencelock.connect(source_url(source)) as connected:
        return sum(fencelock.purge_marks(url, source=connected, older_than=age_s) for url in guards)


COMMANDS = [purge]
