"""Guards and children: with the sequencer, forked in a block, and forked while other threads use the file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fencelock
from fencelock import Sequencer
from tests.process.actors import Stage
from tests.process.guard_stage import file, guard_of, play, stage
from tests.support.guards import LOCK, url_of, value_in, write

__all__ = ["file", "stage"]

pytestmark = pytest.mark.process


def test_g10_a_child_with_the_sequencer_writes_until_its_parent_closes(stage: Stage, file: Path) -> None:
    guard_of(file).protect("reports")
    program = (
        "import fencelock, sys; g = fencelock.guard(sys.argv[1], resource='reports', lock='nightly-report')\n"
        "try:\n"
        "  with g.transaction(fencelock.Sequencer.from_env()) as c: c.execute('UPDATE reports SET value = value + 1')\n"
        "except fencelock.StaleTokenError as error: print(error)\n"
    )

    def child(sequencer: Sequencer) -> str:
        environment = {**os.environ, "FENCELOCK_SEQUENCER": str(sequencer)}
        command = [sys.executable, "-c", program, url_of(file)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    with fencelock.connect(stage.url) as source, source.lock(LOCK) as lease:
        guard = guard_of(file)
        assert child(lease.sequencer) == ""
        write(guard, lease, 5)
        assert child(lease.sequencer) == ""
        guard.close(lease)
        assert "its own holder closed it" in child(lease.sequencer)
    assert value_in(file) == 6


FORKED = """
def in_child(function):
    child = os.fork()
    if child == 0:
        try:
            say(function())
        except BaseException as error:
            say(type(error).__name__)
        os._exit(0)
    os.waitpid(child, 0)

def add(proof):
    with guard.transaction(proof) as connection:
        write(connection, read(connection) + 1)
    return "added"
"""


@pytest.mark.reduced
def test_a_forked_child_uses_the_guard_with_the_sequencer_and_not_with_the_lease(stage: Stage, file: Path) -> None:
    actor = play(
        stage,
        """
        with lock as lease:
            add(lease)
            for _ in range(3):
                in_child(lambda: add(lease.sequencer))
                in_child(lambda: add(lease))
                add(lease)
            in_child(lambda: guard.close(lease))
            add(lease)
        say("done")
        """,
        FORKED,
    )
    for _ in range(3):
        assert actor.hear() == "added"
        assert actor.hear() == "LeaseInheritedError"
    assert actor.hear() == "LeaseInheritedError"
    assert actor.hear() == "done"
    assert value_in(file) == 8


def test_a_fork_inside_a_guarded_transaction_harms_neither_the_parent_nor_the_file(stage: Stage, file: Path) -> None:
    actor = play(
        stage,
        """
        with lock as lease:
            with guard.transaction(lease) as connection:
                write(connection, 5)
                in_child(lambda: fencelock.guard(guard.url, resource="other", lock="nightly-report").mark())
                write(connection, 6)
            add(lease)
        say("done")
        """,
        FORKED,
    )
    assert actor.hear() == "UnsupportedError"
    assert actor.hear() == "done"
    assert value_in(file) == 7


def test_a_forked_child_that_leaves_its_parents_block_commits_nothing(stage: Stage, file: Path) -> None:
    actor = play(
        stage,
        """
        with lock as lease:
            guard.seal(lease)
            child = None
            try:
                with guard.transaction(lease) as connection:
                    write(connection, "the parent's")
                    child = os.fork()
                    if child:
                        os.waitpid(child, 0)
            except BaseException as error:
                say(type(error).__name__)
                os._exit(0)
        say("done")
        """,
    )
    assert actor.hear() == "UnsupportedError"
    assert actor.hear() == "done"
    assert value_in(file) == "the parent's"


def test_a_fork_while_other_threads_use_the_guard_leaves_both_processes_working(stage: Stage, file: Path) -> None:
    actor = play(
        stage,
        """
        import threading
        with lock as lease:
            guard.seal(lease)
            proof, stop = lease.sequencer, threading.Event()

            def seal_again():
                n = 0
                while not stop.is_set():
                    n += 1
                    # Brief transactions of the guard's own: a fork waits for them.
                    fencelock.guard(guard.url, resource=f"r{n % 5}", lock=lock.name, independent=True).seal(proof)

            threads = [threading.Thread(target=seal_again) for _ in range(3)]
            for thread in threads: thread.start()
            for _ in range(20):
                in_child(lambda: add(proof))
            stop.set()
            for thread in threads: thread.join()
            add(lease)
        say("done")
        """,
        FORKED,
    )
    assert [actor.hear() for _ in range(20)] == ["added"] * 20
    assert actor.hear() == "done"
    assert value_in(file) == 21
