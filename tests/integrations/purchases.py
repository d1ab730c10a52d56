"""The programs of docs/how-to/fence-message-handlers.md as real workers, the first of which stops in its handler.

A worker's first purchase says which process handles it, and waits where the test freezes it. Only times are shortened.
"""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import fencelock
from tests.structure.doc_blocks import files
from tests.support.helpers import DEADLINE_S, ROOT, freeze, wait_until

PAGE = (ROOT / "docs" / "how-to" / "fence-message-handlers.md").read_text()
SHORT = {"TTL_S": 60.0, "RETRY_S": 0.2, "VISIBLE_S": 1, "LOOK_S": 0.2, "PAUSE_S": 0.2, "PAUSE_MS": 200}
CARRIER = """
import os, time

def label_for(purchase):
    try:
        os.close(os.open("first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    with open("pid.new", "w") as file: file.write(str(os.getpid()))
    os.rename("pid.new", "pid")
    while not os.path.exists("go"): time.sleep(0.005)
"""


class Purchases:
    """A folder with the page's files, the planner's guard, and the workers that run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs: list[subprocess.Popen[bytes]] = []
        for name, text in (files(PAGE) | {"carrier.py": CARRIER}).items():
            (folder / name).write_text(re.sub(r"(?m)^(\w+_M?S) = .*$", _shortened, text))
        self.run("prepare.py")
        self.source = fencelock.connect(f"sqlite:///{folder}/locks.db")
        self.source.install()
        self.plan = fencelock.guard(f"sqlite:///{folder}/app.db", resource="plan", lock="planner")

    def stale_planner(self) -> fencelock.Sequencer:
        """Return the sequencer of a planner whose lease is over."""
        with self.source.lock("planner") as lease:
            return lease.sequencer

    def set_stopping(self, *, is_stopping: bool) -> None:
        """Have the next purchase stop in its handler, as the first one does, or pass."""
        if is_stopping:
            (self.folder / "first").unlink()
        else:
            (self.folder / "first").touch()

    def has_ended(self, worker: int) -> bool:
        """Return whether a worker has ended by itself."""
        return self._programs[worker].poll() is not None

    def run(self, *words: str) -> None:
        """Run Python with these words to its end."""
        subprocess.run([sys.executable, *words], cwd=self.folder, check=True, timeout=DEADLINE_S)

    def start(self, *words: str, **variables: str) -> None:
        """Start a worker: Python with these words."""
        with self._log_of(len(self._programs)).open("wb") as log:
            self._programs.append(
                subprocess.Popen(
                    [sys.executable, *words],
                    cwd=self.folder,
                    env=os.environ | variables,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def freeze_first(self) -> int:
        """Freeze the process that handles the first purchase, and return its id."""
        wait_until((self.folder / "pid").exists)
        pid = int((self.folder / "pid").read_text())
        freeze(pid, self.folder / "locks.db", self.folder / "app.db")
        assert self.bookings() == []
        return pid

    def thaw(self, pid: int) -> None:
        """Let the frozen process go on."""
        (self.folder / "go").touch()
        os.kill(pid, signal.SIGCONT)

    def end_lease(self, purchase: int) -> int:
        """End the lease of the delivery that is frozen, without waiting for its ttl, and return its token."""
        token = self.source.info(f"purchase:{purchase}").token
        self.source.break_lock(f"purchase:{purchase}", reason="as if it had expired")
        assert token is not None
        return token

    def bookings(self) -> list[tuple[int, int]]:
        """Return the purchases that were booked, each with the token of its delivery."""
        with closing(sqlite3.connect(self.folder / "app.db", timeout=DEADLINE_S)) as connection:
            return connection.execute("SELECT purchase, token FROM booking").fetchall()

    def _log_of(self, number: int) -> Path:
        return self.folder / f"{number}.log"

    def log(self) -> str:
        """Return what the workers have printed."""
        return "".join(self._log_of(number).read_text() for number in range(len(self._programs)))

    def close(self) -> None:
        """End all workers, and show what they said if the test fails."""
        for one in self._programs:
            with suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait(DEADLINE_S)
        self.source.close()
        print(self.log())


def _shortened(setting: re.Match[str]) -> str:
    return f"{setting[1]} = {SHORT[setting[1]]}"
