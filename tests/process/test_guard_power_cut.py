"""G4 across a power cut: a seal that was answered is there when the files go back to what was flushed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.test_power_cut import Machine, shim
from tests.support.guards import url_of
from tests.support.helpers import ROOT, wait_until

__all__ = ["shim"]

pytestmark = [pytest.mark.disk, pytest.mark.process]

SEALER = """
import os, signal, sys
import fencelock
from fencelock.protocol import one_way
guard = fencelock.guard(sys.argv[1], resource="reports", lock="nightly-report")
for token in range(int(sys.argv[2]), 1_000_000):
    guard.seal(fencelock.Sequencer("source", "history", "nightly-report", token, one_way(f"claim-{token}")))
    os.write(1, b"%d\\n" % token)
"""


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_g4_a_seal_that_was_answered_survives_a_power_cut(shim: Path, tmp_path: Path, journal: str) -> None:
    machine = Machine(shim, tmp_path / "machine", keeps_names=True)
    environment = {**os.environ, "LD_PRELOAD": str(shim), "FL_CUT_WATCH": str(machine.disk), "FL_CUT_KEEPS_NAMES": "1"}
    environment["FL_CUT_SHADOW"] = str(machine.shadow)
    make = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; "
    make += "from tests.support.guards import make_file; "
    make += "make_file(Path(sys.argv[1]), journal=sys.argv[2])"
    subprocess.run([sys.executable, "-c", make, machine.file, journal], env=environment, check=True)
    output, told = tmp_path / "told", 0
    for _ in range(2):
        with output.open("wb") as out:
            command = [sys.executable, "-c", SEALER, url_of(machine.file), str(told + 100)]
            process = subprocess.Popen(command, env=environment, stdout=out)
        wait_until(lambda: output.read_text().count("\n") >= 20)
        process.send_signal(signal.SIGKILL)
        process.wait()
        told = max(int(line) for line in output.read_text().splitlines(keepends=True) if line.endswith("\n"))
        machine.fail()
        ((mark,),) = machine.read("SELECT token FROM fencelock_mark")
        assert mark >= told


USER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA synchronous = NORMAL")
connection.execute("UPDATE reports SET value = 1")
print("open", flush=True)
sys.stdin.read()
"""


def test_g4_a_seal_survives_where_a_user_made_the_log_and_flushed_nothing(shim: Path, tmp_path: Path) -> None:
    """Only what POSIX promises: the log's name is on the disk because the guard has flushed the folder."""
    machine = Machine(shim, tmp_path / "machine")
    environment = {**os.environ, "LD_PRELOAD": str(shim), "FL_CUT_WATCH": str(machine.disk)}
    environment["FL_CUT_SHADOW"] = str(machine.shadow)
    make = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; "
    make += "from tests.support.guards import make_file; "
    make += "make_file(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", make, machine.file], env=environment, check=True)
    command = [sys.executable, "-c", USER, machine.file]
    user = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert user.stdout is not None
    assert user.stdout.readline() == b"open\n"
    output = tmp_path / "told"
    with output.open("wb") as out:
        sealer = subprocess.Popen(
            [sys.executable, "-c", SEALER, url_of(machine.file), "1"], env=environment, stdout=out
        )
    wait_until(lambda: output.read_text().count("\n") >= 3)
    for process in (sealer, user):
        process.kill()
        process.communicate()
    told = max(int(line) for line in output.read_text().splitlines(keepends=True) if line.endswith("\n"))
    machine.fail()
    ((mark,),) = machine.read("SELECT token FROM fencelock_mark")
    assert mark >= told
