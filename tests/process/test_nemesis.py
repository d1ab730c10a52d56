"""32 processes on one lock and one guarded counter, while a nemesis freezes and kills them: nothing acknowledged is
lost.
"""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

import fencelock

WORKERS = 32
DURATION_S = 20.0
MAX_DURATION_S = 90.0
MIN_ACKNOWLEDGED = 50
FREEZE_S = (0.05, 1.5)
"""From shorter than a lease to more than twice its length (`nemesis_worker.TTL_S`)."""


class Worker(NamedTuple):
    name: str
    process: subprocess.Popen[bytes]


class Arena:
    """The files, the workers, and what was done to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.locks = f"sqlite:///{folder / 'locks.db'}"
        self.app = f"sqlite:///{folder / 'app.db'}"
        self.workers: dict[str, Worker] = {}
        self.killed: set[str] = set()
        self.freezes = 0
        self._started = 0

    def prepare(self) -> None:
        connection = sqlite3.connect(self.folder / "app.db")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(
            "CREATE TABLE counter (value INTEGER NOT NULL); INSERT INTO counter VALUES (0);"
            "CREATE TABLE history (number INTEGER PRIMARY KEY AUTOINCREMENT, value INTEGER NOT NULL,"
            " worker TEXT NOT NULL, sequence INTEGER NOT NULL, token INTEGER NOT NULL)"
        )
        connection.close()
        fencelock.guard(self.app, resource="counter", lock="counter").protect("counter", "history")

    def start(self) -> None:
        name = f"worker-{self._started}"
        self._started += 1
        command = [sys.executable, "-m", "tests.process.nemesis_worker", self.locks, self.app]
        process = subprocess.Popen([*command, str(self.folder / f"{name}.journal"), name])
        self.workers[name] = Worker(name, process)

    def kill(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.process.kill()
        worker.process.wait()
        self.killed.add(name)

    def journal(self, name: str) -> list[list[str]]:
        path = self.folder / f"{name}.journal"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def acknowledged(self) -> int:
        """Return how many increments were acknowledged so far."""
        journals = [self.journal(name) for name in {*self.workers, *self.killed}]
        return sum(verdict == "ok" for journal in journals for verdict, *_ in journal)


def torment(arena: Arena, chance: random.Random) -> None:
    """Freeze and kill at random for DURATION_S, on a busy machine until enough has happened; whoever is frozen wakes,
    whoever is killed is replaced.
    """
    begun = time.monotonic()
    frozen: list[tuple[float, Worker]] = []
    while (passed := time.monotonic() - begun) < DURATION_S or (
        passed < MAX_DURATION_S and arena.acknowledged() < MIN_ACKNOWLEDGED
    ):
        time.sleep(chance.uniform(0.01, 0.1))
        for wake_at, worker in [entry for entry in frozen if entry[0] <= time.monotonic()]:
            worker.process.send_signal(signal.SIGCONT)
            frozen.remove((wake_at, worker))
        victim = chance.choice(
            [worker for worker in arena.workers.values() if worker not in [one for _, one in frozen]]
        )
        if chance.random() < 0.15:
            arena.kill(victim.name)
            arena.start()
        elif len(frozen) < WORKERS // 4:
            victim.process.send_signal(signal.SIGSTOP)
            arena.freezes += 1
            frozen.append((time.monotonic() + chance.uniform(*FREEZE_S), victim))
    for _, worker in frozen:
        worker.process.send_signal(signal.SIGCONT)


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_no_acknowledged_increment_is_lost_under_freezes_and_kills(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4))
    arena = Arena(tmp_path)
    arena.prepare()
    for _ in range(WORKERS):
        arena.start()
    try:
        torment(arena, random.Random(seed))
    finally:
        for name in list(arena.workers):
            arena.kill(name)
    check(arena, f"seed {seed}, {arena.freezes} freezes, {len(arena.killed) - WORKERS} kills")


def check(arena: Arena, story: str) -> None:
    connection = sqlite3.connect(arena.folder / "app.db")
    (value,) = connection.execute("SELECT value FROM counter").fetchone()
    history = connection.execute("SELECT value, worker, sequence, token FROM history ORDER BY number").fetchall()
    connection.close()

    # The counter is the history: each write added 1 to what the one before it left.
    assert [row[0] for row in history] == list(range(1, value + 1)), story
    tokens = [row[3] for row in history]
    assert tokens == sorted(tokens), f"a lower token wrote after a higher one; {story}"
    holders = {(row[3], row[1]) for row in history}
    assert max(Counter(token for token, _ in holders).values(), default=0) <= 1, f"two workers under one token; {story}"

    written = {(row[1], row[2]) for row in history}
    acknowledged, refused, unknown = set(), set(), set()
    for name in arena.killed:
        for verdict, sequence, *_ in arena.journal(name):
            {"ok": acknowledged, "refused": refused, "unknown": unknown}[verdict].add((name, int(sequence)))
    assert acknowledged <= written, f"an acknowledged increment is lost; {story}"
    assert len(acknowledged) >= MIN_ACKNOWLEDGED, f"too little happened to prove anything: {len(acknowledged)}; {story}"
    # What stands in the file without having been acknowledged: one transaction of each killed worker at most, and
    # work that was done when its lease was lost.
    silent = Counter(name for name, _ in written - acknowledged - refused - unknown)
    assert all(count == 1 for count in silent.values()), f"{silent}; {story}"
