"""Run the campaigns of this project: `python -m fencelock_lab.campaigns`.

    python -m fencelock_lab.campaigns [--schedule NAME]… [--seed N] [--duration S] [--page FILE]
    python -m fencelock_lab.campaigns --minutes N [--schedule NAME]…
    python -m fencelock_lab.campaigns --list

Without --minutes each schedule runs once, and --page writes what came out. With it the schedules share that time in
turns, the shortest first, with fresh seeds, again and again; a schedule does not begin if it would not end in time.

Promise: exits with 0 if all are clean, 1 if one found a violation, 69 if one could not be carried out, 2 if too little
happened in one. A failure is printed with its seed, and its history is kept.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from fencelock import FencelockError
from fencelock.cli.plugin import UNAVAILABLE
from fencelock_lab.campaigns.files import set_aside
from fencelock_lab.campaigns.report import story
from fencelock_lab.campaigns.schedules import FAULTS, SCHEDULES, CampaignSchedule, run_schedule
from fencelock_lab.campaigns.signals import exit_by_cleaning_up
from fencelock_lab.campaigns.summary import CampaignFinding, page, version_of
from fencelock_lab.campaigns.verdict import CLEAN, NAMES, NOT_ENOUGH, VIOLATION

USUAL_DURATION_S = 60.0
OVERHEAD_S = 15.0
"""What servers need to start and processes to come to rest, on a machine on which a schedule has not run yet."""
_SECONDS_PER_MINUTE = 60
_WORST_FIRST = (VIOLATION, UNAVAILABLE, NOT_ENOUGH, CLEAN)


class Runs:
    """The runs so far: what they found, how long each schedule takes, and the worst exit code."""

    def __init__(self, seed: int | None = None) -> None:
        self.findings: list[CampaignFinding] = []
        self.seconds: dict[str, float] = {}
        self._seed = seed
        self._codes = {CLEAN}

    @property
    def code(self) -> int:
        """The exit code of them all."""
        return next(code for code in _WORST_FIRST if code in self._codes)

    def run(self, schedule: CampaignSchedule, duration: float | None = None) -> None:
        """Run a schedule once, and print what came out."""
        began = time.monotonic()
        versions: list[str] = []
        with tempfile.TemporaryDirectory(prefix="fencelock-campaign-") as folder:
            history = Path(folder, "history.jsonl")
            try:
                outcome = run_schedule(
                    schedule,
                    history,
                    seed=self._seed,
                    duration=duration,
                    warn=_print,
                    started=lambda url: versions.append(version_of(url)),
                )
            except FencelockError as error:
                self._codes.add(UNAVAILABLE)
                _print(f"{schedule.name}: could not be carried out: {error}")
                return
            finally:
                self.seconds[schedule.name] = time.monotonic() - began
            self._codes.add(outcome.verdict.code)
            self.findings.append(CampaignFinding(outcome, *versions))
            took = f"{self.seconds[schedule.name]:.0f} s"
            _print(f"{schedule.name}: {NAMES[outcome.verdict.code]} (seed {outcome.seed}, {took})")
            if outcome.verdict.code != CLEAN:
                _print(story(outcome.verdict))
                _print(f"the history is in {set_aside(history)}")

    def expected(self, schedule: CampaignSchedule) -> float:
        """Return how many seconds a run of the schedule should take."""
        return self.seconds.get(schedule.name, schedule.duration + OVERHEAD_S)


def share(runs: Runs, schedules: Iterable[CampaignSchedule], minutes: float) -> None:
    """Run the schedules in turns for so many minutes, the shortest first."""
    end = time.monotonic() + minutes * _SECONDS_PER_MINUTE
    waiting = list(schedules)
    has_begun = True
    while has_begun:
        has_begun = False
        for schedule in sorted(waiting, key=runs.expected):
            if time.monotonic() + runs.expected(schedule) <= end:
                has_begun = True
                runs.run(schedule)
    for schedule in waiting:
        if schedule.name not in runs.seconds:
            _print(f"{schedule.name}: not run, it would take {runs.expected(schedule):.0f} s")


def run_once(runs: Runs, schedules: Iterable[CampaignSchedule], duration: float) -> None:
    """Run each schedule once; the duration is for those that have no script of their own."""
    for schedule in schedules:
        runs.run(schedule, None if schedule.group == FAULTS else max(duration, schedule.duration))


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m fencelock_lab.campaigns", description=__doc__.split("\n")[0])
    parser.add_argument("--schedule", action="append", choices=list(SCHEDULES), help="only this one; may be repeated")
    parser.add_argument("--minutes", type=float, help="share so many minutes over the schedules in turns")
    parser.add_argument("--duration", type=float, default=USUAL_DURATION_S, help="seconds of each attack")
    parser.add_argument("--seed", type=int, help="draw the faults from this number")
    parser.add_argument("--page", type=Path, help="write what came out to this file, as Markdown")
    parser.add_argument("--list", action="store_true", help="list the schedules")
    wanted = parser.parse_args()
    schedules = [SCHEDULES[name] for name in wanted.schedule or SCHEDULES]
    if wanted.list:
        _print("\n".join(f"{one.name:<22} {one.group}" for one in schedules))
        return CLEAN
    exit_by_cleaning_up()
    runs = Runs(wanted.seed)
    if wanted.minutes is not None:
        share(runs, schedules, wanted.minutes)
    else:
        run_once(runs, schedules, wanted.duration)
    if wanted.page is not None:
        wanted.page.write_text(page(runs.findings))
    return runs.code


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
