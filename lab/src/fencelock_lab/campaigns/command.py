"""`fencelock verify`: attack a setup with real processes, and judge what they were told.

Promise: the verdict goes to stdout, progress and the path of the history to stderr. Exits with 0 if the history is
clean, 1 if a promise was broken, 2 if too little happened to tell, and never with one of these for any other reason: a
campaign that could not be carried out is 69. What was made is removed again, also after Ctrl-C, SIGTERM or SIGHUP;
`--dry-run` makes nothing and connects to nothing.
"""

import math
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fencelock.cli.plugin import UNAVAILABLE, complain, emit, json_option, source_option
from fencelock_lab.campaigns.files import is_copied, is_drawn, set_aside, try_files
from fencelock_lab.campaigns.preparation import Wishes, prepared, with_source
from fencelock_lab.campaigns.signals import exit_by_cleaning_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencelock_lab.campaigns.history import History
    from fencelock_lab.campaigns.settings import CampaignSettings
    from fencelock_lab.servers.setup import Setup

MIN_TTL_S = 0.2
OWN = ("postgres", "mariadb", "etcd", "etcd3", "zookeeper3", "redis", "s3", "dynamodb")
_FILE = click.Path(dir_okay=False, path_type=Path)


class Seconds(click.FloatRange):
    """A number of seconds within a range; infinity and NaN are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value} is not a number of seconds", param, ctx)
        return seconds


@click.command()
@source_option
@click.option(
    "--guard",
    "guard",
    metavar="URL",
    help="Where resources are guarded: tables are made there for the run. python:MODULE:NAME is a guard of your own, "
    "https://HOST/PATH/ a service.",
)
@click.option(
    "--own",
    type=click.Choice(OWN),
    help="Start such servers for the run, as the source, and without --guard as the guard too, and attack them as "
    "well: kill, freeze, restart, isolate their leader, restore a backup. With redis and s3 the locks are in a file.",
)
@click.option("--workers", type=click.IntRange(2, 200), default=12, show_default=True, help="How many processes.")
@click.option("--locks", type=click.IntRange(1, 50), default=4, show_default=True, help="How many locks.")
@click.option(
    "--ttl",
    type=Seconds(MIN_TTL_S, 60),
    help="Seconds of a lease.  [default: 0.5; for etcd and ZooKeeper 2, with --own etcd and etcd3 1, s3 2, dynamodb 5; "
    "the least that the source grants, if that is more]",
)
@click.option("--duration", type=Seconds(1), default=60.0, show_default=True, help="Seconds of the attack.")
@click.option("--seed", type=int, help="Draw the faults from this number.  [default: a random one, which is shown]")
@click.option(
    "--faults", metavar="A,B", help="Which faults; --dry-run lists them.  [default: all that can hit this setup]"
)
@click.option("--history", "history_file", type=_FILE, metavar="FILE", help="Keep the history in FILE.")
@click.option("--html", "page_file", type=_FILE, metavar="FILE", help="Draw the history as a page into FILE.")
@click.option("--dry-run", is_flag=True, help="Show what would be touched, and do nothing.")
@click.option("--check", "checked_file", type=_FILE, metavar="FILE", help="Judge the history in FILE instead.")
@click.option("--control", metavar="NAME", help="Break one rule on purpose, in files made for it or with --own.")
@json_option
def verify(
    *,
    history_file: Path | None,
    page_file: Path | None,
    dry_run: bool,
    checked_file: Path | None,
    as_json: bool,
    **wishes: Any,
) -> int:
    """Attack a setup, and judge whether stale writes get through.

    Processes compete for locks and write to tables made for the run at --guard, while they are frozen past
    their leases and killed. A history keeps everything that they ask and are told, and is judged. Exits with
    0 if no promise was broken, 1 if one was, with the steps that led to it, and 2 if too little happened
    to tell.

    It writes only under names of its own, and removes its tables at the end. What stays is a mark for each
    resource named fencelock-verify-…, since a mark is never deleted.

    \b
    Examples:
      fencelock verify --guard sqlite:////srv/app.db --dry-run
      fencelock verify --source sqlite:////srv/locks.db --guard sqlite:////srv/app.db
      fencelock verify --guard python:shop:Documents
      fencelock verify --guard https://test.example/texts/
      fencelock verify --own etcd3 --html etcd.html
      fencelock verify --check history.jsonl --html history.html
      fencelock verify --control no-seal --duration 10
    """
    try_files(checked_file, history_file, page_file)
    if checked_file is not None:
        code, is_whole = _tell(_read(checked_file), page_file, as_json)
        return _exit_code(code, is_whole=is_whole)
    with prepared(Wishes(**wishes), is_dry=dry_run) as (settings, servers):
        if dry_run:
            return _preview(settings, as_json)
        return _attack(with_source(settings), history_file, page_file, as_json, servers)


def _preview(settings: "CampaignSettings", as_json: bool) -> int:
    from fencelock_lab.campaigns.preview import preview, touched

    emit(touched(settings), as_json, preview(settings))
    return 0


def _read(path: Path) -> "History":
    from fencelock_lab.campaigns.history import HistoryError, read_history

    try:
        with path.open("rb") as lines:
            return read_history(lines)
    except HistoryError as error:
        raise click.BadParameter(f"{path}: {error}", param_hint="--check") from error
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}", param_hint="--check") from error


def _tell(history: "History", page_file: Path | None, as_json: bool) -> tuple[int, bool]:
    """Judge, draw the page, and print the verdict; return its exit code, and whether everything was written."""
    from fencelock_lab.campaigns.report import story
    from fencelock_lab.campaigns.verdict import judge

    verdict = judge(history)
    is_whole = page_file is None or is_drawn(page_file, history, verdict)
    emit(verdict.to_json(), as_json, story(verdict))
    return verdict.code, is_whole


def _exit_code(code: int, *, is_whole: bool) -> int:
    """Return the exit code of a verdict: a file that could not be written outranks all but a violation."""
    from fencelock_lab.campaigns.verdict import VIOLATION

    return code if is_whole or code == VIOLATION else UNAVAILABLE


def _attack(
    settings: "CampaignSettings",
    history_file: Path | None,
    page_file: Path | None,
    as_json: bool,
    servers: "Setup | None",
) -> int:
    """Run the campaign; keep the history where the user wants it, otherwise only if it shows a violation."""
    from fencelock_lab.campaigns.campaign import Campaign
    from fencelock_lab.campaigns.verdict import VIOLATION

    exit_by_cleaning_up()
    with tempfile.TemporaryDirectory(prefix="fencelock-verify-") as folder:
        made = Path(folder, "history.jsonl")
        with _progress(settings.seed) as tell:
            history = Campaign(settings, servers).run(made, tell, complain)
        kept = history_file if history_file is not None and is_copied(made, history_file) else None
        code, is_whole = _tell(history, page_file, as_json)
        is_whole = is_whole and kept == history_file
        if kept is None and (history_file is not None or code == VIOLATION):
            kept = set_aside(made)
    if kept is not None:
        complain(f"the history is in {kept}")
    return _exit_code(code, is_whole=is_whole)


@contextmanager
def _progress(seed: int) -> "Iterator[Callable[[str], object]]":
    """Yield what shows how far the run is: a line that changes, if stderr is a terminal."""
    complain(f"seed {seed}")
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("starting") as status:
        yield status.update
