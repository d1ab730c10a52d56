"""The tests run alike wherever they are started: `nohup`, a shell's `&` and CI runners have programs ignore signals."""

import os
import subprocess
import sys

import pytest

from tests.support.helpers import ROOT

IGNORING = """
import os, signal, sys
for name in ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGCHLD"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.execv(sys.executable, [sys.executable, "-P", "-m", "pytest", *sys.argv[1:]])
"""
PROBE = "tests/cli/test_run_signals.py::test_a_signal_is_forwarded_to_cmds_group"
LIMIT_S = 100
"""With them ignored the probe would wait for its own, longer time limit."""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "probe"), [(0, PROBE), (1, f"{PROBE}[QUIT]")])
def test_the_tests_pass_where_signals_came_ignored(workers: int, probe: str) -> None:
    """Every signal is reset; and in workers too, for which one stands."""
    command = [sys.executable, "-c", IGNORING, "-q", "-p", "no:cacheprovider", "-n", str(workers), probe]
    # What xdist tells its workers in the environment is not for the workers of that run.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        command, cwd=ROOT, env=inherited, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout
