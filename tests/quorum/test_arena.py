"""The judgement of the workers' journals: it accepts a healthy source's, and rejects each planted fault."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.quorum.arena import Arena, in_folder

HEALTHY: list[list[Any]] = [
    ["worker-0", "ask", 1.0],
    ["worker-0", "granted", 1.1, 10],
    ["worker-0", "valid", 1.21, 10, 1.2],
    ["worker-0", "writing", 1.3, 10, 1],
    ["worker-1", "ask", 1.3],
    ["worker-0", "written", 1.4, 10, 1],
    ["worker-1", "granted", 2.0, 20],
    ["worker-1", "valid", 2.11, 20, 2.1],
    ["worker-1", "writing", 2.2, 20, 2],
    ["worker-1", "written", 2.3, 20, 2],
]


def judge(folder: Path, journal: list[list[Any]], rows: list[tuple[int, int]], counter: int) -> None:
    """Judge a journal and a table's content as if workers had left them."""
    table = in_folder(folder)
    table.prepare = lambda: None  # type: ignore[method-assign]
    table.execute("CREATE TABLE counter (value INTEGER)")
    table.execute(f"INSERT INTO counter VALUES ({counter})")
    table.execute("CREATE TABLE history (value INTEGER, token INTEGER)")
    for row in rows:
        table.execute(f"INSERT INTO history VALUES {row}")
    arena = Arena("unused://", table, folder, 1.0)
    for worker, *line in journal:
        arena._workers.setdefault(worker, None)  # type: ignore[arg-type]
        with (folder / f"{worker}.journal").open("a") as written:
            written.write(json.dumps(line) + "\n")
    arena.check()


def test_a_healthy_history_is_accepted(tmp_path: Path) -> None:
    judge(tmp_path, HEALTHY, [(1, 10), (2, 20)], 2)


def test_a_write_without_an_answer_may_have_happened_or_not(tmp_path: Path) -> None:
    unknown = [*HEALTHY, ["worker-1", "writing", 2.4, 20, 3]]
    judge(tmp_path, unknown, [(1, 10), (2, 20), (3, 20)], 3)


@pytest.mark.parametrize(
    ("journal", "rows", "counter", "verdict"),
    [
        ([*HEALTHY, ["worker-0", "ask", 3.0], ["worker-0", "granted", 3.1, 20]], [(1, 10), (2, 20)], 2, "twice"),
        ([*HEALTHY, ["worker-0", "ask", 3.0], ["worker-0", "granted", 3.1, 15]], [(1, 10), (2, 20)], 2, "after 20"),
        ([*HEALTHY, ["worker-0", "valid", 3.0, 10, 2.5]], [(1, 10), (2, 20)], 2, "thought valid"),
        (HEALTHY, [(1, 10), (1, 20)], 1, "an update was lost"),
        (HEALTHY, [(1, 20), (2, 10)], 2, "lower token wrote"),
        (HEALTHY, [(1, 10)], 1, "acknowledged write is lost"),
        (HEALTHY, [(1, 10), (2, 20), (3, 20)], 3, "somebody else"),
    ],
)
def test_each_fault_is_found(
    tmp_path: Path, journal: list[list[Any]], rows: list[tuple[int, int]], counter: int, verdict: str
) -> None:
    with pytest.raises(AssertionError, match=verdict):
        judge(tmp_path, journal, rows, counter)


@pytest.mark.process
def test_workers_take_turns_on_a_healthy_source(tmp_path: Path) -> None:
    # The clock of a SQLite source is its clients' own, so they must have the same.
    rates = (1.0, 1.0, 1.0)
    with Arena(f"sqlite:///{tmp_path / 'locks.db'}", in_folder(tmp_path), tmp_path, 1.0, rates) as arena:
        arena.wait_for_turns(6)
    arena.check()
    assert arena.lines("written")
