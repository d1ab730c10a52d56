"""Apply changes to copies of the package, and check whether tests notice.

Promise: trials only read the clone. Each worker has its own copy and runs one trial at a time. The copies and the
files that the tests write are in memory if the system has a folder for that, because the tests flush often.
Never lets a trial hang for ever, or a test's processes outlive it.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

ROOT = Path.cwd()
"""The clone: mutants change its files, so the program is run there, by `make mutants`."""
PACKAGE = ROOT / "src" / "fencelock"
MEMORY = Path("/dev/shm")  # noqa: S108 - the bench makes its own folder in it.
TIMEOUT_S = 300
"""After this time a trial hangs, and its mutant counts as noticed."""
TEST_TIMEOUT_S = 30
PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", f"--timeout={TEST_TIMEOUT_S}")


Given = TypeVar("Given")


class Trial(NamedTuple):
    """The changed text of one file, its path under src/fencelock, and the tests that should notice the change.

    Each of `tests` is one run of pytest, with its arguments split at blanks. The quick run comes first; the next one
    follows only if the tests before it noticed nothing.
    """

    name: str
    file: str
    text: str
    tests: tuple[str, ...]


class Copy:
    """A copy of the package that one worker changes."""

    def __init__(self, folder: Path) -> None:
        self._source = folder / "src"
        self._bytecode = folder / "bytecode"
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(self._source),
            "PYTHONPYCACHEPREFIX": str(self._bytecode),
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
            "TMPDIR": str(folder),
        }
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        shutil.copytree(PACKAGE, self._source / "fencelock", ignore=shutil.ignore_patterns("__pycache__"))

    def is_noticed(self, trial: Trial) -> bool:
        """Change the file, run the tests, and change it back."""
        path = self._source / "fencelock" / trial.file
        text = path.read_text()
        self._write(path, trial.text)
        try:
            return not all(map(self.passes, trial.tests))
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        """Write the file and delete its bytecode: Python cannot tell two texts of the same length and second apart."""
        path.write_text(text)
        for old in self._bytecode.glob(f"**{path.parent}/{path.stem}.*.pyc"):
            old.unlink()

    def passes(self, tests: str) -> bool:
        """Run tests against the copy as it is; a hang is a failure."""
        process = subprocess.Popen(
            [sys.executable, *PYTEST, *tests.split()],
            cwd=ROOT,
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end_group(process)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the tests and the processes that they have started and left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Bench:
    """Copies of the package, with a worker for each."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._workers = workers
        self._copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(workers):
            self._copies.put(Copy(folder / str(number)))

    def failing(self, selections: Iterable[str]) -> list[str]:
        """Return the selections of tests that fail on the unchanged package."""
        asked = sorted(selections)
        return [tests for tests, passes in zip(asked, self._each(Copy.passes, asked), strict=True) if not passes]

    def run(self, trials: list[Trial]) -> Iterator[tuple[Trial, bool]]:
        """Yield each trial in order, with whether its tests noticed."""
        return zip(trials, self._each(Copy.is_noticed, trials), strict=True)

    def _each(self, work: Callable[[Copy, Given], bool], given: list[Given]) -> Iterator[bool]:
        def borrow_and_work(one: Given) -> bool:
            copy = self._copies.get()
            try:
                return work(copy, one)
            finally:
                self._copies.put(copy)

        with ThreadPoolExecutor(self._workers) as pool:
            yield from pool.map(borrow_and_work, given)


@contextmanager
def bench(workers: int) -> Iterator[Bench]:
    """Yield a bench, and remove its folder at the end."""
    within = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fencelock-mutants-", dir=within) as folder:
        yield Bench(Path(folder), workers)
