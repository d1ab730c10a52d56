"""The nemesis strikes a campaign's own servers, in a thread of its own, while processes attack the resources.

Promise: a fault that has begun is brought to its end, also when the campaign is over: afterwards every server runs and
takes requests. What is noted was done, at that moment or just before. What a restore demands of an operator is done
before a client can reach the servers again.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

import fencelock
from fencelock_lab.campaigns.history import (
    RESTORE,
    SERVER_BACK,
    SERVER_FAULTS,
    SERVER_FREEZE,
    SERVER_ISOLATE,
    SERVER_KILL,
    SERVER_RESTART,
    SERVER_RESTORE,
)
from fencelock_lab.campaigns.recorder import Recorder
from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.strikes import Strike, strikes
from fencelock_lab.campaigns.target import Target
from fencelock_lab.campaigns.targets import make_target
from fencelock_lab.servers.server import Server
from fencelock_lab.servers.setup import Setup

REASON = "fencelock verify has restored a backup"
LATE_REVOKERS = ("etcd3",)
"""Servers whose leader ends leases as it wakes that others have renewed meanwhile (docs/reference/stores/etcd.md)."""
MIN_TURNS = 2
"""After a strike a lock has gone on when so many competitors have worked under it."""
_LOOK_S = 0.05
_SLACK_S = 1.0
"""It waits so much longer than what it waits for may take, so that the history shows a lock that does not go on."""


class Nemesis:
    """Strikes the servers: by a script, waiting each time until all locks go on, or as drawn, without waiting.

    A context manager: in the end all servers take requests again.
    """

    def __init__(
        self, setup: Setup, settings: CampaignSettings, recorder: Recorder, script: Sequence[Strike] = ()
    ) -> None:
        self._script = script
        self._turns: Callable[[], Mapping[int, int]] = dict
        self._setup = setup
        self._settings = settings
        self._recorder = recorder
        self._is_guard = settings.guard == setup.guard_url
        self._faults = tuple(kind for kind in settings.faults if kind in SERVER_FAULTS)
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fencelock-nemesis", daemon=True)
        self._error: Exception | None = None
        self.count = 0
        """How many faults have come to their end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()
        if self._thread.ident is not None:
            self._thread.join()

    def begin(self, turns: Callable[[], Mapping[int, int]]) -> None:
        """Begin to strike. `turns` returns how often each competitor has worked until now."""
        self._turns = turns
        self._thread.start()

    def end(self) -> None:
        """Strike no more; a strike that has begun comes to its end."""
        self._is_ending.set()

    @property
    def is_over(self) -> bool:
        """Whether it strikes no more: it was told to end, its script is over, or a server did not come back."""
        return not self._thread.is_alive()

    @property
    def has_struck_all(self) -> bool:
        """Whether each fault that was to come has come to its end."""
        return self.count >= len(self._script or self._faults)

    def check(self) -> None:
        """Raise what went wrong, if something did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            if SERVER_RESTORE in self._faults:
                self._setup.back_up()
            self._await_turns()
            for strike in self._script or strikes(self._settings.seed, self._faults, self._settings.ttl):
                if self._is_ending.wait(strike.pause):
                    return
                self._strike(strike)
                self._await_turns()
                self.count += 1
        except Exception as error:
            self._error = error

    def _strike(self, strike: Strike) -> None:
        servers = self._setup.servers
        leader = self._setup.leader()
        victims = [servers[one] for one in strike.victims(len(servers), servers.index(leader) if leader else 0)]
        {
            SERVER_KILL: self._kill,
            SERVER_FREEZE: self._freeze,
            SERVER_RESTART: self._restart,
            SERVER_ISOLATE: self._isolate,
            SERVER_RESTORE: self._restore,
        }[strike.kind](victims, strike.seconds)

    def _await_turns(self) -> None:
        """If there is a script, wait until every lock goes on: two of its competitors have worked since now."""
        if not self._script:
            return
        before = self._turns()
        deadline = time.monotonic() + self._settings.patience + _SLACK_S
        while not self._has_gone_on(before) and time.monotonic() < deadline:
            if self._is_ending.wait(_LOOK_S):
                return

    def _has_gone_on(self, before: Mapping[int, int]) -> bool:
        turns = self._turns()
        fresh = [number for number, count in turns.items() if count > before.get(number, 0)]
        locks = [self._settings.lock_of_worker(number) for number in fresh]
        return all(locks.count(lock) >= MIN_TURNS for lock in range(self._settings.locks))

    # --- the faults ---------------------------------------------------------------------------------------------------
    def _kill(self, victims: list[Server], seconds: float) -> None:
        for server in victims:
            server.kill()
        # Noted when none of them runs: what was granted until now, they have granted.
        forgets = {"forgets": self._setup.forgets_s} if self._setup.forgets_s else {}
        self._note(SERVER_KILL, victims, **forgets)
        self._is_ending.wait(seconds)
        self._setup.start()
        self._note(SERVER_BACK, victims)

    def _freeze(self, victims: list[Server], seconds: float) -> None:
        seconds = min(seconds, self._setup.longest_freeze_s)
        leader = self._setup.leader()
        is_late = self._setup.name in LATE_REVOKERS and leader in victims and seconds > self._settings.ttl
        try:
            for server in victims:
                server.freeze()
            self._note(SERVER_FREEZE, victims, **({"overlap": self._settings.ttl} if is_late else {}))
            self._is_ending.wait(seconds)
        finally:
            _thaw(victims)
        self._setup.wait_until_ready()
        self._note(SERVER_BACK, victims)

    def _restart(self, _victims: list[Server], _seconds: float) -> None:
        """Restart one server after the other, as for an upgrade."""
        for server in self._setup.servers:
            self._note(SERVER_RESTART, [server])
            server.stop()
            server.launch()
            self._setup.wait_until_ready()
            self._note(SERVER_BACK, [server])

    def _isolate(self, _victims: list[Server], seconds: float) -> None:
        """Isolate the leader from the others, at least until one of them leads."""
        leader = self._setup.leader()
        if leader is None:
            return
        try:
            self._setup.network.isolate(leader.name)
            self._note(SERVER_ISOLATE, [leader])
            self._setup.wait_for_leader_but(leader)
            self._is_ending.wait(seconds)
        finally:
            self._setup.network.isolate(None)
        self._setup.wait_until_ready()
        self._note(SERVER_BACK, [leader])

    def _restore(self, _victims: list[Server], _seconds: float) -> None:
        """Bring all back from the backup, which is older than what was acknowledged since; then take a new one."""
        with fencelock.connect(self._setup.url) as source:
            lost = source.describe().epoch
        for server in self._setup.servers:
            server.kill()
        self._note(SERVER_RESTORE, self._setup.servers)
        self._setup.restore(lambda url: self._remedy(url, lost))
        self._note(SERVER_BACK, self._setup.servers)
        self._setup.back_up()

    def _remedy(self, url: str, lost: int) -> None:
        """Do what docs/how-to/restore-a-backup.md demands of an operator whose processes run on.

        They know the epoch that is lost, and refuse one that is not above it.
        """
        with fencelock.connect(url) as source:
            # A source notices by itself at its next grant, which is too late to raise a mark to its last token.
            is_noticed = self._setup.notices_restores and not self._is_guard
            epoch = source.describe().epoch + is_noticed
            while epoch <= lost:
                epoch = source.raise_epoch(reason=REASON).epoch
            if not self._is_guard:
                return  # The resources are elsewhere, and have not gone back.
            for number in range(self._settings.locks):
                self._remedy_resources(
                    make_target(replace(self._settings, guard=self._setup.guard_url), number), source
                )

    def _remedy_resources(self, target: Target, source: fencelock.Source) -> None:
        guard = fencelock.guard(target.url, resources=target.resources, lock=target.lock)
        guard.raise_to(source, reason=REASON)
        for resource in target.resources:
            rows, _ = target.final(resource)
            mark = fencelock.guard(target.url, resource=resource, lock=target.lock).mark().token
            self._recorder.note(RESTORE, resource=resource, position=len(rows), mark=str(mark))

    def _note(self, kind: str, servers: list[Server], **facts: object) -> None:
        if kind == SERVER_BACK:
            facts["patience"] = self._settings.patience
        self._recorder.note(kind, servers=[server.name for server in servers], **facts)


def _thaw(servers: list[Server]) -> None:
    """Let all go on, also if that fails for one of them."""
    with ExitStack() as stack:
        for server in reversed(servers):
            stack.callback(server.thaw)
