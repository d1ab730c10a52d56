"""Run the benchmarks: `python -m benchmarks [CASE …] [--scale 0.2] [--out FOLDER]`."""

import argparse
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from benchmarks import plots, report
from benchmarks.measure import Result

CASES = (
    *("cycle", "guarded", "size", "handoff", "renewal", "startup"),
    *("postgres_cycle", "postgres_size", "postgres_handoff", "postgres_renewal"),
)


def main() -> None:
    """Run the cases that were named, print a report, and write it with its pictures where `--out` says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Ratios against the work by hand.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"which to run: {', '.join(CASES)} (default: all)")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="length of the run; 0.1 is a quick look (default: 1.0)"
    )
    parser.add_argument("--out", type=Path, help="write report.md, report.json and a picture for each case here")
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    results = run(options.cases or list(CASES), options.scale)
    print(report.as_markdown(results))
    if options.out is not None:
        write(results, options.out)


def run(cases: list[str], scale: float) -> list[Result]:
    """Run the cases one after another, each in a folder of its own."""
    results = []
    for case in cases:
        print(f"{case} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="fenceline-bench-") as folder:
            results += import_module(f"benchmarks.cases.{case}").run(Path(folder), scale)
    return results


def write(results: list[Result], folder: Path) -> None:
    """Write the report as Markdown and JSON, and its pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(report.as_markdown(results))
    (folder / "report.json").write_text(report.as_json(results))
    plots.draw(results, folder)


if __name__ == "__main__":
    main()
