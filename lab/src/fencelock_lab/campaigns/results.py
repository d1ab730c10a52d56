"""What a run of the campaigns found, as a file, from which `docs/explanation/verified.md` is written.

Promise: the file names the commit, the command, the time and the machine, and each campaign's seed and verdict.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fencelock_lab.campaigns.schedules import SCHEDULES, CampaignOutcome
from fencelock_lab.campaigns.verdict import NAMES
from fencelock_lab.kept_results import machine, write_results

FILE = Path("lab") / "results" / "verified.json"


@dataclass(frozen=True, slots=True)
class CampaignFinding:
    """The last run of a schedule, or the first that shows a violation.

    `version` is of the store that held the resources, `told` the verdict with its amounts, and `verdicts` those of all
    runs of this schedule: a campaign in which too little happened runs again.
    """

    schedule: str
    group: str
    version: str
    seed: int
    told: Mapping[str, Any]
    verdicts: tuple[str, ...]


@dataclass(slots=True)
class CampaignReport:
    """What a run of the campaigns found. `missing` says of the other schedules why nothing is known of them."""

    commit: str = "unknown"
    command: str = "unknown"
    measured: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    machine: str = field(default_factory=machine)
    seconds: float = 0.0
    missing: dict[str, str] = field(default_factory=lambda: dict.fromkeys(SCHEDULES, "has not run yet"))
    results: dict[str, CampaignFinding] = field(default_factory=dict)

    def keep(self, outcome: CampaignOutcome, version: str) -> None:
        """Keep the last run of a schedule, or the first that shows a violation."""
        name, told = outcome.schedule.name, outcome.verdict.to_json()
        self.missing.pop(name, None)
        last = self.results.get(name)
        verdicts = (*(last.verdicts if last else ()), NAMES[outcome.verdict.code])
        if last is not None and last.told["violations_in_all"]:
            version, seed, told = last.version, last.seed, dict(last.told)
        else:
            seed = outcome.seed
        self.results[name] = CampaignFinding(name, outcome.schedule.group, version, seed, told, verdicts)


def write(report: CampaignReport, path: Path) -> None:
    """Write a report in place of the last one."""
    content = asdict(report)
    results = content.pop("results").values()
    write_results(path, content, results)


def read(path: Path) -> CampaignReport:
    """Read a report."""
    content = json.loads(path.read_text())
    results = [CampaignFinding(**{**each, "verdicts": tuple(each["verdicts"])}) for each in content["results"]]
    return CampaignReport(**{**content, "results": {one.schedule: one for one in results}})
