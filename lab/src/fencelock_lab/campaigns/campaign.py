"""A campaign from its beginning to its end: make the resources, attack, read what is left, clean up.

Promise: what was made is taken away again, also after an error or Ctrl-C, which cannot interrupt that; what cannot be
removed is named. The history is read back from its file, so that judging that file again gives the same verdict. Never
passes on a guard's error as it is, since that would look like a verdict.
"""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import fencelock
from fencelock_lab.campaigns.conductor import CampaignError, Conductor
from fencelock_lab.campaigns.history import BEGIN, FINAL, FORMAT, INFO, NEMESIS, REST, History, read_history
from fencelock_lab.campaigns.recorder import Recorder, merged
from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.signals import held_back
from fencelock_lab.campaigns.strikes import Strike
from fencelock_lab.campaigns.target import Target
from fencelock_lab.campaigns.targets import make_target

if TYPE_CHECKING:
    from fencelock_lab.campaigns.nemesis import Nemesis
    from fencelock_lab.servers.setup import Setup

_LOOK_S = 0.1
LOSS_WITHIN_S = 1.0
"""Within how many seconds `on_lost` is called after a lease is over: docs/reference/api.md promises it."""
Tell = Callable[[str], object]


class Campaign:
    """One attack. `servers` are private ones that are struck, too: by the `script`, or as the seed draws it."""

    def __init__(
        self, settings: CampaignSettings, servers: "Setup | None" = None, script: Sequence[Strike] = ()
    ) -> None:
        self.settings = settings
        self._servers = servers
        self._script = script

    def run(self, history_file: Path, tell: Tell, warn: Tell) -> History:
        """Attack, leave the history in the file, and return it; CampaignError if that could not be done.

        `tell` is told how far it is, `warn` what could not be removed.
        """
        try:
            self._carry_out(history_file, tell, warn)
        except (fencelock.GuardError, fencelock.LeaseError, fencelock.AcquireTimeoutError) as error:
            raise CampaignError(f"the campaign could not be carried out: {error}") from error
        tell("judging")
        with history_file.open("rb") as lines:
            return read_history(lines)

    def _carry_out(self, history_file: Path, tell: Tell, warn: Tell) -> None:
        settings = self.settings
        targets = [make_target(settings, number) for number in range(settings.locks)]
        with tempfile.TemporaryDirectory(prefix="fencelock-verify-") as name:
            folder = Path(name)
            recorder = Recorder(folder / "campaign.jsonl", "verify")
            try:
                with _prepared(targets, warn):
                    _try_out(settings, targets[0])
                    _record_begin(settings, recorder)
                    with (
                        self._nemesis(folder) as nemesis,
                        Conductor(settings, folder, recorder, tell, nemesis) as conductor,
                    ):
                        conductor.run()
                    _record_rest(settings, recorder)
                    _record_finals(targets, recorder)
            finally:
                recorder.close()
            with history_file.open("wb") as file:
                file.writelines(merged(sorted(folder.glob("*.jsonl"))))

    @contextmanager
    def _nemesis(self, folder: Path) -> "Iterator[Nemesis | None]":
        """Yield what strikes our own servers, if there are any, with a recording of its own: it is a thread."""
        if self._servers is None:
            yield None
            return
        from fencelock_lab.campaigns.nemesis import Nemesis

        with (
            closing(Recorder(folder / "servers.jsonl", NEMESIS)) as recorder,
            Nemesis(self._servers, self.settings, recorder, self._script) as nemesis,
        ):
            yield nemesis


@contextmanager
def _prepared(targets: list[Target], warn: Tell) -> Iterator[None]:
    """Make the resources, and remove them at the end."""
    try:
        for target in targets:
            target.create()
        yield
    finally:
        with held_back():
            left = [one for target in targets for one in target.remove()]
        for each in left:
            warn(f"left behind: {each}")


def _try_out(settings: CampaignSettings, target: Target) -> None:
    """Take a lock and read its resources as a worker does.

    An error that stops every worker is raised here at once, instead of a campaign in which nothing happens.
    """
    with fencelock.connect(settings.source) as source:
        _try_ttl(settings, source, target.lock)
        with source.lock(target.lock, ttl=settings.trial_ttl, timeout=settings.patience) as lease:
            for resource in target.resources:
                target.read(lease, resource)


def _try_ttl(settings: CampaignSettings, source: fencelock.Source, name: str) -> None:
    """Take the lock for as long as a worker does: of some stores only the server knows the shortest lease."""
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
        fifo=True,
        loss_within=LOSS_WITHIN_S,
        **settings.shown_urls(),
    )


def _record_rest(settings: CampaignSettings, recorder: Recorder) -> None:
    """Record how many still hold each lock or wait for it, once that has had the time to come to nothing."""
    deadline = time.monotonic() + settings.patience
    with fencelock.connect(settings.source) as source:
        for number in range(settings.locks):
            while (left := _left(source, settings.lock(number))) and time.monotonic() < deadline:
                time.sleep(_LOOK_S)
            recorder.note(REST, lock=settings.lock(number), left=left)


def _left(source: fencelock.Source, lock: str) -> int:
    info = source.info(lock)
    return info.is_held + len(info.waiters)


def _record_finals(targets: list[Target], recorder: Recorder) -> None:
    for target in targets:
        for resource in target.resources:
            rows, counter = target.final(resource)
            told = [[write, position, str(token)] for write, position, token in rows]
            recorder.write(INFO, FINAL, resource=resource, rows=told, counter=counter)
