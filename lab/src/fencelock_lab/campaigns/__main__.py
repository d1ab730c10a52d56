"""Run the campaigns of this project: `python -m fencelock_lab.campaigns`.

    python -m fencelock_lab.campaigns [--schedule NAME]… [--seed N] [--duration S] [--page FILE]
    python -m fencelock_lab.campaigns --minutes N [--schedule NAME]…
    python -m fencelock_lab.campaigns --list

Without --minutes each schedule runs once, or again if too little happened. With it the schedules share that time in
turns, the shortest first, with fresh seeds, again and again; a schedule does not begin if it would not end in time.
--write writes what came out, after each run: to lab/results/verified.json, and from it docs/explanation/verified.md.
What they say of schedules that this run leaves alone stays.
--publish runs nothing, and writes the page from that file again.

Promise: exits with 0 if all are clean, 1 if one found a violation, 69 if one could not be carried out, 2 if too little
happened in one. A failure is printed with its seed, and its history is kept. The page names each schedule that it says
nothing about, and why.
"""

import argparse
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from pathlib import Path

from fencelock import FencelockError
from fencelock.cli.plugin import UNAVAILABLE
from fencelock_lab.campaigns.files import set_aside
from fencelock_lab.campaigns.report import story
from fencelock_lab.campaigns.results import FILE, CampaignReport, CampaignRun, read, write
from fencelock_lab.campaigns.schedules import FAULTS, SCHEDULES, CampaignSchedule, run_schedule
from fencelock_lab.campaigns.signals import exit_by_cleaning_up
from fencelock_lab.campaigns.verdict import CLEAN, NAMES, NOT_ENOUGH, VIOLATION
from fencelock_lab.campaigns.verified_page import PAGE, page, version_of
from fencelock_lab.kept_results import replace

USUAL_DURATION_S = 60.0
OVERHEAD_S = 15.0
"""What servers need to start and processes to come to rest, on a machine on which a schedule has not run yet."""
MAX_RUNS = 3
"""How often a schedule runs in which too little happens, as on a loaded machine."""
_SECONDS_PER_MINUTE = 60
_WORST_FIRST = (VIOLATION, UNAVAILABLE, NOT_ENOUGH, CLEAN)


class Runs:
    """The runs so far: what they found, how long each schedule takes, and the worst exit code."""

    def __init__(self, seed: int | None = None, run: CampaignRun | None = None, file: Path | None = None) -> None:
        self.report = CampaignReport() if run is None else CampaignReport(run)
        self.seconds: dict[str, float] = {}
        self._seed = seed
        self._file = file
        self._codes: dict[str, set[int]] = {}

    @property
    def code(self) -> int:
        """The exit code of them all."""
        codes = {CLEAN}.union(*self._codes.values())
        return next(code for code in _WORST_FIRST if code in codes)

    def run(self, schedule: CampaignSchedule, duration: float | None = None) -> int:
        """Run a schedule once, print what came out, and return its code."""
        code = self._run(schedule, duration)
        self._codes.setdefault(schedule.name, set()).add(code)
        self._write()
        return code

    def forget_not_enough(self, schedule: CampaignSchedule) -> None:
        """Let a run in which too little happened count for nothing: the schedule runs again."""
        self._codes[schedule.name].discard(NOT_ENOUGH)

    def leave_out(self, schedule: CampaignSchedule) -> None:
        """Say that there is no time left for a schedule."""
        reason = f"not run, it would take {self.expected(schedule):.0f} s"
        if schedule.name not in self.report.results:
            self.report.missing[schedule.name] = f"was {reason}"
        _print(f"{schedule.name}: {reason}")
        self._write()

    def _write(self) -> None:
        """Write what came out until now: it is there if the next run is interrupted."""
        if self._file is not None:
            if self._file.exists():
                self.report.add_former(read(self._file))
            write(self.report, self._file)
            publish(self._file)

    def _run(self, schedule: CampaignSchedule, duration: float | None) -> int:
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
            except Exception as error:  # Whatever it is, the other schedules can run.
                if not isinstance(error, FencelockError):
                    traceback.print_exc()
                reason = str(error) if isinstance(error, FencelockError) else f"{type(error).__name__}: {error}"
                self.report.lack(schedule.name, f"could not be carried out: {reason}")
                _print(f"{schedule.name}: could not be carried out: {reason}")
                return UNAVAILABLE
            finally:
                self.seconds[schedule.name] = time.monotonic() - began
            self.report.keep(outcome, *versions)
            took = f"{self.seconds[schedule.name]:.0f} s"
            _print(f"{schedule.name}: {NAMES[outcome.verdict.code]} (seed {outcome.seed}, {took})")
            if outcome.verdict.code != CLEAN:
                _print(story(outcome.verdict))
                _print(f"the history is in {set_aside(history)}")
            return outcome.verdict.code

    def expected(self, schedule: CampaignSchedule) -> float:
        """Return how many seconds a run of the schedule should take."""
        return self.seconds.get(schedule.name, schedule.duration + OVERHEAD_S)


def publish(file: Path) -> None:
    """Write the page of the results in the file; beside it, unless they are those of the repository."""
    replace(PAGE if file == FILE else file.with_suffix(".md"), page(read(file)))


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
            runs.leave_out(schedule)


def run_once(runs: Runs, schedules: Iterable[CampaignSchedule], duration: float) -> None:
    """Run each schedule once, or again if too little happened. The duration is for those without a script."""
    for schedule in schedules:
        seconds = None if schedule.group == FAULTS else max(duration, schedule.duration)
        for number in range(MAX_RUNS):
            if number:
                runs.forget_not_enough(schedule)
            if runs.run(schedule, seconds) != NOT_ENOUGH:
                break


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m fencelock_lab.campaigns", description=__doc__.split("\n")[0])
    parser.add_argument("--schedule", action="append", choices=list(SCHEDULES), help="only this one; may be repeated")
    parser.add_argument("--minutes", type=float, help="share so many minutes over the schedules in turns")
    parser.add_argument("--duration", type=float, default=USUAL_DURATION_S, help="seconds of each attack")
    parser.add_argument("--seed", type=int, help="draw the faults from this number")
    parser.add_argument("--write", action="store_true", help=f"write what came out to {FILE} and {PAGE}")
    parser.add_argument("--publish", action="store_true", help=f"run nothing: write {PAGE} from {FILE}")
    parser.add_argument("--commit", default="unknown", help="what is attacked, for the page")
    parser.add_argument("--command", default="unknown", help="how the campaigns were started, for the page")
    parser.add_argument("--list", action="store_true", help="list the schedules")
    wanted = parser.parse_args()
    schedules = [SCHEDULES[name] for name in wanted.schedule or SCHEDULES]
    if wanted.list:
        _print("\n".join(f"{one.name:<22} {one.group}" for one in schedules))
        return CLEAN
    if wanted.publish:
        publish(FILE)
        return CLEAN
    exit_by_cleaning_up()
    runs = Runs(wanted.seed, CampaignRun(wanted.commit, wanted.command), FILE if wanted.write else None)
    if wanted.minutes is not None:
        share(runs, schedules, wanted.minutes)
    else:
        run_once(runs, schedules, wanted.duration)
    return runs.code


def _print(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
