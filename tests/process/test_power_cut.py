"""T1 across a power cut: the files cut back to what was flushed, a new boot, and no token that was ever told again.

`power_cut.c` keeps, while real processes grant, what the disk holds for certain. Here these processes are killed, the
files are put back to that state (in place: a power cut changes no inode), and others go on under another boot id.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fencelock.model import EPOCH_STRIDE
from tests.support.helpers import wait_until
from tests.support.programs import need
from tests.support.sources import rows

pytestmark = [pytest.mark.disk, pytest.mark.process]

HERE = Path(__file__).parent
FILE = "locks.db"
BLOCK = 40


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile what is preloaded into the processes."""
    compiled = tmp_path_factory.mktemp("shim") / "power_cut.so"
    command = [need("gcc"), "-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o", compiled, HERE / "power_cut.c", "-ldl"]
    subprocess.run(command, check=True)
    return compiled


@dataclass
class Machine:
    """A disk that forgets what was not flushed, and processes on it. `keeps_names`: as Linux's file systems do."""

    shim: Path
    folder: Path
    keeps_names: bool = False
    boots: int = 0
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.disk = self.folder / "disk"
        self.shadow = self.folder / "shadow"
        self.disk.mkdir(parents=True)
        self.shadow.mkdir()

    @property
    def file(self) -> Path:
        return self.disk / FILE

    def environment(self) -> dict[str, str]:
        """Return the environment of a watched process."""
        names = {"FL_CUT_KEEPS_NAMES": "1"} if self.keeps_names else {}
        watched = {"LD_PRELOAD": self.shim, "FL_CUT_WATCH": self.disk, "FL_CUT_SHADOW": self.shadow}
        return {**os.environ, **names, **{name: str(value) for name, value in watched.items()}}

    def start(self, **settings: Any) -> None:
        """Start a granting process under the boot id of now."""
        told = {"url": f"sqlite:///{self.file}", "locks": ["a"], "block": BLOCK, "boot_id": f"boot {self.boots}"}
        command = [sys.executable, "-P", HERE / "granter.py", json.dumps({**told, **settings})]
        output = (self.folder / f"told-{len(self.running)}").open("wb")
        with output:
            self.running.append(subprocess.Popen(command, stdout=output, env=self.environment()))

    def told(self) -> list[str]:
        """Return what the running processes have printed, process by process."""
        return [(self.folder / f"told-{number}").read_text() for number in range(len(self.running))]

    def end(self) -> None:
        """End every process in good order."""
        for process in self.running:
            process.terminate()
            assert process.wait() == 0

    def stop(self) -> None:
        """Kill every process."""
        for process in self.running:
            process.kill()
        for process in self.running:
            process.wait()

    def fail(self, *, survives: Collection[str] = ()) -> list[int]:
        """Cut the power: end every process at once, and leave on the disk what was flushed; return the tokens told.

        `survives`: files that happened to be written as they stood, though nobody had flushed them.
        """
        self.stop()
        lines = [line for text in self.told() for line in text.splitlines(keepends=True) if line.endswith("\n")]
        self.running.clear()
        names = {}
        for line in (self.shadow / "names").read_text().splitlines():
            inode, _, name = line.partition(" ")
            names[name] = inode
        for path in list(self.disk.iterdir()):
            if path.is_file() and path.name not in survives:
                self._cut_back(path, names.pop(path.name, None))
        for name, inode in names.items():
            if name not in survives:
                (self.disk / name).write_bytes(self._flushed(inode))
        self.boots += 1
        return [int(line.split()[1]) for line in lines if line != "done\n"]

    def _cut_back(self, path: Path, inode: str | None) -> None:
        if inode is None:
            path.unlink()
            return
        with path.open("r+b") as file:  # In place; nobody has it open.
            file.truncate()
            file.write(self._flushed(inode))

    def _flushed(self, inode: str) -> bytes:
        try:
            return (self.shadow / inode).read_bytes()
        except FileNotFoundError:
            return b""  # Its name was flushed, its bytes never.

    def run(self, body: str) -> str:
        """Run some lines of Python as a watched process, and return what it printed before it ended, or was killed."""
        code = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
import fencelock
import granter
url, shadow = sys.argv[1], Path(sys.argv[2])
{body}"""
        command = [sys.executable, "-c", code, f"sqlite:///{self.file}", self.shadow]
        process = subprocess.run(command, env=self.environment(), stdout=subprocess.PIPE, text=True, check=False)
        assert process.returncode in (0, -signal.SIGKILL)
        return process.stdout

    def read(self, statement: str) -> list[Any]:
        """Run a statement on a copy: on the disk itself, it would write and flush behind the shadow's back."""
        copy = self.folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for path in self.disk.glob(FILE + "*"):
            if path.is_file() and not path.name.endswith("-shm"):
                shutil.copy(path, copy)
        return rows(copy / FILE, statement)

    def grant(self, count: int, **settings: Any) -> None:
        """Let one process grant this many tokens, and wait for it."""
        self.start(count=count, **settings)
        wait_until(lambda: "done\n" in self.told()[-1])


