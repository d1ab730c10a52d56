"""Guards among real processes: frozen and killed at every moment, and other processes that go on meanwhile."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import fencelock
from fencelock import SourceUnavailableError, inspect_resources
from tests.process.actors import Stage
from tests.process.guard_stage import file, guard_of, play, stage
from tests.support.guards import LOCK, HandmadeLease, ask, plain, url_of, value_in, write

__all__ = ["file", "stage"]

pytestmark = pytest.mark.process


# --- frozen ---
@pytest.mark.reduced
def test_g2_a_holder_frozen_between_its_read_and_its_write_is_refused_when_it_thaws(stage: Stage, file: Path) -> None:
    """Its lease runs out while it stands still; the next holder reads, and writes what it computed."""
    guard_of(file).protect("reports")
    old = play(
        stage,
        """
        guard.mark()  # Imports what is imported late.
        early_beats()
        lease = source.lock("nightly-report", ttl=1.5).acquire()
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
            except fencelock.FencelockError as error:
                say(type(error).__name__)
        """,
    )
    assert old.hear() == "read"
    old.freeze()
    with fencelock.connect(stage.url) as source, source.lock(LOCK, timeout=20) as lease:
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
    with pytest.raises(SourceUnavailableError, match="frozen or slow inside a write transaction"):
        guard.seal(HandmadeLease(token + 1))
    assert guard.mark().token == token
    holder.kill()
    with fencelock.connect(stage.url) as source:
        source.break_lock(LOCK, reason="its process was killed")
        with source.lock(LOCK) as lease:
            write(guard, lease, "next")
    assert value_in(file) == "next"


# --- killed, or frozen, before any statement ---
STEPS = """
import itertools
from fencelock.stores.sqlite.guard.block import SQLiteBlockConnection
opened, left = SQLiteBlockConnection._open, 0
from fencelock.protocol import one_way
from fencelock.testing.runners import HolderCredential
sequencer = fencelock.Sequencer("source", "history", "nightly-report", 5, one_way("claim-5"))
lease = HolderCredential(sequencer, "claim-5")

def step(_):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), THE_SIGNAL)

def traced(database):
    native = opened(database)
    native.set_trace_callback(step)
    return native

SQLiteBlockConnection._open = traced

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
    """An interrupted operation has happened or has not; the file works, and the next holder can write."""
    assert ask(file, "PRAGMA integrity_check") == [("ok",)]
    seen = inspect_resources(url_of(file))
    tokens = [mark.token for mark in seen.marks]
    assert tokens in ([], [0], [5], [2**39], [2**40])
    assert value_in(file) == 0 or (value_in(file), tokens) == ("mine", [5])
    if seen.marks:
        assert ask(file, "SELECT * FROM fencelock_seal") == []
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
            except fencelock.StaleTokenError:
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
    """Return whether another connection has the write lock."""
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
    with pytest.raises(SourceUnavailableError, match="locked by another connection"):
        guard_of(file).protect("reports")
    holder.say()
    guard_of(file).protect("reports")
    assert value_in(file) == "theirs"
    assert [one.table for one in inspect_resources(url_of(file)).protections] == ["reports"]
