"""Tests that need a process in which nothing else has run. A pytest plugin: the marker `own_process`.

The marked tests of a file run together, in one process that is started for them; it shares the servers of the run. So
what thousands of other tests leave in a worker, such as threads of gRPC, decides nothing about them.
"""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.fix_servers import OWN_PROCESS, WORKER, servers_folder
from tests.support.helpers import ROOT

ENDS_S = 100

_outcomes: dict[Path, dict[str, str]] = {}
"""By file: what failed there, and how; empty texts for what did not."""


def pytest_configure(config: pytest.Config) -> None:
    """Explain the marker."""
    config.addinivalue_line("markers", "own_process: runs in a process of its own, with the others of its file")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Have the test run in the process of its file."""
    if pyfuncitem.get_closest_marker("own_process") is None or OWN_PROCESS in os.environ:
        return None
    file = pyfuncitem.path
    if file not in _outcomes:
        _outcomes[file] = _run(file, servers_folder(pyfuncitem.config))
    failure = _outcomes[file].get(pyfuncitem.name, "it did not run")
    if failure:
        pytest.fail(failure, pytrace=False)
    return True


def _run(file: Path, servers: Path) -> dict[str, str]:
    report = servers / f"{file.stem}-{WORKER}.xml"
    options = ["-q", "-p", "no:xdist", "-m", "own_process", f"--junitxml={report}"]
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *options, file],
        cwd=ROOT,
        env={**os.environ, OWN_PROCESS: str(servers), "PYTEST_XDIST_WORKER": f"{WORKER}-{file.stem}"},
        timeout=ENDS_S,
        capture_output=True,
        text=True,
        check=False,
    )
    if not report.exists():
        pytest.fail(f"{file.name} did not run in a process of its own:\n{ran.stdout}{ran.stderr}", pytrace=False)
    cases = ET.parse(report).iter("testcase")  # noqa: S314 - pytest has just written it
    return {case.attrib["name"]: "\n".join(_texts(case)) for case in cases}


def _texts(case: ET.Element) -> list[str]:
    found = [one for kind in ("failure", "error") for one in case.iter(kind)]
    return [one.text or one.attrib.get("message", one.tag) for one in found]
