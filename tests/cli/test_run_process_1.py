"""`fencelock run` as process 1 of a container: it inherits orphans, reaps them, and ends as elsewhere."""

import signal
import subprocess

import psutil
import pytest

from tests.cli.program import Program, program
from tests.support.helpers import wait_until
from tests.support.programs import need

__all__ = ["program"]
pytestmark = pytest.mark.process

ORPHANS = "for each in 1 2 3; do (sleep 0.05 & setsid sleep 0.05 &); done; "
"""Six processes whose parent ends before them: three in the group of CMD, and three in groups of their own."""


@pytest.fixture(scope="module")
def isolate() -> list[str]:
    """Return the words that make the next program process 1 of a namespace, which ends with it."""
    words = [need("unshare"), "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("unshare --user --pid is not permitted here: run the tests as root, not in a container")
    return words


def process_1(unshare: subprocess.Popen[str]) -> psutil.Process:
    """Return process 1 of the namespace."""
    return wait_until(psutil.Process(unshare.pid).children)[0]


def test_process_1_reaps_orphans_while_cmd_runs(program: Program, isolate: list[str]) -> None:
    cmd = ["sh", "-c", f"{ORPHANS.replace('0.05', '60')} echo $FENCELOCK_TOKEN; read line; exit 7"]
    process = program.start("run", "x", "--", *cmd, before=isolate, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    first = process_1(process)
    wait_until(lambda: sum(child.name() == "sleep" for child in first.children()) == 6)
    for orphan in first.children():
        if orphan.name() == "sleep":
            orphan.kill()
    wait_until(lambda: len(first.children()) == 2)  # CMD and the watchdog.
    process.communicate("end\n")
    assert process.returncode == 7


def test_process_1_reaps_orphans_while_it_waits_for_the_lock(program: Program, isolate: list[str]) -> None:
    with program.source() as source, source.lock("x"):
        process = program.start("run", "x", "--", "true", before=isolate)
        wait_until(lambda: source.info("x").waiters)
        first = process_1(process)
        enter = [need("nsenter"), f"--target={first.pid}", "--user", "--preserve-credentials", "--pid", "--mount"]
        subprocess.run([*enter, "sh", "-c", f"{ORPHANS}"], check=True)
        wait_until(lambda: len(first.children()) == 2)
        first.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("cmd", ["exit 5", f"{ORPHANS} exit 5", "trap '' TERM; sleep 60 & exit 5"])
def test_process_1_ends_with_cmds_own_code(program: Program, isolate: list[str], cmd: str) -> None:
    process = program.start("run", "x", "--grace", "0.1", "--", "sh", "-c", cmd, before=isolate)
    process.communicate()
    assert process.returncode == 5
    assert not program.source().info("x").is_held
