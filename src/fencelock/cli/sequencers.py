"""`fencelock sequencer`: show what a sequencer says, and verify who issued it.

Promise: the proof and the signature are printed nowhere. Without a TEXT, the sequencer is read from
$FENCELOCK_SEQUENCER, or from stdin for `-`, so that it need not stand in the list of processes.
"""

import os
import sys
from pathlib import Path

import click

import fencelock
from fencelock._sequencer_text import UNSIGNED
from fencelock.cli.options import json_option
from fencelock.cli.output import emit, printable
from fencelock.model import SEQUENCER_VARIABLE, Sequencer
from fencelock.verifier import Verifier

_text_argument = click.argument("text", required=False)


@click.group()
def sequencer() -> None:
    """Show or verify a sequencer, the portable proof of a lease.

    A process that has it may write in the lease's name until a newer holder seals the resource. TEXT is the
    sequencer, or `-` for stdin; the default is $FENCELOCK_SEQUENCER.
    """


@sequencer.command()
@_text_argument
@json_option
def show(text: str | None, as_json: bool) -> None:
    """Show what the sequencer says, without its proof."""
    _print(Sequencer.parse(_read(text)), as_json)


@sequencer.command()
@_text_argument
@click.option("--keys", required=True, metavar="FILE", type=click.Path(path_type=Path), help="Of `keys export`.")
@click.option("--lock", "locks", default="*", metavar="L", help="Accept this lock only, or a prefix that ends in `*`.")
@click.option(
    "--mark",
    type=click.IntRange(min=0),
    metavar="N",
    help="Refuse a token below N, the highest accepted so far.",
)
@json_option
def verify(text: str | None, keys: Path, locks: str, mark: int | None, as_json: bool) -> None:
    """Check that the source issued the sequencer.

    Exits with 1 if it did not. "Issued" is not "current": only a mark, or the source itself, knows of a newer
    holder.
    """
    _print(Verifier.from_file(keys, locks=locks).verify(_read(text), mark=mark), as_json)


def _read(text: str | None) -> str:
    if text is None:
        text = os.environ.get(SEQUENCER_VARIABLE)
    if text is None:
        raise click.UsageError(f"give the sequencer, or - to read it from stdin, or set {SEQUENCER_VARIABLE}")
    return sys.stdin.readline().strip() if text == "-" else text


def _print(found: fencelock.Sequencer, as_json: bool) -> None:
    signed_by = None if found.key_id == UNSIGNED else found.key_id
    data = {
        "lock": found.lock,
        "token": str(found.token),
        "mode": found.mode,
        "source_id": found.source_id,
        "history_id": found.history_id,
        "key_id": signed_by,
    }
    text = "\n".join(f"{label.replace('_', ' '):<12}{printable(value or 'none')}" for label, value in data.items())
    emit(data, as_json, text)


COMMANDS = [sequencer]
