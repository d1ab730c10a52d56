"""Real processes of a test: each runs a few lines of Python, exchanges lines with the test, and is frozen or killed.

A script finds `source`, a fencelock source at the test's file, and the functions `say(value)` and `hear()`, by which it
exchanges JSON with the test. An actor whose test is gone ends by itself: `hear` raises SystemExit then. After
`early_beats()`, its leases are renewed long before that is due.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.helpers import DEADLINE_S, freeze

EARLY_BEATS_PER_TTL = 120
"""Leases of thirty seconds are renewed each quarter of a second: no machine is too busy for the rest of the ttl."""
PRELUDE = f"""
import json, os, signal, sys, threading, time
import fencelock

URL = sys.argv[1]
source = fencelock.connect(URL)

def say(value=None):
    os.write(1, (json.dumps(value) + "\\n").encode())

def hear():
    line = sys.stdin.readline()
    if not line:
        raise SystemExit("the test is gone")
    return json.loads(line)

def until(predicate, seconds=30):
    give_up = time.monotonic() + seconds
    while not (value := predicate()):
        if time.monotonic() > give_up:
            raise SystemExit("it did not come true")
        time.sleep(0.005)
    return value

def early_beats():
    from fencelock._keeper import schedule
    schedule.BEATS_PER_TTL = {EARLY_BEATS_PER_TTL}
"""


class Actor:
    """One process, running `script`."""

    def __init__(self, path: Path, script: str, *, options: tuple[str, ...] = ()) -> None:
        text = PRELUDE + textwrap.dedent(script)
        self._path = path
        self._process = subprocess.Popen(
            [sys.executable, *options, "-c", text, f"sqlite:///{path}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._heard: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard.put(line)
        self._heard.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

    @property
    def errors(self) -> str:
        """The text that it has written to stderr so far."""
        return "".join(self._errors)

    def hear(self, timeout: float = DEADLINE_S) -> Any:
        """Return the next value that it sends; fail the test if it ends instead."""
        try:
            line = self._heard.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(f"the actor said nothing for {timeout} s: {self.errors}") from None
        if line is None:
            code = self._process.wait(DEADLINE_S)
            raise AssertionError(f"the actor ended with {code}: {self.errors}")
        return json.loads(line)

    def is_silent(self) -> bool:
        """Return whether it has sent nothing that the test has not read."""
        return self._heard.empty()

    def say(self, value: Any = None) -> None:
        """Send it a value, without waiting for it to read."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def send(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop it with SIGSTOP, outside of the source's transactions, and return once it is stopped."""
        freeze(self.pid, self._path)

    def thaw(self) -> None:
        """Let it go on."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a chance to clean up."""
        self.send(signal.SIGKILL)
        self._process.wait(DEADLINE_S)

    def wait(self, timeout: float = DEADLINE_S) -> int:
        """Wait for its own end, and return its exit code."""
        return self._process.wait(timeout)

    def cpu_s(self) -> float:
        """Return the CPU time that it has used until now."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End it, and whatever it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join(DEADLINE_S)
        for stream in filter(None, (self._process.stdin, self._process.stdout, self._process.stderr)):
            with suppress(BrokenPipeError):
                stream.close()


class Stage:
    """The actors of one test, over one source file; all are ended with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"
        self._actors: list[Actor] = []

    def actor(self, script: str, *, options: tuple[str, ...] = ()) -> Actor:
        """Start an actor."""
        self._actors.append(Actor(self.path, script, options=options))
        return self._actors[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for actor in self._actors:
            actor.close()
