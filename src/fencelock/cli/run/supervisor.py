"""`fencelock run` while CMD runs: passes signals on, shares the terminal, and waits for the end of CMD's group.

Promise: sleeps in the kernel between events. The watchdog ends the group, by one rule for every case. Only if the
watchdog is gone, or does not answer within WATCHDOG_TIMEOUT_MS after the grace, this process sends SIGKILL.
Never: reaps a process that may still have to be signalled, because its id could be reused.
"""

import os
import signal
from collections.abc import Mapping

from fencelock.cli.errors import LEASE_LOST, SIGNALLED, complain
from fencelock.cli.run import events as event_codes
from fencelock.cli.run import terminal
from fencelock.cli.run.command import Command
from fencelock.cli.run.events import Events
from fencelock.cli.run.signals import FORWARDED, Signals
from fencelock.cli.run.terminal import Terminal
from fencelock.cli.run.watchdog import Watchdog
from fencelock.clock import boottime_ms

WATCHDOG_TIMEOUT_MS = 1000
_STOP_CHECK_MS = 200
"""A process that still runs this long after it stopped itself cannot be stopped (an orphaned group)."""
_WAKING = (signal.SIGTERM, signal.SIGHUP)
"""Signals after which a stopped CMD is continued, as a shell's `kill` does; otherwise it would keep the lock."""
_BOUNDED = (signal.SIGTERM, signal.SIGINT)
_WANTS_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)


class Supervisor:
    """One CMD, from its start until its whole group has ended."""

    def __init__(
        self,
        command: Command,
        watchdog: Watchdog,
        *,
        events: Events,
        signals: Signals,
        grace_ms: int,
        is_bounded: bool,
    ) -> None:
        self.is_lost = False
        """True if the lease ended, or was about to end, before the group did."""
        self._command = command
        self._watchdog = watchdog
        self._events = events
        self._signals = signals
        self._grace_ms = grace_ms
        self._is_bounded = is_bounded
        """Whether CMD is killed when it has not ended within the grace after a signal that told it to."""
        self._kill_ms: int | None = None
        self._terminal = Terminal()
        self._gives_on_resume = False
        self._resume_ms: int | None = None
        self._give_up_ms: int | None = None
        self._is_over = False

    def run(self, variables: Mapping[str, str]) -> int:
        """Run CMD with these variables, wait until its group has ended, take the terminal back; return CMD's code."""
        if terminal.is_whole():
            self._terminal.give_to(self._command.pid)
        self._command.start(variables)
        self._wait_for_group()
        self._command.signal(signal.SIGKILL)
        code = self._reap() if self._wait_for_command() else LEASE_LOST
        self._terminal.take_back(with_modes=code > SIGNALLED)
        return code

    def _wait_for_group(self) -> None:
        """Wait until the watchdog has ended the group, or has failed to do so in time."""
        while not self._watchdog.has_exited():
            if not self._is_over and self._command.has_ended():
                self._is_over = True
                self._watchdog.command_has_ended()
                self._expect_the_end()
            self._take_events(self._sleep_ms())
            if _is_past(self._resume_ms):
                self._resume()
            if _is_past(self._kill_ms):
                self._kill_ms = None
                self._command.signal(signal.SIGKILL)
            if _is_past(self._give_up_ms):
                break
        # After a freeze of this process, the watchdog may be gone: read its last events.
        self._take_events(0)
        if self._give_up_ms is None and not self._command.has_ended():
            complain("the watchdog process was killed, so CMD is too: nothing could have stopped it in time")

    def _reap(self) -> int:
        self._watchdog.reap()
        return self._command.reap()

    def _wait_for_command(self) -> bool:
        """Return whether CMD ends after SIGKILL."""
        give_up_ms = boottime_ms() + WATCHDOG_TIMEOUT_MS
        while not self._command.has_ended():
            if _is_past(give_up_ms):
                complain(f"CMD (process {self._command.pid}) cannot be killed and may still run: end it by hand")
                return False
            self._events.wait(max(0, give_up_ms - boottime_ms()))
        return True

    def _sleep_ms(self) -> int | None:
        moments = [ms for ms in (self._resume_ms, self._kill_ms, self._give_up_ms) if ms is not None]
        return max(0, min(moments) - boottime_ms()) if moments else None

    def _take_events(self, timeout_ms: int | None) -> None:
        for event in self._events.wait(timeout_ms):
            self._handle(event)

    def _handle(self, event: int) -> None:
        if event in (event_codes.LEASE_LOST, event_codes.GROUP_IS_ENDED):
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
            if self._is_bounded and event in _BOUNDED and self._kill_ms is None:
                self._kill_ms = boottime_ms() + self._grace_ms

    def _expect_the_end(self) -> None:
        if self._give_up_ms is None:
            self._give_up_ms = boottime_ms() + self._grace_ms + WATCHDOG_TIMEOUT_MS

    def _look_for_a_stop(self) -> None:
        """If CMD was stopped, give it the terminal if it lacks that; else stop too, so that the shell continues."""
        number = self._command.stop_signal()
        if number is None or not self._terminal.exists:
            return
        had_terminal = self._terminal.is_given
        self._terminal.take_back(with_modes=False)
        if number in _WANTS_TERMINAL and self._terminal.give_to(self._command.pid):
            self._command.signal(signal.SIGCONT)
        elif had_terminal or number != signal.SIGSTOP:
            # A SIGSTOP while CMD has no terminal was aimed at CMD alone.
            self._gives_on_resume = had_terminal or number in _WANTS_TERMINAL
            self._stop(signal.SIGTSTP if number == signal.SIGSTOP else number)

    def _stop(self, number: int) -> None:
        """Stop this process's whole group, as the terminal would have done if CMD were in it."""
        self._signals.let_stop()
        self._resume_ms = boottime_ms() + _STOP_CHECK_MS
        os.kill(0, number)

    def _resume(self) -> None:
        if self._resume_ms is None:
            return
        self._resume_ms = None
        self._signals.watch_stops()
        if self._gives_on_resume:
            self._terminal.give_to(self._command.pid)
        self._command.signal(signal.SIGCONT)


def _is_past(moment_ms: int | None) -> bool:
    return moment_ms is not None and boottime_ms() >= moment_ms
