"""The cost of starting fencelock: its imports, and a command run under a lock.

For comparison, the same command under `flock(1)` on a file, and under `etcdctl lock` on the same etcd.
"""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from fencelock_lab.benchmarks.measure import MS_PER_S, NO_AIMS, Aims, Measurement, compare, seconds_each, turns
from fencelock_lab.benchmarks.stores import Site
from fencelock_lab.servers.etcd import ctl_environment

IMPORT, RUN = "import", "hold a lock around `true`"
FLOOR = "python -c pass"
AIMS = {"fencelock run, SQLite": 10.0}
"""Against an interpreter that does nothing."""


def run(site: Site, seconds: float) -> list[Measurement]:
    """Measure whole processes, in turns; the site is etcd's."""
    python = [sys.executable, "-c"]
    floor = {FLOOR: [*python, "pass"]}
    with tempfile.TemporaryDirectory(prefix="fl-bench-") as folder:
        imports = {
            "import fencelock": [*python, "import fencelock"],
            "import and connect": [*python, f"import fencelock; fencelock.connect('sqlite:///{folder}/a.db')"],
        }
        return [
            *_processes(IMPORT, floor | imports, seconds * 0.3, NO_AIMS),
            *_processes(RUN, floor | _commands(site.url, folder), seconds * 0.7, AIMS),
        ]


def _commands(url: str, folder: str) -> dict[str, list[str]]:
    """Return the programs on this machine that run a command under a lock."""
    script = Path(sys.executable).with_name("fencelock")
    ours = [str(script)] if script.exists() else [sys.executable, "-m", "fencelock.cli"]
    run = [*ours, "run", "bench", "--source"]
    commands = {
        "true": ["true"],
        "flock(1)": ["flock", f"{folder}/flock", "true"],
        "fencelock run, SQLite": [*run, f"sqlite:///{folder}/run.db", "--", "true"],
        "etcdctl lock": ["etcdctl", f"--endpoints={urlsplit(url).netloc}", "lock", "bench-ctl", "true"],
        "fencelock run, etcd": [*run, url, "--", "true"],
    }
    return {name: command for name, command in commands.items() if shutil.which(command[0])}


def _processes(case: str, commands: Mapping[str, Sequence[str]], seconds: float, aims: Aims) -> list[Measurement]:
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for _ in turns(seconds):
        for name, command in commands.items():
            environment = ctl_environment() if name.startswith("etcdctl") else None
            done = partial(subprocess.run, command, check=True, capture_output=True, env=environment)
            taken[name].append(seconds_each(done, 1) * MS_PER_S)
    return compare(case, taken, "ms", aims)
