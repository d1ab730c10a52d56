"""The files that `fencelock verify` writes: tried before anything is done, and never one over the other.

Promise: trying a file leaves it as it is. A history that cannot be written where its user wants it is kept in a file of
its own, whose name is printed.
"""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fencelock.cli.plugin import complain

if TYPE_CHECKING:
    from fencelock_lab.campaigns.history import History
    from fencelock_lab.campaigns.verdict import CampaignVerdict


def try_files(read: Path | None, history: Path | None, page: Path | None) -> None:
    """Raise UsageError unless the files can be written, and are neither each other nor the one that is read."""
    taken = {} if read is None else {os.path.realpath(read): f"--check {read}"}
    for option, path in (("--history", history), ("--html", page)):
        if path is None:
            continue
        others = [words for place, words in taken.items() if _is_same(place, os.path.realpath(path))]
        if others:
            raise click.UsageError(f"{option} {path} would overwrite what {others[0]} names: name another file")
        _try_to_write(option, path)
        taken[os.path.realpath(path)] = f"{option} {path}"


def _is_same(one: str, other: str) -> bool:
    return one == other or (os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other))


def _try_to_write(option: str, path: Path) -> None:
    """Open the file, unless it is a pipe or a device, where opening may do something; remove it if it was not there."""
    try:
        is_new = not os.path.lexists(path)
        if is_new or path.is_file():
            path.open("ab").close()
        if is_new:
            path.unlink()
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be written: {error.strerror}", param_hint=option) from error


def is_drawn(page: Path, history: "History", verdict: "CampaignVerdict") -> bool:
    """Draw the page of a history, and return whether that was possible; the user is told either way."""
    from fencelock_lab.campaigns.page import write_page

    try:
        write_page(page, history, verdict)
    except OSError as error:
        complain(f"{page} could not be written: {error.strerror}")
        return False
    complain(f"drew {page}")
    return True


def is_copied(made: Path, wanted: Path) -> bool:
    """Copy a history to where its user wants it, and return whether that was possible; if not, the user is told."""
    try:
        with made.open("rb") as whole, wanted.open("wb") as copy:
            shutil.copyfileobj(whole, copy)
    except OSError as error:
        complain(f"{wanted} could not be written: {error.strerror}")
        return False
    return True


def set_aside(made: Path) -> Path:
    """Move a history to a file that stays when the command has ended, and return its path."""
    descriptor, name = tempfile.mkstemp(prefix="fencelock-history-", suffix=".jsonl")
    os.close(descriptor)
    return Path(shutil.move(made, name))


def new_database(path: Path) -> str:
    """Make a database, as a user has one, and return its URL."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE users_own (value)")
    return f"sqlite:///{path}"
