"""The conductor of a campaign: starts the workers, wakes those that freeze, replaces those that die.

Promise: it waits for what workers tell it, and reads the clock only to know when to wake or strike one. No worker
outlives it: the kernel kills them when it dies, frozen ones too. Each is in a process group of its own, which Ctrl-C
does not reach.
"""

import heapq
import os
import random
import selectors
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fencelock.errors import SourceError
from fencelock_lab.campaigns import clocks
from fencelock_lab.campaigns.competitor import ENDED, FREEZING, NAPPING, WORKED
from fencelock_lab.campaigns.faults import NAP
from fencelock_lab.campaigns.history import FREEZE, JUMP, KILL, QUIET, THAW
from fencelock_lab.campaigns.recorder import Recorder
from fencelock_lab.campaigns.settings import ANYWHERE_FREEZE, ANYWHERE_KILL, CampaignSettings
from fencelock_lab.campaigns.signals import held_back
from fencelock_lab.campaigns.worker import READY, orders_for
from fencelock_lab.servers import faketime

if TYPE_CHECKING:
    from fencelock_lab.campaigns.nemesis import Nemesis

_READ_BYTES = 65536
_STDERR_TAIL_CHARACTERS = 2000
_TELL_EVERY_S = 0.5
_HOPELESS_TENURES = 5
"""After so many tenures of each competitor in which nothing was accepted, the conductor waits no longer."""
ANYWHERE = "anywhere"
"""The point of a freeze or kill that came from outside, at any instruction."""
_ANYWHERE_PAUSES_S = (0.01, 0.1)
_ANYWHERE_FREEZE_TTLS = (0.08, 2.5)
_ANYWHERE_KILL_SHARE = 0.15
_MAX_FROZEN_PART = 4
"""At most a quarter of the processes is frozen from outside at one time."""
_START_PATIENCE_S = 60.0
"""How long processes may take to start: on a loaded machine that is seconds, which are no part of the attack."""
_SERVERS_PATIENCE_S = 180.0
"""How long our own servers may take to serve again after a fault: each has a deadline that is shorter."""


class CampaignError(SourceError):
    """The campaign could not be carried out to its end; that proves nothing about the setup."""


