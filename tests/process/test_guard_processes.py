"""Guards among real processes: frozen, killed and forked at every moment, and other processes that go on meanwhile."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fenceline
from fenceline import Sequencer, SourceUnavailableError
from fenceline._api.guard import look_at
from tests.guards import LOCK, RESOURCE, HandmadeLease, ask, make_file, plain, url_of, value_in, write
from tests.helpers import ROOT, wait_until
from tests.process.actors import Actor, Stage
from tests.process.test_power_cut import Machine, shim

__all__ = ["shim"]

pytestmark = pytest.mark.process


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_file(tmp_path / "app.db")


@pytest.fixture
def stage(tmp_path: Path, file: Path) -> Iterator[Stage]:
    """Actors with a source beside the guarded file, and with a guard of that file."""
    with Stage(tmp_path / "locks.db") as made:
        yield made


GUARD = """
lock = source.lock("nightly-report", ttl=float(os.environ.get("TTL", "30")))
guard = fenceline.guard(URL.replace("locks.db", "app.db"), resource="reports", lock="nightly-report")

def read(connection):
    return connection.execute("SELECT value FROM reports").fetchone()[0]

def write(connection, value):
    connection.execute("UPDATE reports SET value = ?", (value,))
"""


def play(stage: Stage, script: str, *before: str) -> Actor:
    """Start an actor that has a guard of the file."""
    return stage.actor("".join((GUARD, *before, textwrap.dedent(script))))


def guard_of(file: Path) -> fenceline.Guard:
    return fenceline.guard(url_of(file), resource=RESOURCE, lock=LOCK)


# --- frozen ---
@pytest.mark.reduced
def test_g2_a_holder_frozen_between_its_read_and_its_write_is_refused_when_it_thaws(stage: Stage, file: Path) -> None:
    """Its lease runs out while it stands still; the next holder reads, and writes what it computed."""
    guard_of(file).protect("reports")
    old = play(
        stage,
        """
        lease = source.lock("nightly-report", ttl=1.0).acquire()
        with guard.transaction(lease) as connection:
            value = read(connection)
        say("read")
        hear()
        # Straight to the file, as code does that asks no lease: the sequencer stands for it.
        for proof in (lease.sequencer, lease):
            try:
                with guard.transaction(proof) as connection:
                    write(connection, value + 1)
                say("written")
            except fenceline.FencelineError as error:
                say(type(error).__name__)
        """,
    )
    assert old.hear() == "read"
    old.freeze()
    with fenceline.connect(stage.url) as source, source.lock(LOCK, timeout=20) as lease:
        write(guard_of(file), lease, 10)
        old.thaw()
        old.say()
        assert old.hear() == "StaleTokenError"
        assert old.hear() in ("LeaseExpiredError", "LeaseLostError")
        write(guard_of(file), lease, 11)
    assert value_in(file) == 11


def test_a_holder_frozen_inside_its_transaction_keeps_others_out_until_it_is_ended(stage: Stage, file: Path) -> None:
    """The limit of one file with one write lock: said in words, and over when the frozen process is."""
    holder = play(
        stage,
        """
        with lock as lease, guard.transaction(lease) as connection:
            write(connection, "never")
            say(lease.token)
            hear()
        """,
    )
    token = holder.hear()
    holder.freeze()
    guard = guard_of(file)
    with pytest.raises(SourceUnavailableError, match="frozen or slow inside a write transaction; end it, or try again"):
        guard.seal(HandmadeLease(token + 1))
    assert guard.mark().token == token
    holder.kill()
    with fenceline.connect(stage.url) as source:
        source.break_lock(LOCK, reason="its process was killed")
        with source.lock(LOCK) as lease:
            write(guard, lease, "next")
    assert value_in(file) == "next"


# --- killed, or frozen, before any statement ---
STEPS = """
import itertools
from fenceline.stores.sqlite.guard_database import GuardDatabase
opened, left = GuardDatabase._open, 0
lease = fenceline.Sequencer("source", "history", "nightly-report", 5, "claim-5")

def step(_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), THE_SIGNAL)

def traced(database):
    native = opened(database)
    native.set_trace_callback(step)
    return native

GuardDatabase._open = traced

def run(deed):
    # One child for each statement of the deed: just before it, the signal strikes.
    global left
    for left in itertools.count(1):
        hear()
        child = os.fork()
        if child == 0:
            deed()
            os._exit(0)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            say("struck")
            hear()
            os.kill(child, signal.SIGCONT)
            os.waitpid(child, 0)
        say("struck" if os.WIFSIGNALED(status) else "done")
        if os.WIFEXITED(status):
            return
"""
DEEDS = {
    "the first write": "write_it",
    "protect": "lambda: guard.protect('reports')",
    "close": "lambda: guard.close(lease)",
    "lower": "lambda: (guard.raise_to(2**40, reason='test'), guard.lower(2**39, reason='test'))",
}


class Original:
    """The file as it was, to begin from again and again."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._backup = shutil.copy(file, f"{file}.backup")

    def put_back(self) -> None:
        for name in (f"{self._file}-wal", f"{self._file}-shm"):
            Path(name).unlink(missing_ok=True)
        shutil.copy(self._backup, self._file)


@pytest.mark.parametrize("deed", DEEDS)
def test_a_process_killed_before_any_statement_leaves_all_or_nothing(stage: Stage, file: Path, deed: str) -> None:
    original = Original(file)
    actor = play(
        stage,
        f"""
        def write_it():
            with guard.transaction(lease) as connection:
                write(connection, "mine")

        run({DEEDS[deed]})
        """,
        STEPS.replace("THE_SIGNAL", "signal.SIGKILL"),
    )
    strikes = 0
    while True:
        original.put_back()
        actor.say()
        is_done = actor.hear() == "done"
        check_whole(file)
        if is_done:
            break
        strikes += 1
    assert strikes > 5


