"""`fencelock verify`: attack a setup with real processes, and judge what they were told.

Promise: the verdict goes to stdout, progress and the path of the history to stderr. Exits with 0 if the history is
clean, 1 if a promise was broken, 2 if too little happened to tell, and never with one of these for any other reason: a
campaign that could not be carried out is 69. What was made is removed again, also after Ctrl-C, SIGTERM or SIGHUP;
`--dry-run` makes nothing and connects to nothing.
"""

import math
import os
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import fencelock
from fencelock.cli.plugin import UNAVAILABLE, complain, emit, json_option, source_option
from fencelock_lab.campaigns.files import is_copied, is_drawn, new_database, set_aside, try_files
from fencelock_lab.campaigns.signals import exit_by_cleaning_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencelock_lab.campaigns.history import History
    from fencelock_lab.campaigns.settings import CampaignSettings
    from fencelock_lab.servers.setup import Setup

MIN_TTL_S = 0.2
OWN = ("postgres", "mariadb", "etcd", "etcd3", "zookeeper3")
_SOURCE_ID_CHARACTERS = 8
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
    "well: kill, freeze, restart, isolate their leader, restore a backup.",
)
@click.option("--workers", type=click.IntRange(2, 200), default=12, show_default=True, help="How many processes.")
@click.option("--locks", type=click.IntRange(1, 50), default=4, show_default=True, help="How many locks.")
@click.option(
    "--ttl",
    type=Seconds(MIN_TTL_S, 60),
    help="Seconds of a lease.  [default: 0.5; for etcd and ZooKeeper 2, with --own etcd and etcd3 1; the least that "
    "the source grants, if that is more]",
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
def verify(  # noqa: PLR0913 - each is an option of its own
    *,
    source: str | None,
    guard: str | None,
    own: str | None,
    workers: int,
    locks: int,
    ttl: float | None,
    duration: float,
    seed: int | None,
    faults: str | None,
    history_file: Path | None,
    page_file: Path | None,
    dry_run: bool,
    checked_file: Path | None,
    control: str | None,
    as_json: bool,
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
    from fencelock_lab.campaigns.settings import CampaignSettings, possible_faults
    from fencelock_lab.campaigns.targets import make_target

    _check_control(control, source, guard, own)
    kind = _servers_kind(own, source, ttl)
    with (
        _set_up(source, guard, control, kind, is_dry=dry_run) as (source_url, guard_url, servers),
        tempfile.TemporaryDirectory(prefix="fencelock-control-") as control_folder,
    ):
        is_struck = kind is not None and control is None
        settings = CampaignSettings(
            source=source_url,
            guard=guard_url,
            ttl=_chosen_ttl(ttl, kind, source_url),
            run=os.urandom(3).hex(),
            of="…",
            workers=max(workers, 2 * locks),
            locks=locks,
            duration=duration,
            seed=int.from_bytes(os.urandom(4)) if seed is None else seed,
            faults=_chosen_faults(
                faults,
                (*possible_faults(source_url, guard_url, control), *(kind.faults if kind and is_struck else ())),
            ),
            control=control,
            control_folder=control_folder,
        )
        if dry_run:
            from fencelock_lab.campaigns.preview import preview, touched

            emit(touched(settings), as_json, preview(settings))
            return 0
        make_target(settings, 0)  # A guard that cannot be attacked is refused before the source is made.
        settings = replace(settings, of=_source_part(source_url))
        return _attack(settings, history_file, page_file, as_json, servers if is_struck else None)


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


def _servers_kind(own: str | None, source: str | None, ttl: float | None) -> "type[Setup] | None":
    """Return the servers that the user wants to have started."""
    if own is None:
        return None
    if source is not None:
        raise click.UsageError("--own starts the source itself: leave --source out")
    from fencelock_lab.servers.setups import SETUPS

    kind = SETUPS[own]
    if ttl is not None and ttl < kind.least_ttl:
        message = f"{ttl:g} is not in the range {kind.least_ttl:g}<=x<=60: {own} grants no shorter lease"
        raise click.BadParameter(message, param_hint="--ttl")
    return kind


@contextmanager
def _set_up(
    source: str | None, guard: str | None, control: str | None, own: "type[Setup] | None", *, is_dry: bool
) -> "Iterator[tuple[str | None, str, Setup | None]]":
    """Yield the URLs to attack: the user's, those of what a control needs, or those of private servers."""
    if own is not None:
        with _private_servers(own, guard, is_dry=is_dry) as found:
            yield found
    elif control is not None:
        with _control_guard(control) as (folder, guard_url):
            yield f"sqlite:///{folder}/locks.db", guard_url, None
    elif guard is None:
        raise click.UsageError("say what to attack with --guard URL or --own, or judge a history with --check FILE")
    else:
        yield source, guard, None


@contextmanager
def _control_guard(control: str) -> "Iterator[tuple[str, str]]":
    """Yield a folder, and the URL of the database or the service in it that a control breaks."""
    from fencelock_lab.campaigns.http_service import COMPARE_FIRST, TextService

    with tempfile.TemporaryDirectory(prefix="fencelock-control-") as folder:
        if control != COMPARE_FIRST:
            yield folder, new_database(Path(folder, "app.db"))
            return
        exit_by_cleaning_up()
        with TextService(control, Path(folder)) as service:
            yield folder, service.url


def _check_control(control: str | None, source: str | None, guard: str | None, own: str | None) -> None:
    """Raise UsageError unless the control exists, and breaks its rule in files or at servers made for it."""
    if control is None:
        return
    from fencelock_lab.campaigns.controls import CONTROLS, EVERYWHERE

    if source is not None or guard is not None:
        raise click.UsageError("--control breaks a rule on purpose: never at a --source or --guard of yours")
    known = CONTROLS if own is None else EVERYWHERE
    if control not in known:
        where = "" if own is None else " that work with --own"
        message = f"{control!r} is not one of the controls{where}: {', '.join(known)}"
        raise click.BadParameter(message, param_hint="--control")


@contextmanager
def _private_servers(
    kind: "type[Setup]", guard: str | None, *, is_dry: bool
) -> "Iterator[tuple[str, str, Setup | None]]":
    """Start private servers, and yield their URLs; in a dry run only show what those would look like."""
    if is_dry:
        yield kind.shown[0], guard or kind.shown[1], None
        return
    exit_by_cleaning_up()
    complain(f"starting {kind.name}")
    with kind() as servers:
        yield servers.url, guard or servers.guard_url, servers


def _chosen_ttl(asked: float | None, own: "type[Setup] | None", source_url: str | None) -> float:
    """Return the length of the leases; BadParameter if the source is known to grant none of that length."""
    from fencelock_lab.campaigns.settings import OWN_NAMES, usual_ttl

    if own is not None:
        return asked or own.ttl
    ttl = asked or usual_ttl(source_url)
    with fencelock.connect(source_url) as source:
        try:
            source.lock(OWN_NAMES, ttl=ttl)
        except fencelock.ConfigError as error:
            raise click.BadParameter(str(error), param_hint="--ttl") from error
    return ttl


def _chosen_faults(text: str | None, possible: tuple[str, ...]) -> tuple[str, ...]:
    """Return the faults that the user names, or all that are possible on this machine."""
    from fencelock_lab.campaigns.history import JUMP
    from fencelock_lab.servers.programs import FAKETIME, find, need

    if text is None:
        if JUMP in possible and find(FAKETIME) is None:
            complain("no clock will jump: libfaketime is not installed")
            return tuple(one for one in possible if one != JUMP)
        return possible
    faults = tuple(one.strip() for one in text.split(",") if one.strip())
    if unknown := [one for one in faults if one not in possible]:
        message = f"{unknown[0]!r} is not a fault that can hit this setup; these can: {', '.join(possible)}"
        raise click.BadParameter(message, param_hint="--faults")
    if JUMP in faults:
        need(FAKETIME)
    return faults


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


def _source_part(url: str | None) -> str:
    """Return the beginning of the id of the source at the URL; a file is made if it does not exist."""
    with fencelock.connect(url) as source:
        if source.url.startswith("sqlite:"):
            source.install()
        source_id = source.describe().source_id
        is_in_memory = source.url.startswith("memory://")
    if is_in_memory:
        raise click.UsageError(
            "a source in memory belongs to one process, and the workers are processes of their own: name another"
        )
    return source_id[:_SOURCE_ID_CHARACTERS]
