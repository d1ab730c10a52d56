"""`fenceline verify`: attack a set-up, or judge a history again.

Promise: the verdict goes to stdout and progress to stderr. Exits with 0 if the history is clean, 1 if a promise was
broken, 2 if too little happened to tell.
"""

from pathlib import Path

import click

from fenceline.cli.options import json_option
from fenceline.cli.output import emit


@click.command()
@click.option(
    "--check",
    "checked_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    required=True,
    help="Judge the history in FILE.",
)
@json_option
def verify(checked_file: Path, as_json: bool) -> int:
    """Judge the history of a set-up under attack.

    Exits with 0 if no promise was broken, 1 if one was, with the steps that led to it, and 2 if too
    little happened to tell.

    \b
    Example:
      fenceline verify --check history.jsonl
    """
    from fenceline.verify.history import read_history
    from fenceline.verify.report import story
    from fenceline.verify.verdict import judge

    with checked_file.open("rb") as lines:
        verdict = judge(read_history(lines))
    emit(verdict.to_json(), as_json, story(verdict))
    return verdict.code


COMMANDS = [verify]
