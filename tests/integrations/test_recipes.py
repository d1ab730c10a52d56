"""The recipes for many workers, with the real frameworks: a frozen leader is followed, and writes nothing more.

Each test saves the files of the page, starts the page's own command in several processes, and freezes the one that
leads. Only times are shortened.
"""

import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import fencelock
from tests.structure.doc_blocks import files
from tests.support.helpers import DEADLINE_S, ROOT, freeze, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]
PAGE = (ROOT / "docs" / "how-to" / "run-once-with-many-workers.md").read_text()
SHORT = {"TTL_S": 2.0, "PAUSE_S": 0.05, "PERIOD_S": 0.5, "WORK_S": 0.3, "RETRY_S": 0.1}


class Frozen(NamedTuple):
    """The process that was frozen while it held the lock with this token, and its rows until then."""

    pid: int
    token: int
    rows: list[int]


class Stage:
    """A folder with the files of the page, and the programs that run there."""

    def __init__(self, folder: Path, table: str, lock: str) -> None:
        self.folder = folder
        self._table = table
        self._lock = lock
        self._programs: list[subprocess.Popen[bytes]] = []
        for name, text in files(PAGE).items():
            (folder / name).write_text(re.sub(r"(?m)^(\w+_S) = .*$", _shortened, text))
        subprocess.run([sys.executable, "prepare.py"], cwd=folder, check=True, timeout=DEADLINE_S)
        # Installed before the programs start, so that the test can look at the lock.
        self._source = fencelock.connect(f"sqlite:///{folder}/locks.db")
        self._source.install()

    def start(self, program: str, *options: str) -> None:
        """Start a command of the page, with some more options."""
        (command,) = re.findall(rf"(?m)^\$ ({program}.*)$", PAGE)
        words = [*shlex.split(command), *options]
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        with (self.folder / "new.log").open("wb") as log:
            self._programs.append(
                subprocess.Popen(
                    words, cwd=self.folder, env=environment, stdout=log, stderr=log, start_new_session=True
                )
            )
        (self.folder / "new.log").rename(self._log_of(self._programs[-1].pid))

    def tokens(self) -> list[int]:
        """Return the token of each row, in the order in which they were written."""
        with closing(sqlite3.connect(self.folder / "app.db", timeout=DEADLINE_S)) as connection:
            return [token for (token,) in connection.execute(f"SELECT token FROM {self._table} ORDER BY id")]

    def freeze_leader(self) -> Frozen:
        """Freeze the process that holds the lock, while its lease runs, and after it has heard of the grant."""
        return wait_until(self._try_to_freeze)

    def _try_to_freeze(self) -> Frozen | None:
        before = self._source.info(self._lock)
        if before.holder is None or before.token is None or not self._is_at_work(before.token):
            return None
        pid = int(before.holder.split(":")[1])
        freeze(pid, self.folder / "locks.db", self.folder / "app.db")
        after = self._source.info(self._lock)
        if after.is_held and after.token == before.token:
            return Frozen(pid, before.token, [token for token in self.tokens() if token == before.token])
        os.kill(pid, signal.SIGCONT)
        return None

    def _is_at_work(self, token: int) -> bool:
        return token in self.tokens() or f"work with token {token}\n" in self.log()

    def thaw(self, frozen: Frozen) -> None:
        """Let it go on once another process has written, and wait until it has heard of its loss."""
        wait_until(lambda: self.tokens()[-1:] > [frozen.token])
        # Either it hears of the loss, or the guard's answer is that the other one has done its work.
        loss = re.compile(rf"token[= ]{frozen.token}\b|done before")
        log = self._log_of(os.getsid(frozen.pid))
        before = len(log.read_text())
        os.kill(frozen.pid, signal.SIGCONT)
        wait_until(lambda: loss.search(log.read_text(), before))

    def log(self) -> str:
        """Return what the programs have printed."""
        return "".join(self._log_of(one.pid).read_text() for one in self._programs)

    def _log_of(self, program: int) -> Path:
        return self.folder / f"{program}.log"

    def end(self) -> None:
        """Ask all programs to end, and wait until they have released the lock."""
        for one in self._programs:
            one.terminate()
        for one in self._programs:
            one.wait(DEADLINE_S)
        assert not self._source.info(self._lock).is_held

    def close(self) -> None:
        """End whatever is left, and show what was said if the test fails."""
        for one in self._programs:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait(DEADLINE_S)
        self._source.close()
        print(self.log())

    def check(self, frozen: Frozen) -> None:
        """Check that no row of an old token follows one of a newer token, and that the frozen process wrote nothing."""
        tokens = self.tokens()
        assert tokens == sorted(tokens)
        assert [token for token in tokens if token == frozen.token] == frozen.rows


def _shortened(setting: re.Match[str]) -> str:
    return f"{setting[1]} = {SHORT.get(setting[1]) or setting[0].partition(' = ')[2]}"


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    table, lock = request.param
    with closing(Stage(tmp_path, table, lock)) as stage:
        yield stage


TICKS = pytest.mark.parametrize("stage", [("tick", "ticker")], indirect=True, ids=["ticks"])
BILLS = pytest.mark.parametrize("stage", [("bill", "billing")], indirect=True, ids=["bills"])


@TICKS
def test_fastapis_worker_leads_until_it_is_asked_to_end(stage: Stage) -> None:
    stage.start("uvicorn", "--port", "0", "--workers", "1")
    wait_until(stage.tokens)
    stage.end()


@pytest.mark.campaign
@TICKS
def test_of_fastapis_workers_one_leads_and_a_frozen_one_is_followed(stage: Stage) -> None:
    # uvicorn would kill a worker that is frozen for longer than the health check allows.
    stage.start("uvicorn", "--port", "0", "--workers", "2", "--timeout-worker-healthcheck", "600")
    frozen = stage.freeze_leader()
    stage.thaw(frozen)
    stage.end()
    stage.check(frozen)


@TICKS
def test_of_apschedulers_processes_one_leads_and_a_frozen_one_is_followed(stage: Stage) -> None:
    for _ in range(2):
        stage.start("python3 timetable")
    frozen = stage.freeze_leader()
    stage.thaw(frozen)
    stage.end()
    stage.check(frozen)


@BILLS
def test_celerys_task_that_comes_twice_is_done_once(stage: Stage) -> None:
    twice = "import tasks; [print(tasks.bill.apply(args=[7]).get()) for _ in range(2)]"
    words = [sys.executable, "-c", twice]
    done = subprocess.run(words, cwd=stage.folder, check=True, timeout=DEADLINE_S, capture_output=True, text=True)
    assert "done with token 1\n" in done.stdout
    assert "done before, with token 1\n" in done.stdout
    assert stage.tokens() == [1]


@pytest.mark.campaign
@BILLS
def test_celerys_doubled_beats_and_frozen_workers_write_each_bill_once(stage: Stage) -> None:
    for number in range(2):
        stage.start("celery -A tasks worker", "--pool", "solo", "--loglevel", "INFO", "--hostname", f"w{number}")
        stage.start("celery -A tasks beat", "--schedule", f"beat-{number}")
    frozen = stage.freeze_leader()
    stage.thaw(frozen)
    wait_until(lambda: "done before, with token" in stage.log())
    stage.close()
    stage.check(frozen)
    with closing(sqlite3.connect(stage.folder / "app.db")) as connection:
        assert connection.execute("SELECT count(*) - count(DISTINCT minute) FROM bill").fetchone() == (0,)