class Life:
    """One process of a worker; when that is killed, the next one begins."""

    def __init__(self, settings: CampaignSettings, worker: int, number: int, folder: Path) -> None:
        self.worker = worker
        self.number = number
        self.process = f"{worker}.{number}"
        self.is_ready = False
        self.frozen_at = 0.0
        self.unread = b""
        self._errors = folder / f"{self.process}.stderr"
        self._has_clock = JUMP in settings.faults
        with self._errors.open("wb") as errors:
            # -P: the folder that the user stands in holds no modules of ours.
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "fencelock_lab.campaigns.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | (faketime.variables(folder / f"{self.process}.clock") if self._has_clock else {}),
                # Unbuffered: an order for a process that has just died is not tried again when the pipe closes.
                bufsize=0,
                process_group=0,
            )
        self.send(orders_for(settings, worker, number, folder))

    @property
    def output(self) -> int:
        """The descriptor on which it reports."""
        assert self.popen.stdout is not None
        return self.popen.stdout.fileno()

    def send(self, line: str) -> None:
        """Give an order; one that has just died gets none."""
        assert self.popen.stdin is not None
        with suppress(BrokenPipeError):
            self.popen.stdin.write(f"{line}\n".encode())

    def wait_until_stopped(self) -> bool:
        """Return whether it has really stopped; False if it has died instead."""
        found = os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return found is not None and found.si_code == os.CLD_STOPPED

    def wake(self) -> None:
        """Let it continue."""
        self.popen.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End it, frozen or not."""
        self.popen.kill()
        with self.popen:
            pass
        self.clean_up()

    def clean_up(self) -> None:
        """Remove what it has left behind, now that it has ended."""
        if self._has_clock:
            clocks.forget(self.popen.pid)

    def complaint(self) -> str:
        """Return the end of what it wrote to standard error."""
        return self._errors.read_text(errors="replace")[-_STDERR_TAIL_CHARACTERS:].strip() or "(nothing)"


class Conductor:
    """Carries out one campaign. A context manager: in the end no worker is left."""

    def __init__(
        self,
        settings: CampaignSettings,
        folder: Path,
        recorder: Recorder,
        tell: Callable[[str], object],
        nemesis: "Nemesis | None" = None,
    ) -> None:
        self.settings = settings
        self._nemesis = nemesis
        self._folder = folder
        self._recorder = recorder
        self._tell = tell
        self._lives: dict[int, Life] = {}
        self._selector = selectors.DefaultSelector()
        self._frozen: list[tuple[float, int, Life]] = []
        self._is_quiet = False
        self._is_stopping = False
        self._worked: Counter[int] = Counter()
        self._ended: Counter[int] = Counter()
        self._chance = random.Random(f"{settings.seed}/anywhere")  # noqa: S311 - drawn again from its seed
        self._next_anywhere_at: float | None = None
        self._counts = {"tenures": 0, "freezes": 0, "kills": 0}
        self._told_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with held_back():  # A worker that lives on would keep what it holds from being removed.
            for life in self._lives.values():
                life.end()
        self._selector.close()

    def run(self) -> None:
        """Attack for the settings' duration, let everything come to rest, and have all workers end."""
        for worker in range(self.settings.workers):
            self._start(worker, 0)
        self._go_on(_START_PATIENCE_S, lambda: all(life.is_ready for life in self._lives.values()))
        if self._nemesis is None:
            self._begin_anywhere()
            self._go_on(self.settings.duration, lambda: False)
        else:
            self._go_on_beside(self._nemesis)
        self._calm()
        self._is_stopping = True
        for life in self._lives.values():
            assert life.popen.stdin is not None
            life.popen.stdin.close()
        self._go_on(self.settings.patience, lambda: not self._selector.get_map())

    def _go_on_beside(self, nemesis: "Nemesis") -> None:
        """Attack while the servers are struck, too, until each fault has come to its end."""
        nemesis.begin(lambda: dict(self._worked))
        self._go_on(self.settings.duration, lambda: nemesis.is_over)
        self._go_on(_SERVERS_PATIENCE_S, lambda: nemesis.is_over or nemesis.has_struck_all)
        nemesis.end()
        self._go_on(_SERVERS_PATIENCE_S, lambda: nemesis.is_over)
        nemesis.check()

    def _calm(self) -> None:
        """End the faults, and wait until every competitor has worked again: first those that may still be in one."""
        self._is_quiet = True
        self._next_anywhere_at = None
        for life in self._lives.values():
            life.send(QUIET)
        while self._frozen:
            self._thaw()
        for is_announced in (False, True):
            if is_announced:
                self._recorder.note(QUIET, patience=self.settings.patience)
            before = Counter(self._worked)
            self._ended.clear()
            self._go_on(self.settings.patience, partial(self._have_worked, before))

    def _have_worked(self, before: Counter[int]) -> bool:
        """Return whether all have worked, or whether none ever will, since each is refused again and again."""
        competitors = range(self.settings.workers * self.settings.threads)
        return all(self._worked[one] > before[one] for one in competitors) or all(
            self._ended[one] >= _HOPELESS_TENURES for one in competitors
        )

    # --- what workers report -----------------------------------------------------------------------------------------
    def _go_on(self, seconds: float, is_enough: Callable[[], bool]) -> None:
        """Do what is due, and read what workers report, until that is enough or the time is over."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end and not is_enough():
            while self._frozen and self._frozen[0][0] <= now:
                self._thaw()
            self._strike_anywhere(now)
            due = min([end, now + _TELL_EVERY_S, *(at for at, _, _ in self._frozen[:1])])
            if self._next_anywhere_at is not None:
                due = min(due, self._next_anywhere_at)
            for key, _ in self._selector.select(max(0.0, due - now)):
                self._read_reports(key.data)
            self._report(now)

    def _read_reports(self, life: Life) -> None:
        received = os.read(life.output, _READ_BYTES)
        if not received:
            self._replace(life)
            return
        *lines, life.unread = (life.unread + received).split(b"\n")
        for line in lines:
            word, _, rest = line.decode().partition(" ")
            if word == READY:
                life.is_ready = True
            elif word == ENDED:
                self._ended[int(rest)] += 1
            elif word == WORKED:
                self._worked[int(rest)] += 1
                self._counts["tenures"] += 1
            elif word == FREEZING:
                self._expect_freeze(life, float(rest))
            elif word == NAPPING:
                self._wake_predecessors(life)

    def _expect_freeze(self, life: Life, seconds: float) -> None:
        if not life.wait_until_stopped():
            return  # The end of its output comes next.
        self._note_frozen(life, seconds)
        if seconds >= self.settings.ttl:
            for other in self._lives.values():
                if other is not life and self._has_same_lock(other, life):
                    other.send(NAP)

    def _note_frozen(self, life: Life, seconds: float) -> None:
        self._counts["freezes"] += 1
        life.frozen_at = time.monotonic()
        wake_at = life.frozen_at + (0.0 if self._is_quiet else seconds)
        heapq.heappush(self._frozen, (wake_at, life.worker, life))

    # --- from outside -------------------------------------------------------------------------------------------------
    def _begin_anywhere(self) -> None:
        if {ANYWHERE_FREEZE, ANYWHERE_KILL} & set(self.settings.faults):
            self._next_anywhere_at = time.monotonic()

    def _strike_anywhere(self, now: float) -> None:
        """Freeze or kill a process, at whatever instruction it is, if it is time for that."""
        if self._next_anywhere_at is None or now < self._next_anywhere_at:
            return
        self._next_anywhere_at = now + self._chance.uniform(*_ANYWHERE_PAUSES_S)
        frozen = [life for _, _, life in self._frozen]
        awake = [life for life in self._lives.values() if life.is_ready and life not in frozen]
        if not awake:
            return
        victim = self._chance.choice(awake)
        if ANYWHERE_KILL in self.settings.faults and self._chance.random() < _ANYWHERE_KILL_SHARE:
            self._recorder.note(KILL, victim=victim.process, point=ANYWHERE)
            victim.is_ready = False
            victim.popen.kill()
        elif ANYWHERE_FREEZE in self.settings.faults and len(frozen) < self.settings.workers // _MAX_FROZEN_PART:
            victim.popen.send_signal(signal.SIGSTOP)
            if victim.wait_until_stopped():
                self._recorder.note(FREEZE, victim=victim.process, point=ANYWHERE)
                self._note_frozen(victim, self.settings.ttl * self._chance.uniform(*_ANYWHERE_FREEZE_TTLS))

    def _wake_predecessors(self, life: Life) -> None:
        """Wake each process that is frozen on the same lock, as soon as it was for a ttl.

        A successor is between its read and its write now, which is the worst moment for a stale write.
        """
        for at, (wake_at, worker, other) in enumerate(self._frozen):
            if self._has_same_lock(other, life):
                self._frozen[at] = (min(wake_at, other.frozen_at + self.settings.ttl), worker, other)
        heapq.heapify(self._frozen)

    def _has_same_lock(self, one: Life, other: Life) -> bool:
        return self.settings.lock_of_worker(one.worker) == self.settings.lock_of_worker(other.worker)

    def _thaw(self) -> None:
        _, _, life = heapq.heappop(self._frozen)
        self._recorder.note(THAW, victim=life.process)
        life.wake()

    # --- lives --------------------------------------------------------------------------------------------------------
    def _start(self, worker: int, number: int) -> None:
        life = Life(self.settings, worker, number, self._folder)
        self._lives[worker] = life
        self._selector.register(life.output, selectors.EVENT_READ, life)
        if self._is_quiet:
            life.send(QUIET)

    def _replace(self, life: Life) -> None:
        self._selector.unregister(life.output)
        with life.popen:
            code = life.popen.wait()
        life.clean_up()
        if code == -signal.SIGKILL and not self._is_stopping:
            self._counts["kills"] += 1
            self._start(life.worker, life.number + 1)
        elif not self._is_stopping or code not in {0, -signal.SIGKILL}:
            raise CampaignError(f"worker {life.process} ended with {code}. Its standard error: {life.complaint()}")

    def _report(self, now: float) -> None:
        if now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            if self._nemesis is not None:
                self._counts["server faults"] = self._nemesis.count
            self._tell(", ".join(f"{count} {what}" for what, count in self._counts.items()))
