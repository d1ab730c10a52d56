"""Run the benchmarks: `python -m benchmarks [CASE …] [--store STORE …] [--scale 0.2] [--out FOLDER]`.

Or `make bench BENCH='…'`, and `make bench STORE=postgres` for the comparison with others on one store.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

from benchmarks import plots, report
from benchmarks.measure import Result
from benchmarks.peers.places import STORES

CASES = {
    "cycle": "acquire and release a free lock, against the same by hand",
    "guarded": "a guarded transaction, against an unguarded one",
    "size": "acquire and release in files that know 10 to 1 000 000 locks",
    "handoff": "from one process's release to the next one's return",
    "renewal": "keep 1, 100 and 10 000 leases: share of a core, bytes a lease",
    "startup": "import fenceline; fenceline run around a command that does nothing",
    "mysql_guarded": "a guarded transaction on MariaDB, against one that checks by hand",
    "mysql_cycle": "acquire and release on MariaDB, against two statements by hand",
    "postgres_cycle": "acquire and release on PostgreSQL, against the same by hand",
    "postgres_guarded": "a guarded transaction in PostgreSQL, against one that checks by hand",
    "postgres_size": "acquire and release in databases that know many locks",
    "postgres_handoff": "hand-offs between processes through PostgreSQL",
    "postgres_renewal": "keep leases in PostgreSQL",
    "etcd_cycle": "acquire and release on etcd, against two bare transactions",
    "etcd_handoff": "hand-offs down a queue in etcd",
    "zookeeper_cycle": "acquire and release on ZooKeeper, against kazoo's requests by hand",
    "zookeeper_handoff": "hand-offs down a queue in ZooKeeper",
}
_NOTES = """
Variants of a case take turns; what is printed is the median over the turns, its quartiles, and the median of each
turn's ratio to the first variant. Nothing fails because a machine is slow.

  make bench BENCH='cycle guarded --scale 0.2'
  make bench BENCH='cycle --out /tmp/bench'

With --store, fenceline and everybody else who offers locks on that store take turns on the same private server; what
one does not do is printed beside its number, and who is not installed is left out:

  make bench STORE=postgres
  make bench BENCH='--store files --scale 0.1'
"""
RESULTS = Path(__file__).parent / "results"
"""Where comparisons are written, unless `--out` says otherwise."""


def main() -> None:
    """Run the cases that were named, print a report, and write it with its pictures where `--out` says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure fenceline in ratios against the work by hand, in one run on one machine.",
        epilog="cases:\n" + "".join(f"  {name:18}{question}\n" for name, question in CASES.items()) + _NOTES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help="which to run (default: all)")
    parser.add_argument(
        "--store", action="append", choices=[*STORES, "all"], help="compare everybody on this store instead"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="length of the run; 0.1 is a quick look (default: 1.0)"
    )
    parser.add_argument("--out", type=Path, help="write a report and a picture for each case here")
    options = parser.parse_args()
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if options.store:
        compare(STORES if "all" in options.store else options.store, options.scale, options.out or RESULTS)
        return
    results = run(options.cases or list(CASES), options.scale)
    print(report.as_markdown(results))
    if options.out is not None:
        write(results, options.out, "report")


def compare(stores: Iterable[str], scale: float, folder: Path) -> None:
    """Measure everybody on each store; print and write a report of each."""
    from benchmarks.peers.contest import Contest
    from benchmarks.peers.places import place

    for store in stores:
        print(f"everybody on {store} …", file=sys.stderr, flush=True)
        with place(store) as url:
            results = Contest(store, url, scale).run()
        print(report.as_markdown(results))
        write(results, folder, store)


def run(cases: list[str], scale: float) -> list[Result]:
    """Run the cases one after another, each in a folder of its own."""
    results = []
    for case in cases:
        print(f"{case} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="fenceline-bench-") as folder:
            results += import_module(f"benchmarks.cases.{case}").run(Path(folder), scale)
    return results


def write(results: list[Result], folder: Path, name: str) -> None:
    """Write the report as Markdown and JSON, and its pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(report.as_markdown(results))
    (folder / f"{name}.json").write_text(report.as_json(results))
    plots.draw(results, folder)


if __name__ == "__main__":
    main()
