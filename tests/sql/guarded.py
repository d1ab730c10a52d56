"""What tests of the guard on an SQL server share: a database with a table, guards on it, and steps made by hand."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import fencelock
import fencelock.aio
from fencelock import Guard, Sequencer
from tests.sql.dialect import SqlDialect, run
from tests.support.guards import LOCK, RESOURCE, HandmadeLease, sequencer
from tests.support.helpers import wait_until

FORGED = 2**53
"""A token that nobody has issued, below the ceiling."""
TABLE = ("CREATE TABLE reports (id int PRIMARY KEY, value varchar(200))", "INSERT INTO reports VALUES (1, 'first')")


def make_table(database: Any) -> None:
    """Create the table `reports` with one row."""
    for statement in TABLE:
        database.rows(statement)


def make_guarded(database: Any) -> None:
    """Create the table `reports` with one row, and protect it."""
    make_table(database)
    fencelock.guard(database.url(), resource=RESOURCE, lock=LOCK).protect("reports")


class Guarded:
    """A database whose table `reports` is protected as the resource of that name."""

    def __init__(self, sql: SqlDialect, database: Any) -> None:
        self.sql = sql
        self.database = database

    def guard(self, *resources: str, **params: str) -> Guard:
        return fencelock.guard(self.database.url(**params), resources=resources or (RESOURCE,), lock=LOCK)

    def async_guard(self) -> Any:
        return fencelock.aio.guard(self.database.url(), resource=RESOURCE, lock=LOCK)

    def guard_at(self, level: str, *resources: str) -> Guard:
        """Return a guard whose transactions have an isolation level."""
        return self.guard(*resources, **self.sql.guard_params(level))

    def value(self, key: int = 1) -> Any:
        return self.database.value("SELECT value FROM reports WHERE id = %s", key)

    def sealed(self, token: int) -> HandmadeLease:
        """Return a lease that has sealed the resource."""
        lease = HandmadeLease(token)
        self.guard().seal(lease)
        return lease

    def forge_on(self, native: Any, like: Sequencer) -> None:
        """Seal with one forged token after the other, in plain SQL, until the session ends."""
        for token in range(FORGED, FORGED + 10**6):
            try:
                run(native, f"{self.sql.call}seal(%s, 'reports')", str(replace(like, token=token)))
            except self.sql.client_error as error:
                if self.sql.has_ended(native, error):
                    return

    def present(self, native: Any, token: int, *resources: str) -> None:
        """Present a token as any client does."""
        self.sql.present(native, sequencer(token), *(resources or (RESOURCE,)))

    def client(self, level: str = "read committed", **params: Any) -> AbstractContextManager[Any]:
        """Open a client that knows no guard, in autocommit mode."""
        return self.sql.client(self.database, level, **params)

    def wait_for_lock(self, native: Any) -> None:
        """Return once this connection waits for another one's lock."""
        wait_until(lambda: self.sql.is_blocked(self.database, native))

    def wait_for_anybody(self) -> None:
        """Return once any connection waits for another one's lock."""
        wait_until(lambda: self.sql.is_blocked(self.database))

    def kill(self, native: Any) -> None:
        """Have the server end a connection, and return once it has."""
        self.sql.kill(self.database, native)

    def wait_for_end(self, native: Any) -> None:
        """Return once the server has ended a connection."""
        self.sql.wait_for_end(self.database, self.sql.number_of(native))


class Step:
    """A call that runs in a thread of its own, because it has to wait for another step."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = lambda: function(*arguments, **named)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def end(self) -> Any:
        """Return its result, or raise its error."""
        self._thread.join(30)
        assert self.is_done(), "the step still waits"
        if self.error is not None:
            raise self.error
        return self.result


class BriefLease(HandmadeLease):
    """A lease with little time left: what servers that count in whole seconds can have, and a busy machine takes for no
    statement.
    """

    def remaining(self) -> float:
        return 1.0


def write(native: Any, value: str = "mine", key: int = 1) -> None:
    """Write the value of a report."""
    run(native, "UPDATE reports SET value = %s WHERE id = %s", value, key)


def in_block(guarded: Guarded, body: Callable[[Any], Any], lease: Any = None) -> Any:
    """Write, and then run `body`, in a guarded block."""
    with guarded.guard().transaction(lease or HandmadeLease(5)) as native:
        write(native)
        return body(native)
