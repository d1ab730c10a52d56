"""The controlling terminal, given to CMD's group while CMD needs it.

A terminal has one foreground group: only that group may read it, and Ctrl-C and Ctrl-Z go to it. CMD is in a group of
its own, so without the foreground it would be stopped (SIGTTIN) when it reads.

Promise: the terminal is given away only while this process has it, and is taken back; its modes are restored if CMD
was killed before it could do so. In a pipeline the terminal stays with this process until CMD asks for it, because
another part of the pipeline may be reading it.
"""

import os
import signal
import termios
from contextlib import suppress
from typing import Any

_PATH = "/dev/tty"


class Terminal:
    """The terminal of this process's session. Without one, every call does nothing and returns False."""

    def __init__(self) -> None:
        self.is_given = False
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
        """Return whether this process's group is in the foreground."""
        try:
            return self._descriptor is not None and os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # The terminal was hung up.
            return False

    def give_to(self, group: int) -> bool:
        """Put `group` into the foreground; return whether it is there."""
        if self._descriptor is None or not self.is_ours():
            return False
        with suppress(OSError, termios.error):
            self._modes = termios.tcgetattr(self._descriptor)
            os.tcsetpgrp(self._descriptor, group)
            self.is_given = True
        return self.is_given

    def take_back(self, *, with_modes: bool) -> None:
        """Put this process's group back into the foreground; restore the terminal's modes if `with_modes`."""
        if self._descriptor is None or not self.is_given:
            return
        self.is_given = False
        # The kernel stops a background process that does this, unless it blocks SIGTTOU.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        try:
            with suppress(OSError, termios.error):
                os.tcsetpgrp(self._descriptor, os.getpgrp())
                if with_modes:
                    termios.tcsetattr(self._descriptor, termios.TCSANOW, self._modes)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def is_whole() -> bool:
    """Return whether both standard input and output are a terminal, so that CMD is in no pipeline."""
    return os.isatty(0) and os.isatty(1)
