"""Runs `fencelock` with a source of its own: as users do, as a process, or inside the test's where that is enough."""

import io
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

import fencelock
from fencelock.cli.commands import execute
from tests.shown_secrets import note_shown
from tests.support.helpers import DEADLINE_S, wait_until

_MARK = "TEST_MARK"
"""The environment variable that marks every process of one test."""
PROGRAM = [sys.executable, "-m", "fencelock.cli"]
SAY_READY = "echo ready; "
"""The begin of a CMD for sh that a test waits for with `ready`."""


class Program:
    """Runs `fencelock` in a folder of its own, and finally kills what it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder}/locks.db"
        self._mark = str(uuid.uuid4())
        self.environment = os.environ | {"FENCELOCK_SOURCE": self.url, _MARK: self._mark}
        self._started: list[subprocess.Popen[str]] = []

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        done = subprocess.run(
            [*PROGRAM, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=DEADLINE_S,
            check=False,
        )
        note_shown(done.stdout, done.stderr)
        return done

    def inside(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end in this process, which saves the start of an interpreter: never `run` with a CMD."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patched, redirect_stdout(out), redirect_stderr(err):
            patched.chdir(self.folder)
            # Only what differs: what the command itself removes from the environment stays removed.
            for name, value in self.environment.items() - os.environ.items():
                patched.setenv(name, value)
            code = execute(words)
        note_shown(out.getvalue(), err.getvalue())
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    def json(self, *words: str) -> Any:
        """Return what a command prints with --json; it has to succeed."""
        done = self.inside(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def start(self, *words: str, before: Sequence[str] = (), **options: Any) -> subprocess.Popen[str]:
        """Start a command, behind the words `before` if there are any, with pipes to read from."""
        process = subprocess.Popen(
            [*before, *PROGRAM, *words],
            **{
                "stdin": subprocess.DEVNULL,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "text": True,
                "cwd": self.folder,
                "env": self.environment,
                **options,
            },
        )
        self._started.append(process)
        return process

    def source(self) -> fencelock.Source:
        """Return the source that the commands use."""
        return fencelock.connect(self.url)

    def left(self) -> list[psutil.Process]:
        """Return all living processes that come from here: `run`, its watchdog, CMD, and what CMD has started."""
        return [process for process in psutil.process_iter() if _mark_of(process) == self._mark]

    def stop_all(self) -> None:
        """Kill the started processes that still run."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            process.wait()
        for left in self.left():
            with suppress(psutil.NoSuchProcess):
                left.kill()


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(_MARK)
    except psutil.Error:  # It has ended, or is somebody else's.
        return None


def running(process: subprocess.Popen[str]) -> psutil.Process:
    """Return CMD of a `fencelock run`, once it has replaced the process that waits at the gate."""

    def find() -> psutil.Process | None:
        for child in psutil.Process(process.pid).children():
            if child.pid == os.getpgid(child.pid) and child.cmdline() != command:
                return child
        return None

    command = psutil.Process(process.pid).cmdline()
    return wait_until(find)


def watchdog(process: subprocess.Popen[str]) -> psutil.Process:
    """Return the watchdog of a `fencelock run`: the only other child."""

    def find() -> psutil.Process | None:
        found = [child for child in psutil.Process(process.pid).children() if child.pid != os.getpgid(child.pid)]
        return next((child for child in found if child.name() == "fencelock-watch"), None)

    return wait_until(find)


def ready(process: subprocess.Popen[str]) -> None:
    """Wait until CMD reports that it runs."""
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


def child(parent: psutil.Process, name: str) -> psutil.Process:
    """Return the child with this name, once it has it: a shell that has just forked may lose a signal."""
    return wait_until(lambda: next((one for one in parent.children() if one.name() == name), None))


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        return psutil.Process(pid).status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return True


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """Yield `fencelock` with an empty source."""
    made = Program(tmp_path)
    with made.source() as source:
        source.install()
    yield made
    made.stop_all()
