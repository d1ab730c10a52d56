"""Several workers on one lock and one guarded counter while a test makes servers fail, and the judgement of it all."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import fencelock
from tests.helpers import wait_until
from tests.quorum.worker import LOCK

RATES = (1.0, 1.0, 1.1, 0.9)
"""How fast each worker's clock goes: a lease's margin, a tenth of its ttl, is for clocks that are wrong by so much."""
RECOVERY_S = 60.0
"""How long the workers may take to go on after a fault has ended; a session that died must run out first."""
SCHEMA = (
    "CREATE TABLE counter (value INTEGER NOT NULL)",
    "INSERT INTO counter VALUES (0)",
    "CREATE TABLE history (value INTEGER NOT NULL, worker VARCHAR(64) NOT NULL, token BIGINT NOT NULL)",
)


class Line(NamedTuple):
    """One line of a journal."""

    worker: str
    what: str
    at: float
    details: list[Any]


class Table:
    """Where the guarded counter is: a SQLite file, or a database on a server."""

    def __init__(self, url: str, execute: Callable[[str], list[tuple[Any, ...]]]) -> None:
        self.url = url
        self.execute = execute

    @classmethod
    def in_file(cls, path: Path) -> "Table":
        def execute(statement: str) -> list[tuple[Any, ...]]:
            connection = sqlite3.connect(path, isolation_level=None)
            try:
                return connection.execute(statement).fetchall()
            finally:
                connection.close()

        return cls(f"sqlite:///{path}", execute)

    def prepare(self) -> None:
        """Make the tables, and have them protected."""
        for statement in SCHEMA:
            self.execute(statement)
        fencelock.guard(self.url, resource=LOCK, lock=LOCK).protect("counter", "history")


class Arena:
    """The workers, which run as long as the block. `source` is the quorum's URL, `ttl` in seconds."""

    def __init__(self, source: str, table: Table, folder: Path, ttl: float, rates: tuple[float, ...] = RATES) -> None:
        self._source = source
        self._table = table
        self._folder = folder
        self._ttl = ttl
        self._rates = rates
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self._table.prepare()
        for number, rate in enumerate(self._rates):
            name = f"worker-{number}"
            command = [sys.executable, "-m", "tests.quorum.worker", self._source, self._table.url]
            command += [str(self._journal(name)), name, str(self._ttl), str(rate)]
            self._workers[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers.values():
            worker.kill()
            worker.wait()

    def _journal(self, name: str) -> Path:
        return self._folder / f"{name}.journal"

    def lines(self, *kinds: str) -> list[Line]:
        """Return what the workers wrote down until now, oldest first, of these kinds."""
        found = []
        for name in self._workers:
            path = self._journal(name)
            for text in path.read_text().splitlines() if path.exists() else ():
                what, at, *details = json.loads(text)
                found.append(Line(name, what, at, details))
        return sorted((line for line in found if not kinds or line.what in kinds), key=lambda line: line.at)

    def wait_for_turns(self, count: int = 2) -> None:
        """Wait until at least two workers have written under `count` new tokens each in turn, from now on."""
        since = time.clock_gettime(time.CLOCK_BOOTTIME)

        def has_gone_on() -> bool:
            for name, worker in self._workers.items():
                assert worker.poll() is None, f"{name} ended: {self.story()}"
            written = [line for line in self.lines("granted", "written") if line.at > since]
            granted = {line.details[0] for line in written if line.what == "granted"}
            turns = {line.details[0] for line in written if line.what == "written"} & granted
            return len(turns) >= count and len({line.worker for line in written}) > 1

        try:
            wait_until(has_gone_on, RECOVERY_S)
        except AssertionError:
            raise AssertionError(f"nobody goes on: {self.story()}") from None

    def story(self) -> str:
        """Return the end of what happened, for a failure's message."""
        return "\n".join(f"{line.at:.3f} {line.worker} {line.what} {line.details}" for line in self.lines()[-60:])

    def check(self, overlap_s: float = 0.0) -> None:
        """Judge what happened; to be called after the block. `overlap_s`: what the store is known to do wrong, which
        is for how long a holder may not know that the lock was given to another.
        """
        self._check_tokens()
        self._check_beliefs(overlap_s)
        self._check_writes()

    def _check_tokens(self) -> None:
        """No token twice, and none below one that was granted before it was asked for (T1, T4)."""
        asked: dict[str, float] = {}
        grants: list[tuple[float, float, int]] = []
        for line in self.lines("ask", "granted"):
            if line.what == "ask":
                asked[line.worker] = line.at
            else:
                grants.append((asked[line.worker], line.at, line.details[0]))
        tokens = [token for _, _, token in grants]
        assert len(set(tokens)) == len(tokens), f"a token was granted twice\n{self.story()}"
        for asked_at, _, token in grants:
            earlier = [other for _, granted_at, other in grants if granted_at < asked_at]
            assert token > max(earlier, default=0), f"token {token} was granted after {max(earlier)}\n{self.story()}"

    def _check_beliefs(self, overlap_s: float) -> None:
        """Whoever had the lock knew that it was over before the next one had it: a loss is told in time (H1, H3)."""
        granted = {line.details[0]: line.at for line in self.lines("granted")}
        believed: dict[int, float] = {}
        for line in self.lines("valid"):
            token, at = line.details
            believed[token] = max(at, believed.get(token, 0.0))
        for token, following in pairwise(sorted(granted)):
            last_at = believed.get(token, 0.0)
            assert last_at < granted[following] + overlap_s, (
                f"token {token} was thought valid {last_at - granted[following]:.3f} s after {following} was granted"
                f"\n{self.story()}"
            )

    def _check_writes(self) -> None:
        """No acknowledged write is lost, and none was computed from what another has overwritten (G1, G2)."""
        ((value,),) = self._table.execute("SELECT value FROM counter")
        history = self._table.execute("SELECT value, token FROM history ORDER BY value")
        assert [row[0] for row in history] == list(range(1, value + 1)), f"an update was lost\n{self.story()}"
        tokens = [row[1] for row in history]
        assert tokens == sorted(tokens), f"a lower token wrote after a higher one\n{self.story()}"
        acknowledged = {tuple(reversed(line.details)) for line in self.lines("written")}
        assert acknowledged <= {tuple(row) for row in history}, f"an acknowledged write is lost\n{self.story()}"
        begun = {tuple(reversed(line.details)) for line in self.lines("writing")}
        assert {tuple(row) for row in history} <= begun, "somebody else has written"


def in_folder(folder: Path) -> Table:
    """Return a table in a new file of `folder`."""
    return Table.in_file(folder / f"app-{os.urandom(4).hex()}.db")
