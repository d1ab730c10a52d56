"""A pseudo-terminal with a shell, for tests of job control."""

import fcntl
import os
import re
import select
import subprocess
import termios
import time
from pathlib import Path

from tests.support.helpers import DEADLINE_S

PROMPT = "READY> "
_CONTROL = {"C": "\x03", "Z": "\x1a", "\\": "\x1c", "D": "\x04"}


class Terminal:
    """A pseudo-terminal whose session's leader is a program, an interactive bash unless said otherwise."""

    def __init__(self, folder: Path, environment: dict[str, str], program: list[str] | None = None) -> None:
        self.seen = ""
        self._at = 0
        self.master, slave = os.openpty()
        self.process = subprocess.Popen(
            program or ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=folder,
            env=environment | {"PS1": PROMPT, "TERM": "dumb"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        os.close(slave)
        if program is None:
            self.expect(PROMPT)

    def type(self, text: str) -> None:
        """Type a line, and the key that ends it."""
        os.write(self.master, f"{text}\n".encode())

    def press(self, key: str) -> None:
        """Press Ctrl and a key."""
        os.write(self.master, _CONTROL[key].encode())

    def expect(self, pattern: str) -> re.Match[str]:
        """Wait until the terminal shows the pattern, behind what was expected before."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := re.compile(pattern).search(self.seen, self._at)):
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} did not appear; the terminal shows:\n{self.seen[self._at :]}"
            if select.select([self.master], [], [], left)[0]:
                self._read()
        self._at = found.end()
        return found

    def _read(self) -> None:
        try:
            self.seen += os.read(self.master, 65536).decode(errors="replace").replace("\r", "")
        except OSError as error:  # The last process of the session has gone.
            raise AssertionError(f"the terminal is closed; it showed:\n{self.seen}") from error

    def run(self, line: str) -> str:
        """Type a line into the shell, and return what it prints until the next prompt."""
        start = self._at
        self.type(line)
        self.expect(PROMPT)
        return self.seen[start : self._at].removesuffix(PROMPT).partition("\n")[2]

    @property
    def foreground(self) -> int:
        """The process group in the foreground."""
        return os.tcgetpgrp(self.master)

    def echoes(self) -> bool:
        """Return whether the terminal's modes are those of a shell."""
        return bool(termios.tcgetattr(self.master)[3] & termios.ECHO)

    def close(self) -> None:
        """Hang up, as closing a window does."""
        os.close(self.master)
        self.process.kill()
        self.process.wait()
