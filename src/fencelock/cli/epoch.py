"""`fencelock epoch`: a source's identity and history.

Promise: without --raise it changes nothing; with it, every lease of the source ends.
"""

import click

import fencelock
from fencelock.cli.options import json_option, reason_option, source_option
from fencelock.cli.output import emit


@click.command()
@source_option
@click.option("--raise", "is_raise", is_flag=True, help="Begin a new history.  [needs --reason]")
@reason_option(is_required=False)
@json_option
def epoch(source: str | None, is_raise: bool, reason: str | None, as_json: bool) -> None:
    """Show the source's history and tokens, or begin a new one.

    A source that was restored from a backup, moved, or failed over may issue tokens that it has
    issued before. Raise its epoch (--raise) before clients use it again: the counter jumps
    above every token that is known, and above 2**30 for each second since 2026, and every lease ends.

    \b
    Examples:
      fencelock epoch
      fencelock epoch --raise --reason 'restored the backup of Monday'
    """
    if is_raise and not reason:
        raise click.UsageError("--raise ends every lease: give the reason with --reason TEXT")
    if reason and not is_raise:
        raise click.UsageError("--reason goes with --raise")
    with fencelock.connect(source) as connected:
        info = connected.raise_epoch(reason=reason) if reason else connected.describe()
        url = connected.url
    data = {
        "source": url,
        "source_id": info.source_id,
        "epoch": info.epoch,
        "history_id": info.history_id,
        "last_token": str(info.last_token),
        "reserved_token": str(info.reserved_token),
    }
    width = max(map(len, data))
    text = "\n".join(f"{label.replace('_', ' '):<{width}}  {value}" for label, value in data.items())
    emit(data, as_json, text)


COMMANDS = [epoch]
