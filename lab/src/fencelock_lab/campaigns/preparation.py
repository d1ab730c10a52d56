"""What a campaign of `fencelock verify` attacks, and with which settings: made from what the user asks for.

Promise: options that contradict each other are refused before anything is started. What was started or made is ended
and removed with the block. A dry run starts and makes nothing.
"""

import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

import fencelock
from fencelock.cli.plugin import complain, source_url
from fencelock_lab.campaigns.files import new_database
from fencelock_lab.campaigns.signals import exit_by_cleaning_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencelock_lab.campaigns.settings import CampaignSettings
    from fencelock_lab.servers.setup import Setup


@dataclass(frozen=True)
class Wishes:
    """What the user asks for, by the names of the options."""

    source: str | None
    guard: str | None
    own: str | None
    workers: int
    locks: int
    ttl: float | None
    duration: float
    seed: int | None
    faults: str | None
    control: str | None


@contextmanager
def prepared(wishes: Wishes, *, is_dry: bool) -> "Iterator[tuple[CampaignSettings, Setup | None]]":
    """Yield the settings, and the private servers that are to be struck if there are any."""
    _check_control(wishes.control, wishes.source, wishes.guard, wishes.own)
    kind = _servers_kind(wishes.own, wishes.source, wishes.ttl)
    with (
        _set_up(wishes, kind, is_dry=is_dry) as (source_url, guard_url, servers),
        tempfile.TemporaryDirectory(prefix="fencelock-control-") as control_folder,
    ):
        settings = _settings(wishes, kind, source_url, guard_url)
        yield replace(settings, control_folder=control_folder), servers if wishes.control is None else None


def _settings(wishes: Wishes, kind: "type[Setup] | None", source_url: str | None, guard_url: str) -> "CampaignSettings":
    from fencelock_lab.campaigns.settings import CampaignSettings, possible_faults

    of_servers = kind.faults if kind is not None and wishes.control is None else ()
    possible = (*possible_faults(source_url, guard_url, wishes.control), *of_servers)
    return CampaignSettings(
        source=source_url,
        guard=guard_url,
        ttl=_chosen_ttl(wishes.ttl, kind, source_url),
        run=os.urandom(3).hex(),
        of="…",
        workers=max(wishes.workers, 2 * wishes.locks),
        locks=wishes.locks,
        duration=wishes.duration,
        seed=int.from_bytes(os.urandom(4)) if wishes.seed is None else wishes.seed,
        faults=_chosen_faults(wishes.faults, possible),
        control=wishes.control,
    )


def with_source(settings: "CampaignSettings") -> "CampaignSettings":
    """Return the settings with the names of the source, which is made if it does not exist."""
    from fencelock_lab.campaigns.table_target import TableTarget
    from fencelock_lab.campaigns.targets import make_target

    if (settings.source or os.environ.get("FENCELOCK_SOURCE", "")).startswith("memory://"):
        raise click.UsageError(
            "a source in memory belongs to one process, and the workers are processes of their own: name another"
        )
    # A guard that cannot be attacked, or is not there, is refused before the source is made.
    target = make_target(settings, 0)
    if isinstance(target, TableTarget):
        target.check_unused(target.resources[0])
    return replace(settings, of=source_part_of(settings.source))


def _check_control(control: str | None, source: str | None, guard: str | None, own: str | None) -> None:
    """Raise UsageError unless the control exists, and breaks its rule in files or at servers made for it."""
    if control is None:
        return
    from fencelock_lab.campaigns.controls import controls_of

    if source is not None or guard is not None:
        raise click.UsageError("--control breaks a rule on purpose: never at a --source or --guard of yours")
    known = controls_of(own)
    if control not in known:
        where = "" if own is None else f" that work with --own {own}"
        message = f"{control!r} is not one of the controls{where}: {', '.join(known)}"
        raise click.BadParameter(message, param_hint="--control")


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
    wishes: Wishes, own: "type[Setup] | None", *, is_dry: bool
) -> "Iterator[tuple[str | None, str, Setup | None]]":
    """Yield the URLs to attack: the user's, those of what a control needs, or those of private servers."""
    if own is not None:
        with _private_servers(own, wishes.guard, is_dry=is_dry) as found:
            yield found
    elif wishes.control is not None:
        with _control_guard(wishes.control) as (folder, guard_url):
            yield f"sqlite:///{folder}/locks.db", guard_url, None
    elif wishes.guard is None:
        raise click.UsageError("say what to attack with --guard URL or --own, or judge a history with --check FILE")
    else:
        yield _source_shown(wishes.source) if is_dry else wishes.source, wishes.guard, None


def _source_shown(source: str | None) -> str | None:
    """Return the source of a dry run: the default file by its URL, because `connect(None)` makes its folder."""
    is_named = source is not None or os.environ.get("FENCELOCK_SOURCE")
    return source if is_named else source_url(None)


@contextmanager
def _control_guard(control: str) -> "Iterator[tuple[str, str]]":
    """Yield a folder, and the URL of the database or the service in it that a control breaks."""
    from fencelock_lab.campaigns.controls import CHECK_FIRST
    from fencelock_lab.campaigns.http_service import COMPARE_FIRST, TextService

    with tempfile.TemporaryDirectory(prefix="fencelock-control-") as folder:
        if control == CHECK_FIRST:
            Path(folder, "data").mkdir()
            yield folder, f"file://{folder}/data"
            return
        if control != COMPARE_FIRST:
            yield folder, new_database(Path(folder, "app.db"))
            return
        exit_by_cleaning_up()
        with TextService(control, Path(folder)) as service:
            yield folder, service.url


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


def source_part_of(url: str | None) -> str:
    """Return what the campaign's names have of the source at the URL; a file is made if it does not exist."""
    from fencelock_lab.campaigns.settings import source_part

    with fencelock.connect(url) as source:
        if source.url.startswith("sqlite:"):
            source.install()
        return source_part(source)