@pytest.fixture
def machine(shim: Path, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(shim, tmp_path)
    yield machine
    machine.stop()


def check_only_grew(rounds: list[list[int]]) -> None:
    """Assert that no token was told twice, and each after a power cut is above each before it."""
    last = 0
    for tokens in rounds:
        assert len(set(tokens)) == len(tokens), "a token was told twice"
        assert not tokens or min(tokens) > last, f"token {min(tokens)} was told after token {last}"
        last = max(tokens, default=last)


@pytest.mark.parametrize(
    ("survives", "keeps_names"),
    [
        pytest.param("", False, id="only what POSIX promises"),
        pytest.param("", True, id="what was flushed"),
        pytest.param("db", True, id="the database as it stood"),
        pytest.param("db-wal", False, id="the log as it stood"),
        pytest.param("db db-wal db-shm", True, id="every file as it stood"),
    ],
)
def test_t1_no_token_is_issued_again_after_a_power_cut(machine: Machine, survives: str, keeps_names: bool) -> None:
    machine.keeps_names = keeps_names
    moments = random.Random(survives)
    rounds = []
    identities = set()
    for _ in range(3):
        machine.start(locks=["a", "b"])
        machine.start(locks=["b", "c"])
        enough = moments.randrange(1, 4 * BLOCK)
        wait_until(lambda: sum(text.count("\n") for text in machine.told()) >= enough)  # noqa: B023 - called at once
        rounds.append(machine.fail(survives={f"locks.{ending}" for ending in survives.split()}))
        identities.update(machine.read("select source_id, history_id from fencelock_source"))
    check_only_grew(rounds)
    assert len(identities) == 1  # The same source all along, not one made anew.


@pytest.mark.reduced
def test_t1_a_power_cut_right_after_the_first_token_is_survived(machine: Machine) -> None:
    rounds = []
    for _ in range(4):
        machine.grant(1)
        rounds.append(machine.fail())
    check_only_grew(rounds)
    assert [tokens[0] for tokens in rounds] == [1, BLOCK + 1, 2 * BLOCK + 1, 3 * BLOCK + 1]  # Each skips to the bound.


def test_t1_a_log_that_another_process_made_is_durable_when_a_token_is_told(machine: Machine) -> None:
    """The name of a new log must be flushed by whoever tells a token first, and not only by who made the log."""
    machine.grant(1)
    machine.end()
    assert not Path(f"{machine.file}-wal").exists()
    machine.grant(1)
    machine.grant(3 * BLOCK)
    rounds = [machine.fail()]
    machine.grant(1)
    rounds.append(machine.fail())
    check_only_grew(rounds)


def test_t1_power_cut_while_nobody_was_running_loses_nothing(machine: Machine) -> None:
    machine.grant(5)
    machine.end()
    rounds = [machine.fail()]
    machine.grant(5)
    rounds.append(machine.fail())
    check_only_grew(rounds)


def test_t7_a_raised_epoch_survives_a_power_cut(machine: Machine) -> None:
    machine.grant(5)
    rounds = [machine.fail()]
    raised = machine.run("""
granter.pretend({"boot_id": "boot 1"})
print(fencelock.connect(url).raise_epoch(reason="a test").history_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
""")
    machine.fail()
    assert machine.read("select history_id, epoch from fencelock_source") == [(raised.strip(), 2)]
    machine.grant(1)
    rounds.append(machine.fail())
    check_only_grew(rounds)
    assert rounds[-1][0] > EPOCH_STRIDE


# --- a flush that did not end well ---
GRANTING = """
granter.pretend({"boot_id": "boot 0", "block": %(block)s})
with fencelock.connect(url) as connected:
    for turn in range(%(count)s):
        (shadow / "%(mishap)s").touch() if turn == 10 else None
        try:
            connected.lock("lock").acquire().release()
        except fencelock.FencelockError as error:
            info = connected.describe()
            print(type(error).__name__, error.definite, info.last_token, error)
            (shadow / "%(mishap)s").unlink()
    print(connected.describe().last_token)
"""


def test_t1_no_token_is_told_while_the_disk_fails_to_flush(machine: Machine) -> None:
    """The bound is not durable, so the block is not used, and the error says that it is not known what happened."""
    failure, last = machine.run(GRANTING % {"block": BLOCK, "count": 2 * BLOCK, "mishap": "fails"}).splitlines()
    assert failure.startswith(f"OutcomeUnknownError False {BLOCK} {machine.file}: the commit was not confirmed")
    assert last == str(2 * BLOCK - 1)


def test_t1_a_bound_whose_flush_was_interrupted_is_flushed_before_it_is_used(machine: Machine) -> None:
    """Killed in the flush, a process leaves a commit that the next one reads from the system's memory, not the disk."""
    assert machine.run(GRANTING % {"block": BLOCK, "count": 2 * BLOCK, "mishap": "dies"}) == ""
    (machine.shadow / "dies").unlink()
    machine.grant(BLOCK // 2)
    rounds = [machine.fail()]
    assert min(rounds[0]) == BLOCK + 1
    machine.grant(1)
    rounds.append(machine.fail())
    check_only_grew(rounds)


# --- the same checks must see what they are for ---
@pytest.mark.parametrize("without", ["flush", "skip"])
def test_t1_without_the_flush_or_the_skip_a_token_is_told_again(machine: Machine, without: str) -> None:
    rounds = []
    for _ in range(2):
        machine.grant(BLOCK // 2, without=without)
        rounds.append(machine.fail())
    assert len(rounds[0]) == len(rounds[1]) == BLOCK // 2
    with pytest.raises(AssertionError, match="was told after token"):
        check_only_grew(rounds)


def test_the_cut_takes_away_what_was_not_flushed(machine: Machine) -> None:
    """Grants are not flushed: after the cut the file remembers the reserved block, and not who had the lock."""
    machine.grant(BLOCK // 2)
    machine.fail()
    assert machine.read("select counter, reserved from fencelock_source") == [(0, BLOCK)]
    assert machine.read("select * from fencelock_lock") == []
