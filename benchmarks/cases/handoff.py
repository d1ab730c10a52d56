"""From one process's release to the next one's return, with 2, 8 and 32 processes in the queue."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from benchmarks.measure import Result, summarise

PROCESSES = (2, 8, 32)


def run(folder: Path, scale: float) -> list[Result]:
    """Measure hand-offs between processes."""
    return [_queue(folder / f"locks-{count}.db", count, 1.0 + 4.0 * scale) for count in PROCESSES]


def _queue(path: Path, count: int, seconds: float) -> Result:
    command = [sys.executable, "-m", "benchmarks.cases.handoff_worker", f"sqlite:///{path}", str(seconds)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    tenures = sorted(
        tuple(map(int, line.split())) for worker in workers for line in worker.communicate()[0].splitlines()
    )
    gaps_ms = [(later[1] - earlier[2]) / 1e6 for earlier, later in pairwise(tenures)]
    return summarise("hand-off", f"{count} processes", "ms", gaps_ms, target="5 ms")
