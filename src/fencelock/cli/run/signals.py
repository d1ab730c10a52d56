"""How `fencelock run` handles signals: while it waits for the lock they end it; afterwards they are passed to CMD.

Promise: a signal that was ignored when this process started stays ignored (nohup). A signal ends the wait for certain:
its exception is raised again every REMINDER_S in case other code swallowed it, and leaving the queue is cut off
after LEAVING_S. A second signal during the leaving ends the process at once. SIGSTOP and SIGKILL cannot be handled;
the watchdog covers them. As process 1 of a container, this process leaves no zombies.
"""

import math
import os
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from fencelock.cli.errors import SIGNALLED
from fencelock.cli.run.events import Events

REMINDER_S = 1.0
LEAVING_S = 10.0
FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Those that tell CMD to end."""

_INIT = 1
"""The process that inherits every orphan of its container, and has to reap it."""

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


class InterruptedWait(BaseException):
    """A signal arrived before CMD was running."""


class Signals:
    """The signal handlers of this process. Use it in the main thread."""

    def __init__(self, events: Events, *, children: Collection[int]) -> None:
        self._children = children
        self.interrupted_by: int | None = None
        """The signal that arrived before CMD was running."""
        self.is_told_to_end = False
        """Whether a signal has told CMD to end."""
        self._is_forwarding = False
        self._may_raise = False
        self._is_waiting = False
        self._leave_by = math.inf
        """When the leaving of the queue is cut off, by the monotonic clock."""
        # If the parent process ignores SIGCHLD, so does this one, and CMD's exit status would be lost.
        signal.signal(signal.SIGCHLD, self._reap_orphans if os.getpid() == _INIT else self._handle)
        signal.signal(signal.SIGCONT, self._handle)
        signal.signal(signal.SIGALRM, self._remind)
        _set_unless_ignored(FORWARDED, self._handle)
        events.take_signals()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """End the wait for the lock. Once CMD runs, it suffices that Python writes the signal into the events."""
        self.is_told_to_end = self.is_told_to_end or number in ENDING
        if self._is_forwarding or number not in FORWARDED:
            return
        self.interrupted_by = number
        if self._may_raise:
            self._may_raise = False
            _set_unless_ignored(FORWARDED, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, REMINDER_S, REMINDER_S)
            raise InterruptedWait

    def _reap_orphans(self, _number: int, _frame: FrameType | None) -> None:
        """Reap all ended processes but CMD and the watchdog, which the supervisor waits for."""
        with suppress(ChildProcessError):  # There is no child at all.
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in self._children:
                    return  # It hides other ended processes, but `run` is about to end, and they with it.
                os.waitpid(ended.si_pid, 0)

    def _remind(self, _number: int, _frame: FrameType | None) -> None:
        """Raise again in a wait that continues; end the process if leaving takes too long."""
        if self._is_waiting:
            raise InterruptedWait
        # A reminder of the wait may come late, in the leaving: that has its own time.
        if self.interrupted_by is not None and time.monotonic() >= self._leave_by:
            os._exit(SIGNALLED + self.interrupted_by)  # This closes CMD's gate, so CMD never runs.

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise InterruptedWait in this block when a signal arrives; at its start, if one has arrived before.

        A finalizer or a client's callback may swallow an exception from a signal handler. So it is raised in this
        block only, again and again while the block lasts, and at its end.
        """
        self._may_raise = self._is_waiting = True
        try:
            try:
                self._check()
                yield
            finally:
                self._end_wait()
                self._check()
        except InterruptedWait:
            self._end_wait()  # Again, for a reminder may have broken it off.
            raise

    def _end_wait(self) -> None:
        """Raise no more; if a signal has ended the wait, its leaving has LEAVING_S from now on."""
        self._may_raise = self._is_waiting = False
        if self.interrupted_by is not None:
            self._leave_by = time.monotonic() + LEAVING_S
            # Again and again: an alarm that comes just before a system call blocks does not end that call.
            signal.setitimer(signal.ITIMER_REAL, LEAVING_S, REMINDER_S)

    def pass_to_command(self) -> None:
        """Pass signals, Ctrl-Z included, to CMD from now on; InterruptedWait if one has arrived before."""
        self._is_forwarding = True
        self._check()
        self.watch_stops()

    def may_begin_anew(self) -> bool:
        """Return whether no signal has told this process to end; from now on, one ends it at once."""
        _set_unless_ignored(FORWARDED, _end_at_once)
        return not self.is_told_to_end

    def watch_stops(self) -> None:
        """Turn Ctrl-Z into an event."""
        _set_unless_ignored((signal.SIGTSTP,), self._handle)

    def let_stop(self) -> None:
        """Let Ctrl-Z stop this process, until `watch_stops` is called."""
        _set_unless_ignored((signal.SIGTSTP,), signal.SIG_DFL)

    def _check(self) -> None:
        if self.interrupted_by is not None:
            raise InterruptedWait


def _end_at_once(number: int, _frame: FrameType | None) -> None:
    os._exit(SIGNALLED + number)


def _set_unless_ignored(numbers: Iterable[int], handler: Handler) -> None:
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
