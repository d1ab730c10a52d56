"""What it costs to keep 10 000 leases of 10 s on PostgreSQL: the share of one core in the process that holds them."""

import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Result, summarise
from benchmarks.postgres import private_server

COUNTS = (1, 10_000)


def run(_folder: Path, scale: float) -> list[Result]:
    """Measure renewal, each count in a process of its own."""
    results = []
    with private_server() as url:
        for count in COUNTS:
            command = [sys.executable, "-m", "benchmarks.cases.renewal_worker", url, str(count), str(10 + 20 * scale)]
            output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            share_percent = float(output.split()[0])
            name = f"{count} leases" if count > 1 else "1 lease"
            case = "PostgreSQL: renewal, ttl 10 s"
            results.append(summarise(case, name, "% of a core", [share_percent], target="3 %"))
    return results
