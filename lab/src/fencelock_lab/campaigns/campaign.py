"""A campaign from its beginning to its end: make the resources, attack, look at what is left, clean up.

Promise: what was made is taken away again, also after an error or Ctrl-C, which cannot interrupt that; what cannot be
is named. The history is read back from its file, so that whoever judges that file again judges the same. Never: a
guard's error passed on as it is, since that would look like a verdict.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import fencelock
from fencelock_lab.campaigns.conductor import CampaignError, Conductor
from fencelock_lab.campaigns.history import BEGIN, FINAL, FORMAT, INFO, NEMESIS, History, read_history
from fencelock_lab.campaigns.plan import CampaignSettings
from fencelock_lab.campaigns.recorder import Recorder, merged
from fencelock_lab.campaigns.signals import held_back
from fencelock_lab.campaigns.target import Target
from fencelock_lab.campaigns.targets import make_target

if TYPE_CHECKING:
    from fencelock_lab.campaigns.nemesis import Nemesis
    from fencelock_lab.servers.setup import Setup

_TRIAL_TTL_S = 10.0
"""Of the lease by which a set-up is tried: that a machine is slow is no reason to refuse it."""
Tell = Callable[[str], object]


def run_campaign(
    settings: CampaignSettings, history_file: Path, tell: Tell, warn: Tell, own: "Setup | None" = None
) -> History:
    """Attack the set-up, leave the history in the file, and return it; CampaignError if that could not be done.

    `emit` hears how far it is, `warn` what could not be taken away again; `own` are servers that may be attacked, too.
    """
    try:
        _carry_out(settings, history_file, tell, warn, own)
    except (fencelock.GuardError, fencelock.LeaseError, fencelock.AcquireTimeoutError) as error:
        raise CampaignError(f"the campaign could not be carried out: {error}") from error
    tell("judging")
    with history_file.open("rb") as lines:
        return read_history(lines)


def _carry_out(settings: CampaignSettings, history_file: Path, tell: Tell, warn: Tell, own: "Setup | None") -> None:
    places = [make_target(settings, number) for number in range(settings.locks)]
    with tempfile.TemporaryDirectory(prefix="fencelock-verify-") as name:
        folder = Path(name)
        recorder = Recorder(folder / "campaign.jsonl", "verify")
        try:
            with _prepared(places, warn):
                _try_out(settings, places[0])
                _record_begin(settings, recorder)
                with (
                    _nemesis(own, settings, folder) as nemesis,
                    Conductor(settings, folder, recorder, tell, nemesis) as conductor,
                ):
                    conductor.run()
                _record_finals(places, recorder)
        finally:
            recorder.close()
        with history_file.open("wb") as file:
            file.writelines(merged(sorted(folder.glob("*.jsonl"))))


@contextmanager
def _nemesis(own: "Setup | None", settings: CampaignSettings, folder: Path) -> "Iterator[Nemesis | None]":
    """Give what attacks our own servers, if there are some, with a recording of its own: it is a thread."""
    if own is None:
        yield None
        return
    from fencelock_lab.campaigns.nemesis import Nemesis

    with closing(Recorder(folder / "servers.jsonl", NEMESIS)) as recorder, Nemesis(own, settings, recorder) as nemesis:
        yield nemesis


@contextmanager
def _prepared(places: list[Target], warn: Tell) -> Iterator[None]:
    """Make the resources, and take them away at the end."""
    try:
        for place in places:
            place.create()
        yield
    finally:
        with held_back():
            left = [one for place in places for one in place.remove()]
        for each in left:
            warn(f"left behind: {each}")


def _try_out(settings: CampaignSettings, place: Target) -> None:
    """Take a lock and read its resources as a worker does: what stops all of them is told at once, and not by a
    campaign in which nothing happens.
    """
    with fencelock.connect(settings.source) as source:
        _try_ttl(settings, source, place.lock)
        with source.lock(place.lock, ttl=max(settings.ttl, _TRIAL_TTL_S), timeout=settings.patience) as lease:
            for resource in place.resources:
                place.read(lease, resource)


def _try_ttl(settings: CampaignSettings, source: fencelock.Source, name: str) -> None:
    """Take the lock for as long as a worker does: how long that must be only the server knows, of some stores."""
    lock = source.lock(name, ttl=settings.ttl, timeout=settings.patience)
    try:
        lock.acquire()
    except fencelock.ConfigError as error:
        raise fencelock.ConfigError(f"--ttl {settings.ttl:g} cannot be had: {error}") from error
    with suppress(fencelock.LeaseError):  # On a busy machine it may be over by now.
        lock.release()


def _record_begin(settings: CampaignSettings, recorder: Recorder) -> None:
    recorder.write(
        INFO,
        BEGIN,
        format=FORMAT,
        ttl=settings.ttl,
        resources=settings.bindings(),
        seed=settings.seed,
        workers=settings.workers,
        faults=list(settings.faults),
        control=settings.control,
        **settings.shown_urls(),
    )


def _record_finals(places: list[Target], recorder: Recorder) -> None:
    for place in places:
        for resource in place.resources:
            rows, counter = place.final(resource)
            told = [[write, position, str(token)] for write, position, token in rows]
            recorder.write(INFO, FINAL, resource=resource, rows=told, counter=counter)
