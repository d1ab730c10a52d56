"""The fork gate and the collector: an unreferenced connection is closed, and never during a fork."""

import gc
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from fencelock.stores.sqlite.connection import database as module
from fencelock.stores.sqlite.connection import forks
from fencelock.stores.sqlite.connection.database import Database
from fencelock.stores.sqlite.connection.forks import SQLiteForkGate
from tests.process.actors import Stage
from tests.support.helpers import wait_until

pytestmark = pytest.mark.reduced


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> SQLiteForkGate:
    """A gate of the test's own, which no real fork uses."""
    gate = SQLiteForkGate()
    monkeypatch.setattr(module, "GATE", gate)
    return gate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "any.db"


def log_of(path: Path) -> Path:
    """Return the log of a file, which the last connection to close takes away."""
    return path.with_name(path.name + "-wal")


def opened(path: Path) -> Database:
    """Return a database with an open connection."""
    database = Database(path)
    database.run_alone("PRAGMA journal_mode = WAL")
    database.run("CREATE TABLE IF NOT EXISTS t (v)")
    assert log_of(path).exists()
    return database


@pytest.mark.parametrize("is_cyclic", [False, True])
def test_a_database_that_nobody_refers_to_closes_its_connection(
    gate: SQLiteForkGate, path: Path, is_cyclic: bool
) -> None:
    database = opened(path)
    native = database.native
    if is_cyclic:
        database.itself = database  # type: ignore[attr-defined]
    del database
    gc.collect()
    assert not log_of(path).exists()
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        native.execute("SELECT 1")
    assert native not in gate._open


def test_what_is_collected_in_the_midst_of_a_fork_is_closed_after_it(gate: SQLiteForkGate, path: Path) -> None:
    database = opened(path)
    native = database.native
    database.begin()
    gate.before_fork()
    del database
    assert native.in_transaction
    gate.after_fork_in_parent()
    assert not log_of(path).exists()


def test_what_was_collected_just_before_a_fork_is_not_inherited(gate: SQLiteForkGate, path: Path) -> None:
    """Its finalizer found the gate closed; otherwise the child would be refused the file without a reason."""
    database = opened(path)
    gate.is_shut = True
    del database
    assert log_of(path).exists()
    gate.before_fork()
    assert not log_of(path).exists()
    gate.after_fork_in_parent()


def test_a_fork_waits_for_the_closing_of_what_was_collected(
    gate: SQLiteForkGate, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing takes SQLite's own locks, which a child would find taken for ever."""
    monkeypatch.setattr(forks, "FORK_TIMEOUT_S", 60.0)
    closing, may_close = threading.Event(), threading.Event()
    order: list[str] = []

    class Slow:
        def close(self) -> None:
            closing.set()
            assert may_close.wait(30)
            order.append("closed")

    native: Any = Slow()
    gate.opened(native, path)
    closer = threading.Thread(target=gate.close_collected, args=(native,))
    closer.start()
    assert closing.wait(30)

    def fork() -> None:
        gate.before_fork()
        order.append("forked")
        gate.after_fork_in_parent()

    forking = threading.Thread(target=fork)
    forking.start()
    wait_until(lambda: gate.is_shut)
    assert not order
    may_close.set()
    closer.join()
    forking.join()
    assert order == ["closed", "forked"]


def test_a_child_never_closes_what_was_collected_in_its_parent(stage: Stage) -> None:
    """In a transaction, and handed over while the gate was shut: the child's own hooks must leave it alone."""
    actor = stage.actor("""
        import gc
        gc.disable()
        # Registered before fencelock's own hook, and therefore run before it in the child.
        os.register_at_fork(after_in_child=gc.collect)
        from fencelock.stores.sqlite.connection.database import Database
        from pathlib import Path
        def is_open(native):
            try:
                return native.in_transaction
            except Exception as error:
                return str(error)
        database = Database(Path(URL.removeprefix("sqlite:///") + "-other"))
        database.run("CREATE TABLE t (v)")
        database.begin()
        native = database.native
        database.itself = database
        del database
        child = os.fork()
        if child == 0:
            gc.collect()
            say(is_open(native))
            try:
                Database(Path(URL.removeprefix("sqlite:///") + "-other")).native
            except fencelock.UnsupportedError:
                say("refused")
            os._exit(0)
        os.waitpid(child, 0)
        say(is_open(native))
        gc.collect()
        say(is_open(native))
    """)
    assert actor.hear() is True
    assert actor.hear() == "refused"
    assert actor.hear() is True
    assert "closed database" in actor.hear()


def test_a_connection_that_its_user_closed_does_not_keep_others_open_in_a_fork(
    gate: SQLiteForkGate, path: Path
) -> None:
    closed, other = opened(path), opened(path)
    closed.begin()
    closed.native.close()
    gate.before_fork()
    gate.after_fork_in_parent()
    assert not other.is_open
    assert not log_of(path).exists()


def test_a_child_leaves_the_pipes_of_its_parents_waiters(stage: Stage) -> None:
    """A child's end collects what it inherited, such as the tasks of a loop; the parent's still wait to be woken."""
    actor = stage.actor("""
        import select
        from pathlib import Path
        from fencelock.stores.sqlite.source import wakeup
        path = Path(URL.removeprefix("sqlite:///"))
        path.touch()
        bell = wakeup.PipeWakeup(path, "claim")
        child = os.fork()
        if child == 0:
            bell.close()
            os._exit(0)
        os.waitpid(child, 0)
        wakeup.notify(path, "claim")
        say(bool(select.select([bell.fileno()], [], [], 0)[0]))
        bell.close()
        say(os.listdir(f"{path}-wake"))
    """)
    assert actor.hear() is True
    assert actor.hear() == []
