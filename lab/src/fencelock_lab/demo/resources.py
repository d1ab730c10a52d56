"""The counter that both processes add to, behind nothing, behind a naive check, and behind a guard.

Promise: each resource is what a careful programmer would write at that level: every statement is
atomic, no connection and no transaction stays open between two calls, and a refusal is a
StaleTokenError. The first two are the demo's bad examples: never copy them.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import fencelock

LOCK = "counter"
BUSY_TIMEOUT_S = 10.0


class DemoResource(Protocol):
    """A counter in a database file."""

    def create(self) -> None:
        """Make the counter, with value 0."""

    def read(self, sequencer: fencelock.Sequencer) -> int:
        """Return the counter, as the holder of the lock sees it."""

    def write(self, sequencer: fencelock.Sequencer, value: int) -> None:
        """Set the counter; raise StaleTokenError if the resource refuses the token."""

    def look(self) -> tuple[int, int | None]:
        """Return the counter and the mark (None: there is none), as an onlooker sees them."""


class Unchecked:
    """Act 1: a process that believes that it holds the lock may write."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        with _autocommit(self.path) as connection:
            connection.execute("CREATE TABLE counter (value INTEGER NOT NULL)")
            connection.execute("INSERT INTO counter VALUES (0)")

    def read(self, sequencer: fencelock.Sequencer) -> int:
        return self.look()[0]

    def write(self, sequencer: fencelock.Sequencer, value: int) -> None:
        with _autocommit(self.path) as connection:
            connection.execute("UPDATE counter SET value = ?", (value,))

    def look(self) -> tuple[int, int | None]:
        with _autocommit(self.path) as connection:
            return connection.execute("SELECT value FROM counter").fetchall()[0][0], None


class Unsealed:
    """Act 2: a write checks `token >= mark` and raises the mark, in one statement; a read does not.

    The check itself is right, and atomic with the write. What is missing is the seal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self) -> None:
        with _autocommit(self.path) as connection:
            connection.execute("CREATE TABLE counter (value INTEGER NOT NULL, mark INTEGER NOT NULL)")
            connection.execute("INSERT INTO counter VALUES (0, 0)")

    def read(self, sequencer: fencelock.Sequencer) -> int:
        return self.look()[0]

    def write(self, sequencer: fencelock.Sequencer, value: int) -> None:
        token = sequencer.token
        with _autocommit(self.path) as connection:
            written = connection.execute(
                "UPDATE counter SET value = ?, mark = ? WHERE mark <= ?", (value, token, token)
            ).rowcount
        if not written:
            mark = self.look()[1] or 0
            raise fencelock.StaleTokenError(
                f"the counter refuses token {token}: its mark is {mark}. Acquire the lock again",
                token=token,
                mark=mark,
                resource=LOCK,
            )

    def look(self) -> tuple[int, int | None]:
        with _autocommit(self.path) as connection:
            value, mark = connection.execute("SELECT value, mark FROM counter").fetchall()[0]
        return value, mark


class Guarded:
    """Act 3: fencelock's guard. A tenure's first transaction seals the token before it reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = fencelock.guard(f"sqlite:///{path}", resource="counter", lock=LOCK)

    def create(self) -> None:
        Unchecked(self.path).create()
        self._guard.protect("counter")

    def read(self, sequencer: fencelock.Sequencer) -> int:
        with self._guard.transaction(sequencer) as connection:
            value: int = connection.execute("SELECT value FROM counter").fetchall()[0][0]
        return value

    def write(self, sequencer: fencelock.Sequencer, value: int) -> None:
        with self._guard.transaction(sequencer) as connection:
            connection.execute("UPDATE counter SET value = ?", (value,))

    def look(self) -> tuple[int, int | None]:
        return Unchecked(self.path).look()[0], self._guard.mark().token


RESOURCES: dict[str, type[Unchecked | Unsealed | Guarded]] = {
    "unchecked": Unchecked,
    "unsealed": Unsealed,
    "guarded": Guarded,
}


@contextmanager
def _autocommit(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()
