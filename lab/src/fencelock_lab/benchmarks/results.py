"""The results of one subject as a file, which is written whole or not at all, and read for the page.

The files are kept in the repository, so that every figure in the documents comes from a file.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fencelock_lab.benchmarks.measure import Measurement
from fencelock_lab.benchmarks.parts import SUBJECTS
from fencelock_lab.kept_results import machine, write_results

FOLDER = Path("lab") / "results"


@dataclass(slots=True)
class Report:
    """The results of one subject. `failed` says why a part has none."""

    subject: str
    title: str
    seconds: float = 0.0
    machine: str = field(default_factory=machine)
    measured: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    results: list[Measurement] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def find(self, case: str) -> list[Measurement]:
        """Return the results of one case."""
        return [result for result in self.results if result.case == case]


def write(report: Report, folder: Path) -> Path:
    """Write a report in place of the last one."""
    content = asdict(report)
    del content["results"]
    path = folder / f"{report.subject}.json"
    write_results(path, content, (result.as_json() for result in report.results))
    return path


def read(path: Path) -> Report:
    """Read a report."""
    content = json.loads(path.read_text())
    return Report(**{**content, "results": [Measurement(**each) for each in content["results"]]})


def read_all(folder: Path) -> list[Report]:
    """Read all reports, in the order of the subjects."""
    return [read(path) for path in (folder / f"{subject}.json" for subject in SUBJECTS) if path.exists()]


def by_variant(results: Iterable[Measurement]) -> dict[str, Measurement]:
    """Return results by the names of their variants."""
    return {result.variant: result for result in results}
