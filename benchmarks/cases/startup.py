"""What a program pays for fenceline before it does anything: imports, and `fenceline run` around a command."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

from benchmarks.measure import Result, compare, seconds_each

MS_PER_S = 1000


def run(folder: Path, scale: float) -> list[Result]:
    """Measure whole processes, in turns."""
    python = [sys.executable, "-I", "-c"]
    rounds = int(20 * scale) + 3
    imports = {
        "python -c pass": [*python, "pass"],
        "import fenceline": [*python, "import fenceline"],
        "import and connect": [*python, f"import fenceline; fenceline.connect('sqlite:///{folder / 'a.db'}')"],
    }
    results = _processes("import", imports, rounds, target="+30 ms")
    fenceline = shutil.which("fenceline", path=str(Path(sys.executable).parent))
    if fenceline is not None:
        url = f"sqlite:///{folder / 'run.db'}"
        commands = {"true": ["true"], "fenceline run": [fenceline, "run", "--source", url, "bench", "--", "true"]}
        results += _processes("fenceline run true", commands, rounds, target="+150 ms")
    return results


def _processes(case: str, commands: dict[str, list[str]], rounds: int, target: str) -> list[Result]:
    turns: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            elapsed_s = seconds_each(partial(subprocess.run, command, check=True), 1)
            turns[name].append(elapsed_s * MS_PER_S)
    return compare(case, turns, "ms", target)
