"""The rule G11 on a SQLite file: references to a connection that a user keeps never reach into a later block."""

import itertools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fencelock import GuardError
from fencelock.stores.sqlite.guard.store import MAX_IDLE_CONNECTIONS
from tests.support.guards import HandmadeLease, Opener, ask, make_file, plain, value_in, write
from tests.support.helpers import wait_until

pytestmark = pytest.mark.reduced

KEEPERS: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "connection": lambda connection: connection,
    "cursor": sqlite3.Connection.cursor,
    "method": lambda connection: connection.execute,
}


@pytest.fixture
def guard(open_guard: Opener, file: Path) -> Any:
    """A guard of the file's table, enforced."""
    guard = open_guard(file)
    guard.protect("reports")
    return guard


@pytest.mark.parametrize("keep", KEEPERS.values(), ids=KEEPERS)
def test_g11_what_is_kept_of_a_connection_writes_in_no_later_block(
    guard: Any, file: Path, keep: Callable[[sqlite3.Connection], Any]
) -> None:
    """A late thread of an older tenure may have it: its write would be committed with the new holder's."""
    kept: list[Any] = []
    write(guard, HandmadeLease(5), "old", then=lambda connection: kept.append(keep(connection)))
    execute = getattr(kept[0], "execute", kept[0])
    for token in (6, 7):
        with guard.transaction(HandmadeLease(token)) as connection:
            with pytest.raises(sqlite3.OperationalError, match="database is locked"):
                execute("UPDATE reports SET value = 'stale'")
            connection.execute("UPDATE reports SET value = 'new'")
        with pytest.raises(sqlite3.IntegrityError, match="table reports belongs to resource reports"):
            execute("UPDATE reports SET value = 'stale'")
    assert value_in(file) == "new"


MEDDLING: list[Callable[[sqlite3.Connection], Any]] = [
    lambda connection: connection.execute("BEGIN"),
    lambda connection: connection.execute("PRAGMA foreign_keys = OFF"),
    lambda connection: connection.execute("ATTACH ':memory:' AS once"),
    lambda connection: setattr(connection, "row_factory", sqlite3.Row),
    lambda connection: connection.close(),
]


def test_g11_what_was_done_to_a_kept_connection_does_not_reach_a_later_block(guard: Any, file: Path) -> None:
    kept: list[sqlite3.Connection] = []
    for meddle in MEDDLING:
        write(guard, HandmadeLease(5), then=kept.append)
        meddle(kept.pop())
        with guard.transaction(HandmadeLease(5)) as connection:
            assert connection.execute("PRAGMA foreign_keys").fetchone() == (1,)
            assert len(connection.execute("PRAGMA database_list").fetchall()) == 1
            assert connection.row_factory is None


def test_g11_a_loop_whose_variable_keeps_the_connection_gets_another_and_no_new_one(
    open_guard: Opener, file: Path
) -> None:
    """While a name still refers to the last block's connection, the next block gets another one that was used before:
    usually two take turns, and a third one joins them if the thread that answered was slow to forget its own.
    """
    guard, used = open_guard(file), []
    for _ in range(12):
        with guard.transaction(HandmadeLease(5)) as connection:
            used.append(id(connection))
    assert all(this != last for last, this in itertools.pairwise(used))
    assert 2 <= len(set(used)) < len(used) / 2


def test_g11_connections_that_are_kept_for_ever_do_not_fill_the_pool(open_guard: Opener, file: Path) -> None:
    guard, kept = open_guard(file), []
    for _ in range(3 * MAX_IDLE_CONNECTIONS):
        write(guard, HandmadeLease(5), then=kept.append)

    def is_reused() -> bool:
        used = set()
        for _ in range(3):
            write(guard, HandmadeLease(5), then=lambda connection: used.add(id(connection)))
        return len(used) == 1

    # The thread that opened a block may refer to its connection for a moment after the block has ended.
    wait_until(is_reused)
    with pytest.raises(sqlite3.ProgrammingError, match="closed database"):
        kept[0].execute("SELECT 1")


# --- a statement that is not finished ---
UNFINISHED: dict[str, Callable[[sqlite3.Connection], Any]] = {
    "blob": lambda connection: connection.blobopen("free", "value", 1),
    "returning": lambda connection: connection.execute("INSERT INTO free (value) VALUES (1), (2), (3) RETURNING id"),
}


@pytest.mark.parametrize("begin", UNFINISHED.values(), ids=UNFINISHED)
def test_a_block_that_ends_in_the_middle_of_its_own_statement_is_refused_at_once(
    open_guard: Opener, tmp_path: Path, journal: str, begin: Callable[[sqlite3.Connection], Any]
) -> None:
    """SQLite's error there is the one for a file that others have locked, for which the guard would wait."""
    file = make_file(tmp_path / "app.db", "reports", "free", journal=journal)
    with plain(file) as connection:
        connection.execute("UPDATE free SET value = x'00'")
    guard, lease, kept = open_guard(file), HandmadeLease(5), []
    with pytest.raises(GuardError, match="in the middle of its own statement, and nothing of it was written"):
        write(guard, lease, "undone", then=lambda connection: kept.append(begin(connection)))
    if journal == "delete":
        kept.clear()  # A reader there, as SQLite has it, until the program closes it.
    write(guard, lease, "next")
    assert value_in(file) == "next"
    assert ask(file, "SELECT value FROM free") == [(b"\0",)]
    with plain(file) as connection:
        connection.execute("UPDATE free SET value = 'fine'")
