"""Write what came out as Markdown for people and as JSON for machines."""

import json
import platform
import sqlite3
from itertools import groupby
from pathlib import Path

from benchmarks.measure import Result


def machine() -> dict[str, str]:
    """Return what must be known to read the numbers."""
    cores = Path("/proc/cpuinfo").read_text().count("processor\t")
    return {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version, "cores": str(cores)}


def as_markdown(every: list[Result]) -> str:
    """Return one table a case."""
    facts = ", ".join(f"{name} {value}" for name, value in machine().items())
    parts = ["# Benchmarks", f"Measured with {facts}. Compare ratios; the other numbers are this machine's."]
    for case, group in groupby(every, key=lambda result: result.case):
        parts.append(f"## {case}")
        results = list(group)
        last = "what it does without" if any(result.lacks for result in results) else "to reach"
        rows = [f"| variant | median | quartiles | ratio | {last} |", "|---|---|---|---|---|"]
        rows += [_row(result) for result in results]
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _row(result: Result) -> str:
    ratio = "" if result.ratio is None else f"{result.ratio:.2f}x"
    spread = f"{result.low:.4g} to {result.high:.4g}"
    last = result.lacks or result.target
    return f"| {result.variant} | {result.median:.4g} {result.unit} | {spread} | {ratio} | {last} |"


def as_json(results: list[Result]) -> str:
    """Return the results, and what they were measured with."""
    return json.dumps({"machine": machine(), "results": [result.as_json() for result in results]}, indent=1) + "\n"
