"""What `fenceline run` does with signals: while it waits for the lock they end it, afterwards they are CMD's.

Promise: a signal that was ignored when this process started stays ignored (nohup). A second signal during the
leaving of the queue ends the process at once. SIGSTOP and SIGKILL reach nobody: the watchdog is for them.
"""

import signal
from collections.abc import Callable, Iterable
from types import FrameType

from fenceline.cli.run.events import Events

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
    """A signal came while CMD was not running yet."""


class Signals:
    """The handlers of this process; for its main thread."""

    def __init__(self, events: Events) -> None:
        self.interrupted_by: int | None = None
        """The signal that ended the wait. What it raised may arrive as another error, by way of a client's callback."""
        self._is_waiting = True
        # Whoever started us may have SIGCHLD ignored: CMD's exit status would be lost.
        signal.signal(signal.SIGCHLD, self._handle)
        signal.signal(signal.SIGCONT, self._handle)
        _set_unless_ignored(FORWARDED, self._handle)
        events.take_signals()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """End the wait for the lock. Afterwards the number that Python writes into the events is enough."""
        if self._is_waiting and number in FORWARDED:
            _set_unless_ignored(FORWARDED, signal.SIG_DFL)
            self.interrupted_by = number
            raise InterruptedWait

    def pass_to_command(self) -> None:
        """From now on signals are events, and Ctrl-Z is one too."""
        self._is_waiting = False
        _set_unless_ignored((signal.SIGTSTP,), self._handle)

    def let_stop(self) -> None:
        """Let Ctrl-Z stop this process, until `pass_to_command` is called again."""
        _set_unless_ignored((signal.SIGTSTP,), signal.SIG_DFL)


def _set_unless_ignored(numbers: Iterable[int], handler: Handler) -> None:
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)
