"""Apply each mutant to a copy of the package, and see whether its tests notice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from mutants.catalogue import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "fenceline"
TIMEOUT_S = 300


def tests_pass(copy: Path, tests: str) -> bool:
    """Run the tests against a copy of the package; a hang counts as a failure."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        result = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0


def fresh_copy(folder: Path) -> Path:
    """Return a folder for sys.path that holds an unchanged copy of the package."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(PACKAGE, folder / "fenceline", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def apply(mutant: Mutant, copy: Path) -> None:
    """Change the one line; ValueError if it does not stand in the file exactly once."""
    path = copy / "fenceline" / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.rule}: {mutant.old!r} stands {text.count(mutant.old)} times in {mutant.file}")
    path.write_text(text.replace(mutant.old, mutant.new))


def main(folder: Path) -> int:
    """Run the whole catalogue, print a line a mutant, and return the number of survivors."""
    for tests in sorted({mutant.tests for mutant in MUTANTS}):
        if not tests_pass(fresh_copy(folder), tests):
            print(f"the unchanged package fails: {tests}")
            return len(MUTANTS)
    survivors = 0
    for mutant in MUTANTS:
        apply(mutant, fresh_copy(folder))
        has_survived = tests_pass(folder, mutant.tests)
        survivors += has_survived
        print(f"{'SURVIVED' if has_survived else 'killed  '}  {mutant.rule}", flush=True)
    print(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} killed")
    return survivors
