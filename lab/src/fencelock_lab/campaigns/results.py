"""What a run of the campaigns found, as a file, from which `docs/explanation/verified.md` is written.

Promise: the file names each campaign's seed and verdict, and the commit, the command, the time and the machine of its
run. A run replaces what is known of its own schedules, and of no others.
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
class CampaignRun:
    """One call of the program: what was attacked, by which command, when, and on which machine."""

    commit: str = "unknown"
    command: str = "unknown"
    measured: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))
    machine: str = field(default_factory=machine)


@dataclass(frozen=True, slots=True)
class CampaignFinding:
    """The last run of a schedule, or the first that shows a violation.

    `version` is of the store that held the resources, `told` the verdict with its amounts, and `verdicts` those of all
    attacks on this schedule in `run`: a campaign in which too little happened runs again.
    """

    schedule: str
    group: str
    version: str
    seed: int
    told: Mapping[str, Any]
    verdicts: tuple[str, ...]
    run: CampaignRun


@dataclass(slots=True)
class CampaignReport:
    """What is known of each schedule: of this run, and of former ones for the schedules that this one leaves alone.

    `missing` says of the other schedules why nothing is known of them.
    """

    run: CampaignRun = field(default_factory=CampaignRun)
    missing: dict[str, str] = field(default_factory=lambda: dict.fromkeys(SCHEDULES, "has not run yet"))
    results: dict[str, CampaignFinding] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    """The schedules of this run."""

    def add_former(self, report: "CampaignReport") -> None:
        """Take over what other runs have found at the schedules that this one leaves alone, if they still exist."""
        for name, one in report.results.items():
            if name in SCHEDULES and name not in self.tried:
                self.results[name] = one
                self.missing.pop(name, None)

    def keep(self, outcome: CampaignOutcome, version: str) -> None:
        """Keep the last run of a schedule, or the first that shows a violation."""
        name, told = outcome.schedule.name, outcome.verdict.to_json()
        self.missing.pop(name, None)
        last = self.results.get(name) if name in self.tried else None
        self.tried.add(name)
        verdicts = (*(last.verdicts if last else ()), NAMES[outcome.verdict.code])
        if last is not None and last.told["violations_in_all"]:
            version, seed, told = last.version, last.seed, dict(last.told)
        else:
            seed = outcome.seed
        group = outcome.schedule.group
        self.results[name] = CampaignFinding(name, group, version, seed, told, verdicts, self.run)

    def lack(self, name: str, reason: str) -> None:
        """Note that a schedule could not be carried out; what a former run has found says nothing about this one."""
        self.missing[name] = reason
        if name not in self.tried:
            self.results.pop(name, None)
        self.tried.add(name)


def write(report: CampaignReport, path: Path) -> None:
    """Write a report in place of the last one, in the order of the schedules."""
    order = [*SCHEDULES, *report.results]
    results = sorted(report.results.values(), key=lambda one: order.index(one.schedule))
    write_results(path, {"missing": report.missing}, map(asdict, results))


def read(path: Path) -> CampaignReport:
    """Read a report."""
    content = json.loads(path.read_text())
    report = CampaignReport(missing=content["missing"])
    for each in content["results"]:
        given = {"verdicts": tuple(each["verdicts"]), "run": CampaignRun(**each["run"])}
        report.results[each["schedule"]] = CampaignFinding(**each | given)
    return report
