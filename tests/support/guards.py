"""What tests of guards share: a file with a table, leases made by hand, and both guards behind one face."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fencelock import FencelockError, Sequencer, SourceInfo
from fencelock._api.credentials import note_asker
from fencelock._flows.tenure import Tenure
from fencelock.model import one_way

LOCK = "nightly-report"
RESOURCE = "reports"


def claim_of(token: int) -> str:
    """Return the claim of the lease that got this token; every token has a claim of its own."""
    return f"claim-{token}"


def sequencer(token: int, *, claim: str | None = None, **changes: Any) -> Sequencer:
    """Return the sequencer of the lease that got this token, by its own claim or another."""
    fields = {"source_id": "source", "history_id": "history", "lock": LOCK} | changes
    return Sequencer(token=token, proof=one_way(claim or claim_of(token)), **fields)


class HandmadeLease:
    """A lease as guards see one, without a source: for every order of events that a real one seldom has."""

    def __init__(self, token: int, *, claim: str | None = None, **changes: Any) -> None:
        self.claim = claim or claim_of(token)
        self.sequencer = sequencer(token, claim=self.claim, **changes)
        self.tenure = Tenure()
        self.problem: Exception | None = None
        self._blocks: set[object] = set()

    def check_valid(self) -> None:
        if self.problem is not None:
            raise self.problem

    def remaining(self) -> float:
        return 30.0

    @property
    def open_transactions(self) -> int:
        return len(self._blocks)

    def enter_guarded(self, block: object) -> None:
        self.check_valid()
        self._blocks.add(block)

    def leave_guarded(self, block: object) -> None:
        self._blocks.discard(block)


ErrorType = TypeVar("ErrorType", bound=FencelockError)


def raised_for(error: ErrorType, lease: Any) -> ErrorType:
    """Return the error as a guard raises it for a lease."""
    note_asker(error, lease)
    return error


class HandmadeSource:
    """Something with `describe()`, as a source has it."""

    def __init__(self, last_token: int, source_id: str = "source") -> None:
        self.info = SourceInfo(source_id, 1, "history", last_token, last_token)

    def describe(self) -> SourceInfo:
        return self.info


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


@contextmanager
def plain(path: Path, *, timeout: float = 5) -> Iterator[sqlite3.Connection]:
    """Open a connection that knows nothing of fencelock."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=timeout)
    try:
        yield connection
    finally:
        connection.close()


def make_file(path: Path, *tables: str, journal: str = "wal") -> Path:
    """Make a database with these tables, each with the row (1, 0)."""
    with plain(path) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        for table in tables or (RESOURCE,):
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, value)")
            connection.execute(f"INSERT INTO {table} VALUES (1, 0)")
    return path


def value_in(path: Path, table: str = RESOURCE) -> Any:
    """Return the value of the row 1."""
    return ask(path, f"SELECT value FROM {table} WHERE id = 1")[0][0]


def ask(path: Path, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Return the rows of one query on a connection of its own."""
    with plain(path) as connection:
        return connection.execute(statement, parameters).fetchall()


def write(
    guard: Any, lease: Any, value: Any = 1, table: str = RESOURCE, then: Callable[[Any], Any] | None = None
) -> None:
    """Write a value in a guarded transaction, and then do something else in it."""
    with guard.transaction(lease) as connection:
        connection.execute(f"UPDATE {table} SET value = ? WHERE id = 1", (value,))
        if then is not None:
            then(connection)


def fail(_: Any) -> None:
    """Raise what no library raises."""
    raise ZeroDivisionError


class Blocking:
    """An async guard behind the face of the sync one, so that one test body runs over both."""

    def __init__(self, guard: Any, run: Callable[[Any], Any]) -> None:
        self._guard = guard
        self._run = run

    def __repr__(self) -> str:
        return repr(self._guard)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._guard, name)
        if not callable(member):
            return member
        if name in ("transaction", "check", "rebuilding"):
            return lambda *arguments, **named: BlockingBlock(member(*arguments, **named), self._run, name)
        return lambda *arguments, **named: self._run(member(*arguments, **named))


class BlockingBlock:
    """An async block behind the face of a sync one."""

    def __init__(self, block: Any, run: Callable[[Any], Any], name: str) -> None:
        self._block = block
        self._run = run
        if name == "check":
            run(_awaited(block))

    def __enter__(self) -> Any:
        return self._run(self._block.__aenter__())

    def __exit__(self, *error: object) -> Any:
        return self._run(self._block.__aexit__(*error))


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


class Opener:
    """Opens guards of one kind, sync or async, that all look sync."""

    def __init__(self, kind: str, runner: asyncio.Runner | None) -> None:
        self.kind = kind
        self._runner = runner

    def __call__(self, path: Path, *, lock: str = LOCK, **named: Any) -> Any:
        import fencelock
        import fencelock.aio

        if "resources" not in named:
            named.setdefault("resource", RESOURCE)
        if self._runner is None:
            return fencelock.guard(url_of(path), lock=lock, **named)
        return Blocking(fencelock.aio.guard(url_of(path), lock=lock, **named), self._runner.run)
