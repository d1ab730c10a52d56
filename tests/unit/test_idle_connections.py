"""Idle connections of guards: one that comes back while they are being closed is closed too."""

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fencelock.stores.draining import drained
from fencelock.stores.sql.guard_store import IdleConnections
from fencelock.stores.sqlite.guard.store import SQLiteIdleConnections


class ClosedMeanwhile(deque[Any]):
    """A queue whose owner is closed by another thread right before a connection is kept."""

    def __init__(self, owner: Any) -> None:
        super().__init__()
        self._owner = owner

    def append(self, connection: Any) -> None:
        self._owner.close()
        super().append(connection)


def test_a_connection_to_a_server_that_comes_back_meanwhile_is_closed() -> None:
    closed: list[Any] = []
    idle: IdleConnections[Any] = IdleConnections(lambda: None, bool, closed.append)
    idle._idle = ClosedMeanwhile(idle)
    native = SimpleNamespace(is_unchanged=lambda: True)
    idle.give_back(native)
    assert closed == [native]


def test_a_connection_to_a_file_that_comes_back_meanwhile_is_closed(tmp_path: Path) -> None:
    idle = SQLiteIdleConnections(tmp_path / "app.db")
    idle._idle = ClosedMeanwhile(idle)
    closed: list[bool] = []
    database = SimpleNamespace(is_unchanged=lambda: True, watch=SimpleNamespace(), close=lambda: closed.append(True))
    idle.give_back(SimpleNamespace(database=database))  # type: ignore[arg-type]
    assert closed == [True]


def test_a_queue_that_another_thread_empties_meanwhile_ends() -> None:
    queue = deque("ab")
    taken = drained(queue)
    assert next(taken) == "b"
    queue.clear()
    assert list(taken) == []