def check_whole(file: Path) -> None:
    """Whatever was under way has happened or not; the file works, and the next holder can write."""
    assert ask(file, "PRAGMA integrity_check") == [("ok",)]
    seen = look_at(url_of(file))
    tokens = [mark.token for mark in seen.marks]
    assert tokens in ([], [0], [5], [2**39], [2**40])
    assert value_in(file) == 0 or (value_in(file), tokens) == ("mine", [5])
    if seen.marks:
        assert ask(file, "SELECT * FROM fenceline_seal") == []
    triggers = ask(file, "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'reports'")
    assert triggers in ([(0,)], [(3,)])
    write(guard_of(file), HandmadeLease(2**41), "next")


def test_a_holder_frozen_before_any_statement_loses_nothing_of_the_next_ones(stage: Stage, file: Path) -> None:
    """Frozen inside a transaction it keeps the file; outside of one, the next holder goes on and it is refused."""
    original = Original(file)
    actor = play(
        stage,
        """
        def add_one():
            try:
                with guard.transaction(lease) as connection:
                    value = read(connection)
                with guard.transaction(lease) as connection:
                    write(connection, value + 1)
                say("added")
            except fenceline.StaleTokenError:
                say("stale")

        run(add_one)
        """,
        STEPS.replace("THE_SIGNAL", "signal.SIGSTOP"),
    )
    outcomes = set()
    while True:
        original.put_back()
        actor.say()
        said = actor.hear()
        if said != "struck":
            break
        has_file = is_locked(file)
        if not has_file:
            add(file, HandmadeLease(6), 10)
        actor.say()
        said = actor.hear()
        if has_file:
            add(file, HandmadeLease(6), 10)
        assert actor.hear() == "done"
        assert value_in(file) == (11 if said == "added" else 10)
        outcomes.add((has_file, said))
    assert outcomes == {(False, "stale"), (True, "added")}


def is_locked(file: Path) -> bool:
    """Return whether somebody else has the write lock."""
    with plain(file, timeout=0) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        other.execute("ROLLBACK")
        return False


def add(file: Path, lease: Any, number: int) -> None:
    guard = guard_of(file)
    with guard.transaction(lease) as connection:
        (value,) = connection.execute("SELECT value FROM reports").fetchone()
    write(guard, lease, value + number)


# --- children ---
def test_g10_a_child_with_the_sequencer_writes_until_its_parent_closes(stage: Stage, file: Path) -> None:
    guard_of(file).protect("reports")
    program = (
        "import fenceline, sys; g = fenceline.guard(sys.argv[1], resource='reports', lock='nightly-report')\n"
        "try:\n"
        "  with g.transaction(fenceline.Sequencer.from_env()) as c: c.execute('UPDATE reports SET value = value + 1')\n"
        "except fenceline.StaleTokenError as error: print(error)\n"
    )

    def child(sequencer: Sequencer) -> str:
        environment = {**os.environ, "FENCELINE_SEQUENCER": str(sequencer)}
        command = [sys.executable, "-c", program, url_of(file)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    with fenceline.connect(stage.url) as source, source.lock(LOCK) as lease:
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
                in_child(lambda: fenceline.guard(guard.url, resource="other", lock="nightly-report").mark())
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
                    fenceline.guard(guard.url, resource=f"r{n % 5}", lock=lock.name, independent=True).seal(proof)

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


# --- others who have the file ---
def test_protect_waits_for_a_transaction_of_another_process(stage: Stage, file: Path) -> None:
    holder = stage.actor(
        """
        import sqlite3
        connection = sqlite3.connect(URL.removeprefix("sqlite:///").replace("locks.db", "app.db"), isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE reports SET value = 'theirs'")
        say("begun")
        hear()
        connection.execute("COMMIT")
        """
    )
    assert holder.hear() == "begun"
    with pytest.raises(SourceUnavailableError, match="locked by another process"):
        guard_of(file).protect("reports")
    holder.say()
    guard_of(file).protect("reports")
    assert value_in(file) == "theirs"
    assert [one.table for one in look_at(url_of(file)).protections] == ["reports"]


# --- a power cut ---
SEALER = """
import os, signal, sys
import fenceline
guard = fenceline.guard(sys.argv[1], resource="reports", lock="nightly-report")
for token in range(int(sys.argv[2]), 1_000_000):
    guard.seal(fenceline.Sequencer("source", "history", "nightly-report", token, f"claim-{token}"))
    os.write(1, b"%d\\n" % token)
"""


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_g4_a_seal_that_was_answered_survives_a_power_cut(shim: Path, tmp_path: Path, journal: str) -> None:
    machine = Machine(shim, tmp_path / "machine", keeps_names=True)
    environment = {**os.environ, "LD_PRELOAD": str(shim), "FL_CUT_WATCH": str(machine.disk), "FL_CUT_KEEPS_NAMES": "1"}
    environment["FL_CUT_SHADOW"] = str(machine.shadow)
    make = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.guards import make_file; from pathlib import Path; "
    )
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
        ((mark,),) = machine.read("SELECT token FROM fenceline_mark")
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
    make = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; from tests.guards import make_file; "
    )
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
    ((mark,),) = machine.read("SELECT token FROM fenceline_mark")
    assert mark >= told
