"""What `fencelock run` does with signals: while it waits for the lock they end it, afterwards they are CMD's.

Promise: a signal that was ignored when this process started stays ignored (nohup). A wait that a signal is to end does
end: what it raised is raised again each REMINDER_S, should somebody have swallowed it, and a leaving that takes
LEAVING_S is cut off. A second signal during the leaving of the queue ends the process at once. SIGSTOP and SIGKILL
reach nobody: the watchdog is for them.
"""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
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

Handler = Callable[[int, FrameType | None], object] | signal.Handlers


class InterruptedWait(BaseException):
    """A signal came before CMD was running."""


class Signals:
    """The handlers of this process; for its main thread."""

    def __init__(self, events: Events) -> None:
        self.interrupted_by: int | None = None
        """The signal that came before CMD was running."""
        self._is_commands = False
        self._may_raise = False
        self._is_waiting = False
        # Whoever started us may have SIGCHLD ignored: CMD's exit status would be lost.
        signal.signal(signal.SIGCHLD, self._handle)
        signal.signal(signal.SIGCONT, self._handle)
        signal.signal(signal.SIGALRM, self._remind)
        _set_unless_ignored(FORWARDED, self._handle)
        events.take_signals()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """Note what ends the wait for the lock. Once CMD runs, what Python writes into the events is enough."""
        if self._is_commands or number not in FORWARDED:
            return
        self.interrupted_by = number
        if self._may_raise:
            self._may_raise = False
            _set_unless_ignored(FORWARDED, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, REMINDER_S, REMINDER_S)
            raise InterruptedWait

    def _remind(self, _number: int, _frame: FrameType | None) -> None:
        """Raise once more in a wait that goes on, and cut off a leaving that takes too long."""
        if self._is_waiting:
            raise InterruptedWait
        if self.interrupted_by is not None:
            os._exit(SIGNALLED + self.interrupted_by)  # With this process the gate closes: CMD never runs.

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise InterruptedWait in this block when a signal comes; at its beginning, if one has come before.

        Only in this block, since an exception out of nowhere may be swallowed: by a finalizer, by a client's callback.
        So it is raised again while the block lasts, and at its end.
        """
        self._may_raise = self._is_waiting = True
        try:
            self._check()
            yield
        finally:
            self._may_raise = self._is_waiting = False
            if self.interrupted_by is not None:
                signal.setitimer(signal.ITIMER_REAL, LEAVING_S)
            self._check()

    def pass_to_command(self) -> None:
        """From now on signals are CMD's, and Ctrl-Z is one too; InterruptedWait if one has come before."""
        self._is_commands = True
        self._check()
        self.watch_stops()

    def watch_stops(self) -> None:
        """Make Ctrl-Z an event."""
        _set_unless_ignored((signal.SIGTSTP,), self._handle)

    def let_stop(self) -> None:
        """Let Ctrl-Z stop this process, until `watch_stops` is called."""
        _set_unless_ignored((signal.SIGTSTP,), signal.SIG_DFL)

    def _check(self) -> None:
        if self.interrupted_by is not None:
            raise InterruptedWait


def _set_unless_ignored(numbers: Iterable[int], handler: Handler) -> None:
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
