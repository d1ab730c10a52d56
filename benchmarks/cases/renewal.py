"""What it costs to keep 1, 100 and 10 000 leases of 10 s: the share of one core, and the memory of each."""

import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Result, summarise

COUNTS = (1, 100, 10_000)


def run(folder: Path, scale: float) -> list[Result]:
    """Measure renewal and memory, each count in a process of its own."""
    results = []
    for count in COUNTS:
        seconds = str(10 + 20 * scale)
        command = [sys.executable, "-m", "benchmarks.cases.renewal_worker", f"sqlite:///{folder / f'{count}.db'}"]
        output = subprocess.run([*command, str(count), seconds], stdout=subprocess.PIPE, text=True, check=True).stdout
        share_percent, bytes_each = map(float, output.split())
        name = f"{count} leases" if count > 1 else "1 lease"
        results.append(summarise("renewal, ttl 10 s", name, "% of a core", [share_percent], target="3 %"))
        if count == max(COUNTS):
            results.append(summarise("memory", "a held lease", "bytes", [bytes_each], target="2048 bytes"))
    return results
