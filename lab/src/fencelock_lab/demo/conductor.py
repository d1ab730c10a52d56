"""Play an act with two real processes: let them pass their lines one by one, freeze and wake them.

Promise: the order of what happens is the order of the act's moves, on any machine, because a
process stands still at a line until it is told to go on. Only the length of the freeze is left to
the clock: it lasts past the ttl, and until the other process has really got the lock. SIGSTOP is what makes a lease
lapse: a process that merely stands at a line goes on renewing its lease in the background. No
process outlives the act, and one that is silent for too long ends it with a DemoError.
"""

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import click

import fencelock
from fencelock_lab.demo.acts import AMOUNTS, Act
from fencelock_lab.demo.record import ActRecord, DemoEvent
from fencelock_lab.demo.resources import LOCK, RESOURCES

SILENCE_LIMIT_S = 30.0
"""How long a process may take from one line to the next, a wait for the lock included."""

FREEZE_TTLS = 1.1
"""The least length of a freeze, in ttls. The other process usually has the lock before that."""

FREEZE_TRIES = 100
_RETRY_PAUSE_S = 0.01
_READ_BYTES = 65536
_STDERR_TAIL_CHARACTERS = 2000


class DemoError(click.ClickException):
    """The act could not be played to its end: that proves nothing about what is lost."""

    def __init__(self, message: str) -> None:
        super().__init__(f"the demo could not be played to its end: {message}")


class DemoWorker:
    """One process of an act; `line` is where it stands, None once it is done."""

    def __init__(self, name: str, kind: str, folder: Path, ttl: float) -> None:
        self.name = name
        self.line: str | None = None
        self._errors = folder / f"{name}.stderr"
        self._unread = b""
        # -P: the folder that the user stands in holds no modules of ours.
        command = [sys.executable, "-P", "-m", "fencelock_lab.demo.worker"]
        with self._errors.open("wb") as errors:
            # A process group of its own keeps the terminal's Ctrl-C for the conductor; and if
            # that is killed, the kernel wakes and hangs up a group that it leaves frozen.
            self._process = subprocess.Popen(
                [*command, kind, str(folder), str(AMOUNTS[name]), str(ttl)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                process_group=0,
            )

    def go_on(self) -> None:
        """Let it pass the line at which it stands."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield what it reports until it stands at a line, or is done; `line` then says which."""
        while True:
            message = json.loads(self._next_line())
            if message["name"] in {"stands", "done"}:
                self.line = message.get("line")
                return
            yield message

    def _next_line(self) -> bytes:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        deadline = time.monotonic() + SILENCE_LIMIT_S
        while b"\n" not in self._unread:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([output], [], [], left_s)[0]:
                raise self._error(f"said nothing for {SILENCE_LIMIT_S:g} s")
            received = os.read(output, _READ_BYTES)
            if not received:
                raise self._error("ended in the middle of the act")
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _error(self, what: str) -> DemoError:
        tail = self._errors.read_text(errors="replace")[-_STDERR_TAIL_CHARACTERS:].strip()
        return DemoError(f"process {self.name} {what}. Its standard error: {tail or '(empty)'}")

    def stop(self) -> None:
        """Send SIGSTOP and return when the process has really stopped."""
        self._process.send_signal(signal.SIGSTOP)
        # WNOWAIT: should it have died instead, its exit status is left to Popen.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if self._process.poll() is not None:
            raise self._error("ended before it could be frozen")

    def wake(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End the process, frozen or not, and return when it has gone."""
        self._process.kill()
        with self._process:
            pass


class Stage:
    """The processes of one act, its files, and what has happened so far. A context manager."""

    def __init__(self, act: Act, folder: Path, ttl: float, on_event: Callable[[DemoEvent], object]) -> None:
        self.act = act
        self._on_event = on_event
        self._ttl = ttl
        self._folder = folder
        self._resource = RESOURCES[act.resource](folder / "app.db")
        self._source = fencelock.connect(f"sqlite:///{folder / 'locks.db'}")
        self._workers: dict[str, DemoWorker] = {}
        self._frozen_at: dict[str, float] = {}
        self._events: list[DemoEvent] = []
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for worker in self._workers.values():
            worker.end()
        self._source.close()

    def play(self) -> ActRecord:
        """Make all moves and return what happened."""
        self._begin()
        for name, verb in self.act.moves:
            worker = self._workers[name]
            match verb:
                case "freeze":
                    self._freeze(worker)
                case "thaw":
                    self._thaw(worker)
                case "finish":
                    while worker.line is not None:
                        self._pass_line(worker, worker.line)
                case line:
                    self._pass_line(worker, line)
        return ActRecord(self.act, tuple(self._events), self._resource.look()[0])

    def _begin(self) -> None:
        self._resource.create()
        for name in AMOUNTS:
            self._workers[name] = DemoWorker(name, self.act.resource, self._folder, self._ttl)
        for worker in self._workers.values():
            self._listen(worker)
        self._start = time.monotonic()
        self._look()

    def _pass_line(self, worker: DemoWorker, line: str) -> None:
        if worker.line != line:
            raise DemoError(f"process {worker.name} should stand at {line!r} and stands at {worker.line!r}")
        worker.go_on()
        self._listen(worker)
        self._look()

    def _listen(self, worker: DemoWorker) -> None:
        for message in worker.messages():
            message["time"] -= self._start
            self._record(DemoEvent(process=worker.name, **message))

    def _freeze(self, worker: DemoWorker) -> None:
        """Freeze a process at its line, at a moment when its keeper is not writing to the source.

        Frozen inside that write it would hold the whole file, and no process could take over: a limit
        of a source in one file, and not what the act is about.
        """
        for _ in range(FREEZE_TRIES):
            worker.stop()
            if _is_writable(self._folder / "locks.db"):
                break
            worker.wake()
            time.sleep(_RETRY_PAUSE_S)
        else:
            raise DemoError(f"process {worker.name} was never caught outside a renewal")
        self._frozen_at[worker.name] = time.monotonic()
        left = self._source.info(LOCK).remaining
        self._record(DemoEvent(self._now(), "frozen", worker.name, seconds=left))

    def _thaw(self, worker: DemoWorker) -> None:
        """Wake a process, not before it has been frozen for clearly longer than its ttl."""
        awake_at = self._frozen_at[worker.name] + FREEZE_TTLS * self._ttl
        time.sleep(max(0.0, awake_at - time.monotonic()))
        worker.wake()
        frozen = time.monotonic() - self._frozen_at[worker.name]
        self._record(DemoEvent(self._now(), "thawed", worker.name, seconds=frozen))

    def _look(self) -> None:
        value, mark = self._resource.look()
        self._record(DemoEvent(self._now(), "state", value=value, mark=mark))

    def _record(self, event: DemoEvent) -> None:
        self._events.append(event)
        self._on_event(event)

    def _now(self) -> float:
        return time.monotonic() - self._start


def _is_writable(path: Path) -> bool:
    """Return whether the write lock of this SQLite file is free at the moment."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
    return True


def play(act: Act, folder: Path, *, ttl: float, on_event: Callable[[DemoEvent], object]) -> ActRecord:
    """Play one act in an empty folder, telling `on_event` what happens while it happens."""
    with Stage(act, folder, ttl, on_event) as stage:
        return stage.play()
