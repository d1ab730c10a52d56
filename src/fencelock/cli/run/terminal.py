"""The controlling terminal, lent to CMD's group while it needs it.

A terminal has one foreground group: only that group may read it, and Ctrl-C and Ctrl-Z go to it. CMD is in a group of
its own, so it would be stopped (SIGTTIN) when it reads.

Promise: the terminal is lent only while it is ours to lend, and is taken back; its modes are set back if CMD was killed
before it could do so. In a pipeline the terminal stays with us until CMD asks for it, since another
part of the pipeline may be reading it.
"""

import os
import signal
import termios
from contextlib import suppress
from typing import Any

_PATH = "/dev/tty"


class Terminal:
    """The terminal of this process's session. Without one, every call does nothing and says False."""

    def __init__(self) -> None:
        self.is_in_block = False
        self._modes: list[Any] = []
        try:
            self._descriptor: int | None = os.open(_PATH, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            self._descriptor = None

    @property
    def exists(self) -> bool:
        """True if this process has a controlling terminal."""
        return self._descriptor is not None

    def is_ours(self) -> bool:
        """Tell whether our own group is in the foreground."""
        try:
            return self._descriptor is not None and os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # Hung up.
            return False

    def give_to_block(self, group: int) -> bool:
        """Put `group` into the foreground; return whether it is there."""
        if self._descriptor is None or not self.is_ours():
            return False
        with suppress(OSError, termios.error):
            self._modes = termios.tcgetattr(self._descriptor)
            os.tcsetpgrp(self._descriptor, group)
            self.is_in_block = True
        return self.is_in_block

    def take_back(self, *, with_modes: bool) -> None:
        """Put our own group back into the foreground, and the terminal's modes to what they were before it was lent."""
        if self._descriptor is None or not self.is_in_block:
            return
        self.is_in_block = False
        # Who is not in the foreground is stopped for doing this, unless SIGTTOU is blocked.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with suppress(OSError, termios.error):
                os.tcsetpgrp(self._descriptor, os.getpgrp())
                if with_modes:
                    termios.tcsetattr(self._descriptor, termios.TCSANOW, self._modes)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def is_whole() -> bool:
    """Tell whether CMD has the terminal for itself: its input and its output are one, so it is in no pipeline."""
    return os.isatty(0) and os.isatty(1)
