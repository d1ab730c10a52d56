"""`fencelock run` while CMD runs: passes signals on, shares the terminal, and waits for the end of CMD's group.

Promise: sleeps in the kernel between events. It ends nobody by itself: that is the watchdog's work, by one rule for
every case. Only where the watchdog does not answer within PATIENCE_MS after the grace, or is gone, the group
gets SIGKILL from here. Never: an id given back to the system while it may still be signalled.
"""

import os
import signal
from collections.abc import Mapping

from fencelock.cli.errors import LEASE_LOST, SIGNALLED, complain
from fencelock.cli.run import events as happenings
from fencelock.cli.run import terminal
from fencelock.cli.run.command import Command
from fencelock.cli.run.events import Events
from fencelock.cli.run.signals import FORWARDED, Signals
from fencelock.cli.run.terminal import Terminal
from fencelock.cli.run.watchdog import Watchdog
from fencelock.clock import boottime_ms

PATIENCE_MS = 1000
_STOP_CHECK_MS = 200
"""A process that still runs so long after it told itself to stop cannot be stopped: nobody could continue it."""
_WAKING = (signal.SIGTERM, signal.SIGHUP)
"""What a stopped process is to hear all the same, as after a shell's `kill`: it would hold the lock for ever."""
_WANTS_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)


class Supervisor:
    """One CMD, from the moment when it may run until its whole group is over."""

    def __init__(
        self, command: Command, watchdog: Watchdog, *, events: Events, signals: Signals, grace_ms: int
    ) -> None:
        self.is_lost = False
        """The lease was over, or about to be, before the group was."""
        self._command = command
        self._watchdog = watchdog
        self._events = events
        self._signals = signals
        self._grace_ms = grace_ms
        self._terminal = Terminal()
        self._lends_on_resume = False
        self._resume_ms: int | None = None
        self._give_up_ms: int | None = None
        self._is_over = False

    def run(self, variables: Mapping[str, str]) -> int:
        """Let CMD run with these variables, and return how it ended: its group is over then, the terminal ours."""
        if terminal.is_whole():
            self._terminal.give_to_block(self._command.pid)
        self._command.start(variables)
        self._wait_for_group()
        self._command.signal(signal.SIGKILL)
        code = self._reap() if self._wait_for_command() else LEASE_LOST
        self._terminal.take_back(with_modes=code > SIGNALLED)
        return code

    def _wait_for_group(self) -> None:
        """Return when the watchdog has seen to the end of the group, or has not when it should have."""
        while not self._watchdog.has_exited():
            if not self._is_over and self._command.has_ended():
                self._is_over = True
                self._watchdog.command_has_ended()
                self._expect_the_end()
            self._take_events(self._sleep_ms())
            if _is_past(self._resume_ms):
                self._resume()
            if _is_past(self._give_up_ms):
                break
        # After a freeze of ours the watchdog may be gone already: what it said last is still to be heard.
        self._take_events(0)
        if self._give_up_ms is None and not self._command.has_ended():
            complain("the watchdog process was killed, so CMD is too: nothing could have stopped it in time")

    def _reap(self) -> int:
        self._watchdog.reap()
        return self._command.reap()

    def _wait_for_command(self) -> bool:
        """Return whether CMD is over, after a last signal that it cannot ignore."""
        give_up_ms = boottime_ms() + PATIENCE_MS
        while not self._command.has_ended():
            if _is_past(give_up_ms):
                complain(f"CMD (process {self._command.pid}) cannot be killed and may still run: end it by hand")
                return False
            self._events.wait(max(0, give_up_ms - boottime_ms()))
        return True

    def _sleep_ms(self) -> int | None:
        moments = [ms for ms in (self._resume_ms, self._give_up_ms) if ms is not None]
        return max(0, min(moments) - boottime_ms()) if moments else None

    def _take_events(self, timeout_ms: int | None) -> None:
        for event in self._events.wait(timeout_ms):
            self._handle(event)

    def _handle(self, event: int) -> None:
        if event in (happenings.LEASE_LOST, happenings.GROUP_IS_ENDED):
            self.is_lost = True
            self._expect_the_end()
        elif event == signal.SIGCHLD:
            self._look_for_a_stop()
        elif event == signal.SIGCONT:
            self._resume()
        elif event == signal.SIGTSTP or event in FORWARDED:
            self._command.signal(event)
            if event in _WAKING:
                self._command.signal(signal.SIGCONT)

    def _expect_the_end(self) -> None:
        if self._give_up_ms is None:
            self._give_up_ms = boottime_ms() + self._grace_ms + PATIENCE_MS

    def _look_for_a_stop(self) -> None:
        """CMD was stopped: lend it the terminal if it lacks that, else stop too, so that the shell goes on."""
        number = self._command.stop_signal()
        if number is None or not self._terminal.exists:
            return
        had_terminal = self._terminal.is_in_block
        self._terminal.take_back(with_modes=False)
        if number in _WANTS_TERMINAL and self._terminal.give_to_block(self._command.pid):
            self._command.signal(signal.SIGCONT)
        elif had_terminal or number != signal.SIGSTOP:
            # Without the terminal, SIGSTOP is somebody's own business with CMD.
            self._lends_on_resume = had_terminal or number in _WANTS_TERMINAL
            self._stop(signal.SIGTSTP if number == signal.SIGSTOP else number)

    def _stop(self, number: int) -> None:
        """Stop our whole group, as the terminal would have done had CMD been in it."""
        self._signals.let_stop()
        self._resume_ms = boottime_ms() + _STOP_CHECK_MS
        os.kill(0, number)

    def _resume(self) -> None:
        if self._resume_ms is None:
            return
        self._resume_ms = None
        self._signals.watch_stops()
        if self._lends_on_resume:
            self._terminal.give_to_block(self._command.pid)
        self._command.signal(signal.SIGCONT)


def _is_past(moment_ms: int | None) -> bool:
    return moment_ms is not None and boottime_ms() >= moment_ms
