"""`fencelock purge`: idle locks of a source, or old results of a guard.

Promise: what is purged is what nobody asks for any more: no token is issued again, and no result goes that the last
holder may ask for, or that is in doubt.
"""

import click

import fencelock
from fencelock.cli.options import guard_option, json_option, source_option
from fencelock.cli.output import emit

_S_PER_DAY = 86_400


@click.command()
@source_option
@click.option("--done", "is_done", is_flag=True, help="Forget results of `once` and `dispatch` at the guards instead.")
@guard_option("With --done: the guard whose results it forgets.")
@click.option("--older-than", metavar="DAYS", type=float, help="With --done: leave what began within so many days.")
@json_option
def purge(source: str | None, is_done: bool, guards: tuple[str, ...], older_than: float | None, as_json: bool) -> None:
    """Delete idle locks, or a guard's old results.

    Without an option it deletes the source's locks that have no holder and no waiter; with --done the results of
    guarded blocks with a key, and of `dispatch`, that are old enough.

    The tokens of deleted locks stay spent: if such a lock is used again, its tokens are higher. A key whose result was
    deleted can be done again. Results whose token is the mark stay, and so does what is in doubt.

    \b
    Example:
      fencelock purge --done --guard sqlite:////srv/app.db --older-than 90
    """
    if is_done != (older_than is not None) or is_done != bool(guards) or (is_done and source is not None):
        raise click.UsageError("write --done --guard URL --older-than DAYS, or none of them")
    if older_than is None:
        with fencelock.connect(source) as connected:
            count = connected.purge()
    else:
        count = sum(fencelock.purge_effects(url, older_than=older_than * _S_PER_DAY) for url in guards)
    emit({"purged": count}, as_json, f"{count} forgotten")


COMMANDS = [purge]
