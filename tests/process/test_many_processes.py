"""T1 with many processes on one file: no token twice, and each higher than every one that was committed before it."""

import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.helpers import wait_until
from tests.support.sources import Client, installed, rows

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
BLOCK = 50
Start = Callable[..., subprocess.Popen[bytes]]
Herd = Callable[..., list[tuple[str, int]]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def start(path: Path) -> Iterator[Start]:
    """Start scripts of this folder, whose output is added to a file that others write as well."""
    running = []

    def run(script: str, output: Path, **settings: Any) -> subprocess.Popen[bytes]:
        told = json.dumps({"url": f"sqlite:///{path}", **settings})
        with output.open("ab") as file:
            running.append(subprocess.Popen([sys.executable, "-P", HERE / script, told], stdout=file))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.wait()


@pytest.fixture
def herd(start: Start, tmp_path: Path) -> Herd:
    """Run herds to their end, and return the source ids and tokens that they were told."""

    def run(**settings: Any) -> list[tuple[str, int]]:
        output = tmp_path / f"herd-{time.monotonic_ns()}"
        assert start("herd.py", output, **settings).wait(100) == 0
        lines = output.read_text().splitlines()
        assert [line for line in lines if not line.replace(" ", "").isalnum()] == []  # No error.
        return [(source_id, int(token)) for source_id, token in map(str.split, lines)]

    return run


# --- commit order ---
def log_of_commits(path: Path) -> None:
    """Have the file itself note each token that is spent, in the transaction that spends it."""
    installed(path)
    rows(path, "create table commits (number integer primary key, lock text, token integer)")
    for event in ("insert", "update of token"):
        rows(
            path,
            f"create trigger commits_{event[:6]} after {event} on fencelock_lock "
            "begin insert into commits (lock, token) values (new.name, new.token); end",
        )


def test_t1_tokens_grow_in_the_order_of_the_commits_and_of_the_holders(
    path: Path, tmp_path: Path, start: Start
) -> None:
    log_of_commits(path)
    told = tmp_path / "told"
    locks = [["a", "b", "c"], ["b", "c", "a"], ["c", "a"], ["a"]]
    processes = [start("granter.py", told, locks=names, count=200, block=BLOCK) for names in locks]
    wait_until(lambda: told.exists() and told.read_text().count("done\n") == len(processes))
    for process in processes:
        process.terminate()
        assert process.wait() == 0
    holders = [line.split() for line in told.read_text().splitlines() if line != "done"]
    tokens = sorted(int(token) for _, token in holders)
    assert tokens == list(range(1, 200 * len(processes) + 1))  # Each once, and none was lost.
    committed = [token for (token,) in rows(path, "select token from commits order by number")]
    assert committed == tokens
    by_lock: dict[str, list[int]] = defaultdict(list)
    for lock, token in holders:  # Written while the lock was held, by all processes into one file.
        by_lock[lock].append(int(token))
    assert all(held == sorted(held) for held in by_lock.values())


def test_t1_processes_that_are_killed_and_started_again_get_new_tokens(
    path: Path, tmp_path: Path, start: Start
) -> None:
    told = tmp_path / "told"
    moments = random.Random(1)
    running: list[subprocess.Popen[bytes]] = []
    for turn in range(12):
        running.append(start("granter.py", told, locks=[f"lock {turn % 2}", f"own {turn}"], block=BLOCK, ttl=1.0))
        if len(running) == 3:
            enough = (told.stat().st_size if told.exists() else 0) + moments.randrange(200, 3000)
            wait_until(lambda: told.exists() and told.stat().st_size > enough)  # noqa: B023 - called at once
            killed = running.pop(moments.randrange(3))
            killed.kill()
            killed.wait()
    for process in running:
        process.kill()
        process.wait()
    tokens = [int(line.split()[-1]) for line in told.read_text().splitlines()]
    assert len(tokens) == len(set(tokens)) > 100
    assert Client(path).one_token() > max(tokens)


# --- everybody at once ---
@pytest.mark.reduced
def test_t1_32_processes_open_a_new_file_at_once_and_make_one_source(path: Path, herd: Herd) -> None:
    told = herd(count=32, turns=3)
    assert len({source_id for source_id, _ in told}) == 1
    assert sorted(token for _, token in told) == list(range(1, 97))
    assert rows(path, "select count(*) from fencelock_source") == [(1,)]


def test_t1_many_processes_after_a_reboot_skip_to_the_bound_once(path: Path, herd: Herd) -> None:
    before = herd(count=2, turns=2, boot_id="one")
    (bound,) = rows(path, "select reserved from fencelock_source")[0]
    after = herd(count=16, turns=2, boot_id="two")
    assert sorted(token for _, token in after) == list(range(bound + 1, bound + 33))
    assert {source_id for source_id, _ in before} == {source_id for source_id, _ in after}


def test_t1_programs_that_open_and_close_get_in_nobodys_way(herd: Herd) -> None:
    """The last connection to close takes the log away while the next one opens: neither loses anything by it."""
    told = herd(count=8, turns=25, reopens=True)
    assert sorted(token for _, token in told) == list(range(1, 201))


@pytest.mark.reduced
def test_t1_a_process_with_many_connections_keeps_its_log_beside_short_lived_ones(
    tmp_path: Path, start: Start, herd: Herd
) -> None:
    """Each connection that a process opens or closes must leave the locks of its others alone."""
    lasting = tmp_path / "lasting"
    process = start("herd.py", lasting, count=1, turns=300, threads=4)
    wait_until(lambda: lasting.exists() and lasting.stat().st_size)
    short = herd(count=2, turns=40, reopens=True)
    assert process.wait(60) == 0
    tokens = [token for _, token in short] + [int(line.split()[1]) for line in lasting.read_text().splitlines()]
    assert sorted(tokens) == list(range(1, 1281))


# --- forks ---
def test_t1_children_of_children_get_tokens_of_their_own(path: Path, tmp_path: Path) -> None:
    """A connection that a child opens is closed before the child's own fork, as its parent's was."""
    code = """
import os, sys
import fencelock

source = fencelock.connect(sys.argv[1])
held = []
for generation in range(4):
    lease = source.lock(f"lock {generation}", ttl=60).acquire()
    open_files = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)]
    assert any("locks.db" in name for name in open_files)
    held.append(lease)
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        with source.lock("again") as again:
            print(again.token, lease.token, flush=True)
        os._exit(0)
    inherited = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)]
    assert not any("locks.db" in name and "wake" not in name for name in inherited), inherited
"""
    told = tmp_path / "told"
    with told.open("ab") as file:
        subprocess.run([sys.executable, "-c", code, f"sqlite:///{path}"], stdout=file, check=True, timeout=60)
    tokens = [int(token) for line in told.read_text().splitlines() for token in line.split()]
    assert len(tokens) == 8
    assert len(set(tokens)) == 8
