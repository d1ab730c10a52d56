"""Run both lists; exit 1 if a mutant survives unexpectedly, or if a list does not match the source.

python -m fencelock_lab.mutants --catalogue           only the mutants of catalogue.py
python -m fencelock_lab.mutants --tool admit acquire  only the tool's mutants of files with these words in their path
"""

import argparse
import os
import sys

from fencelock_lab.mutants import catalogue, tool
from fencelock_lab.mutants.trial import Bench, bench


def main() -> int:
    """Run the command with these arguments and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m fencelock_lab.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--catalogue", action="store_true", help="run the catalogue alone")
    parser.add_argument("--tool", nargs="*", metavar="WORD", help="run the tool alone, on files whose path has a WORD")
    parser.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="how many mutants at once (a core each)"
    )
    asked = parser.parse_args()
    has_passed = True
    with bench(asked.workers) as workers:
        if asked.tool is None:
            has_passed &= run_catalogue(workers)
        if not asked.catalogue:
            has_passed &= run_tool(workers, asked.tool or [""])
    return 0 if has_passed else 1


def run_catalogue(workers: Bench) -> bool:
    """Run the catalogue and print a line for each mutant; return whether the tests noticed all of them."""
    trials = catalogue.trials()
    if not _is_sound(workers, {tests for trial in trials for tests in trial.tests}):
        return False
    survivors = 0
    for trial, is_noticed in workers.run(trials):
        survivors += not is_noticed
        print(f"{'killed  ' if is_noticed else 'SURVIVED'}  {trial.name}", flush=True)
    print(f"catalogue: {len(trials) - survivors} of {len(trials)} killed")
    return survivors == 0


def run_tool(workers: Bench, words: list[str]) -> bool:
    """Run the tool's mutants of some files; return whether the tests noticed enough and all survivors are known."""
    files = [file for file in tool.SELECTIONS if any(word in file for word in words)]
    if not _is_sound(workers, {tests for file in files for tests in tool.SELECTIONS[file]}):
        return False
    mutants = {change: trial for file in files for change, trial in tool.trials(file).items()}
    known = {change for change in tool.known_survivors() if change.file in files}
    survivors = set()
    for change, (_, is_noticed) in zip(mutants, workers.run(list(mutants.values())), strict=True):
        if not is_noticed:
            survivors.add(change)
            if change not in known:
                print(f"\nSURVIVED\n{tool.entry(change)}", flush=True)
    for change in sorted(known - survivors):
        print(
            f"\n{'now caught by a test' if change in mutants else 'its line is gone'}, and still in the list: {change}"
        )
    killed = len(mutants) - len(survivors)
    print(f"tool: {killed} of {len(mutants)} killed, {len(survivors & known)} survivors known, with reasons")
    return killed >= tool.LEAST_KILLED * len(mutants) and survivors <= known <= mutants.keys()


def _is_sound(workers: Bench, selections: set[str]) -> bool:
    failing = workers.failing(selections)
    for tests in failing:
        print(f"the unchanged package fails: {tests}")
    return not failing


if __name__ == "__main__":
    sys.exit(main())
