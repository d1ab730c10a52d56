"""Run the benchmarks: `python -m fencelock_lab.benchmarks [PART …] [--store STORE …] [--minutes M] [--out FOLDER]`.

Or `make bench STORE=all`, which writes the results that the documents show, and `make bench BENCH='…'`.
"""

import argparse
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from fencelock_lab.benchmarks import page, plots, summary
from fencelock_lab.benchmarks.parts import FULL_S, SUBJECTS, chosen
from fencelock_lab.benchmarks.results import FOLDER, read_all
from fencelock_lab.kept_results import replace

S_PER_MIN = 60
QUESTIONS = {
    "contest": "all lock libraries on the store: alone, many at once, hand-off",
    "cycle": "acquire and release, against the same by hand, step by step",
    "guarded": "a guarded write, against one with a look by hand, and one with none",
    "requests": "how many requests a guarded write sends, and acquire and release",
    "known": "acquire and release where the store knows a million locks",
    "waiting": "up to 10 000 waiters on one lock: hand-off, memory",
    "held": "up to 100 000 leases in one process: renewal, memory, a cycle beside them",
    "http": "a write at a service, with the middleware and without, one client and several",
    "startup": "import fencelock; fencelock run, against flock(1) and etcdctl lock",
    "simulated": "a million leases, in virtual time: requests to the source",
}
_NOTES = f"""
All of it takes {FULL_S / S_PER_MIN:.0f} minutes; --minutes divides another time in the same proportions. What is
compared takes turns on one private server; a library that is not installed is left out. A slow machine fails nothing.

  make bench STORE=all                      everything, into lab/results and the documents
  make bench STORE=postgres                 one store
  make bench BENCH='--store sqlite guarded --out /tmp/bench --minutes 0.5'
"""
_GRACE_S = 300.0
PAGE = Path("docs") / "explanation" / "measured.md"


def main() -> int:
    """Measure the chosen parts, and write the results and the page after each subject."""
    parser = _parser()
    options = parser.parse_args()
    if options.parts and options.out is None:
        parser.error("some parts of a store are not its results: say --out FOLDER")
    if unknown := set(options.parts) - set(QUESTIONS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(QUESTIONS)}")
    subjects = SUBJECTS if "all" in (options.store or ["all"]) else options.store
    plan = chosen(subjects, options.parts)
    weight = sum(sum(parts.values()) for parts in plan.values())
    speed = 1.0 if options.minutes is None else options.minutes * S_PER_MIN / weight
    folder, target = (FOLDER, PAGE) if options.out is None else (options.out, options.out / PAGE.name)
    if options.draw is not None:
        draw(folder, options.draw)
        return 0
    if options.publish:
        publish(folder, target)
        return 0
    failed = []
    for subject, parts in plan.items():
        if not measured(subject, parts, speed, folder):
            failed.append(subject)
        publish(folder, target)
    if failed:
        print(f"not all was measured of: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fencelock_lab.benchmarks",
        description="Measure fencelock against the work by hand and against its peers, in turns on one machine.",
        epilog="parts:\n" + "".join(f"  {name:12}{question}\n" for name, question in QUESTIONS.items()) + _NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="which to measure (default: all)")
    parser.add_argument(
        "--store", action="append", choices=[*SUBJECTS, "all"], help="which store, or other subject (default: all)"
    )
    parser.add_argument("--minutes", type=float, help="how long it may take; 0: as few turns as there may be")
    parser.add_argument(
        "--publish", action="store_true", help="measure nothing: write the page of the results, and README's figures"
    )
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="measure nothing: draw the results into FOLDER")
    parser.add_argument("--out", type=Path, help="write there, and leave what the documents show as it is")
    return parser


def measured(subject: str, parts: Mapping[str, float], speed: float, folder: Path) -> bool:
    """Measure one subject in its own process, and return whether every part of it has results."""
    seconds = sum(parts.values()) * speed
    command = [sys.executable, "-m", "fencelock_lab.benchmarks.subject", subject, str(seconds), str(folder), *parts]
    process = subprocess.Popen(command)
    try:
        return process.wait(2 * seconds + _GRACE_S) == 0
    except subprocess.TimeoutExpired:
        print(f"{subject} takes too long, and is ended", file=sys.stderr)
        process.send_signal(signal.SIGINT)  # It ends its server then.
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return False


def publish(folder: Path, target: Path) -> None:
    """Write the page of all results in the folder, and README's few figures if it is the documents' page."""
    reports = read_all(folder)
    replace(target, page.as_markdown(reports))
    if target == PAGE:
        summary.publish(reports)


def draw(folder: Path, target: Path) -> None:
    """Draw all results in the folder as SVG pictures."""
    for name, picture in plots.draw(read_all(folder)).items():
        replace(target / f"{name}.svg", picture)


if __name__ == "__main__":
    sys.exit(main())
