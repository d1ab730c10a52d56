"""`fencelock demo`: a split brain before your eyes, without and with fencing.

Promise: real processes, real files and a real SIGSTOP past the ttl, in a temporary folder that is
gone afterwards. Exit code 0 if and only if the unfenced acts lost data and the fenced one lost
none; 1 with what differed if not. Standard output carries the result alone.
"""

import os
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fencelock.cli.plugin import NEGATIVE_RESULT, complain, emit, json_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencelock_lab.demo.acts import Act
    from fencelock_lab.demo.record import ActRecord, DemoEvent

TTL_S = 1.0
HEADING = "A split brain, three times"
EXPLANATION = (
    "Two processes, one lock, one counter: A adds 1, B adds 10, so 11 is right.\n"
    f"A is frozen (SIGSTOP) past its lease of {TTL_S:g} s, until B has got the lock."
)


@click.command()
@click.option(
    "--svg",
    "picture_file",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Draw the same timeline as a picture into FILE.",
)
@json_option
def demo(picture_file: Path | None, as_json: bool) -> int:
    """Show how a frozen holder loses data, and how fencing saves it.

    Two real processes add to one counter under one lock. The first is frozen past its lease,
    the second takes over, the first wakes and writes. Act 1: a lock alone. Act 2: tokens
    compared, but nothing sealed. Act 3: fencelock. What counts as lost is the difference between
    the additions that the processes were told had been written and the counter in the database.

    Takes about five seconds, and leaves nothing behind. Exit code 0 if acts 1 and 2 lost data
    and act 3 lost none, else 1.

    \b
    Examples:
      fencelock demo
      fencelock demo --svg split-brain.svg
      fencelock demo --json | jq '.acts[].lost'
    """
    from fencelock_lab.demo.acts import ACTS
    from fencelock_lab.demo.record import differences

    _check_folder(picture_file)
    records = perform(ACTS, TTL_S)
    if picture_file is not None:
        _draw(records, picture_file)
    _print(records, as_json=as_json)
    for difference in differences(records):
        complain(difference)
    return NEGATIVE_RESULT if differences(records) else 0


def perform(acts: "tuple[Act, ...]", ttl: float) -> "tuple[ActRecord, ...]":
    """Play the acts one after the other, each in a folder of its own; `ttl` is in seconds."""
    from fencelock_lab.demo.conductor import play

    records = []
    with tempfile.TemporaryDirectory(prefix="fencelock-demo-") as root, _progress() as tell:
        for act in acts:
            folder = Path(root, f"act-{act.number}")
            folder.mkdir()
            records.append(play(act, folder, ttl=ttl, on_event=partial(tell, act)))
    return tuple(records)


def _check_folder(picture_file: Path | None) -> None:
    """Complain before the demo is played, not after."""
    if picture_file is not None and not os.access(picture_file.absolute().parent, os.W_OK):
        raise click.BadParameter(f"the folder of {picture_file} cannot be written to")


def _print(records: "tuple[ActRecord, ...]", *, as_json: bool) -> None:
    if as_json:
        from fencelock_lab.demo.record import to_json

        emit(to_json(records, ttl=TTL_S), as_json, "")
        return
    from fencelock_lab.demo.terminal import show
    from fencelock_lab.demo.timeline import timeline

    show([timeline(record) for record in records], sys.stdout, EXPLANATION)


def _draw(records: "tuple[ActRecord, ...]", file: Path) -> None:
    from fencelock_lab.demo.svg import picture
    from fencelock_lab.demo.timeline import timeline

    timelines = [timeline(record) for record in records]
    file.write_text(picture(timelines, heading=HEADING, explanation=EXPLANATION), encoding="utf-8")
    complain(f"drew {file}")


@contextmanager
def _progress() -> "Iterator[Callable[[Act, DemoEvent], None]]":
    """Yield what shows events: a line on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _act, _event: None
        return
    from rich.console import Console

    from fencelock_lab.demo.terminal import narrate

    with Console(stderr=True).status("starting two processes") as status:
        yield lambda act, event: status.update(f"act {act.number} of 3: {narrate(event)}")
