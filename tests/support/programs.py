"""Programs that tests need from the system: there, or a skip that says how to get them.

With `FENCELOCK_REQUIRE_SERVERS=1`, which CI sets, a missing program fails the test. A program that is not on PATH goes
by its path, in which `*` stands for what differs from machine to machine.
"""

import glob
import os
import shutil
from typing import NoReturn

import pytest

from tests.support.helpers import ROOT


def _packages() -> dict[str, list[str]]:
    """Return the Debian packages of each program that requirements/system.txt names."""
    lines = (ROOT / "requirements" / "system.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {program: packages for program, *packages in rows}


def refuse(reason: str) -> NoReturn:
    """Skip the test for `reason`, or fail it where servers are due."""
    if os.environ.get("FENCELOCK_REQUIRE_SERVERS") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def need(program: str) -> str:
    """Return the path of `program`; without it skip the test, or fail it where servers are due."""
    path = max(glob.glob(program), default=None) if program.startswith("/") else shutil.which(program)
    if path is not None:
        return path
    packages = " ".join(_packages()[program])
    refuse(f"{program} is missing: as root, run apt-get install {packages}")
