"""What a run of the tests reports arrives: odd text from a worker, and an error of pytest itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.helpers import ROOT

pytestmark = pytest.mark.slow
ENDS_S = 100

ODD = """
import logging
def test_odd():
    logging.getLogger().warning("a lone surrogate: \\udcff")
def test_other():
    pass
"""
BROKEN = """
import pytest
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(item):
    report = yield
    if item.name == "test_odd":
        raise ArithmeticError("on purpose")
    return report
"""


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "test_odd.py").write_text(ODD)
    plugins = ("-p", "xdist", "-p", "tests.run_reports", "-p", "no:cacheprovider")
    options = [*plugins, "-n", "1", "-q", "-o", f"pythonpath={ROOT}"]
    command = [sys.executable, "-P", "-m", "pytest", *options, "-c", "/dev/null", "--rootdir", str(folder), str(folder)]
    # To load plugins that no test needs takes seconds, in each of the two processes.
    environment = {"PATH": "", "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=ENDS_S, check=False
    )


def test_text_that_cannot_be_encoded_ends_no_worker(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_an_error_of_pytest_itself_is_told_again_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(BROKEN)
    done = run(tmp_path)
    assert done.returncode == 3
    assert "== the run ended by this error:" in done.stderr
    assert "ArithmeticError: on purpose" in done.stderr.partition("== the run ended by")[2]
