"""What tests of the PostgreSQL guard share: a database with a table, guards on it, and connections stepped by hand."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

import fencelock
from fencelock import Guard
from tests.guards import LOCK, RESOURCE, HandmadeLease, sequencer
from tests.helpers import wait_until
from tests.sql.postgres.fix_postgres import Database

REFUSED = "takes writes only from the holder of its lock"
TABLE = "CREATE TABLE reports (id int PRIMARY KEY, value text); INSERT INTO reports VALUES (1, 'first')"


class Guarded:
    """A database whose table `reports` is protected as the resource of that name."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def guard(self, *resources: str, **params: str) -> Guard:
        return fencelock.guard(self.database.url(**params), resources=resources or (RESOURCE,), lock=LOCK)

    def value(self, key: int = 1) -> Any:
        return self.database.value("SELECT value FROM reports WHERE id = %s", key)

    def sealed(self, token: int) -> HandmadeLease:
        """Return a lease that has sealed the resource."""
        lease = HandmadeLease(token)
        self.guard().seal(lease)
        return lease

    def present(self, native: psycopg.Connection, token: int, *resources: str) -> None:
        """Present a token as any client does."""
        native.execute(
            "SELECT fencelock.present(%s, VARIADIC %s)", (str(sequencer(token)), list(resources or (RESOURCE,)))
        )

    @contextmanager
    def client(self, level: str = "read committed", **params: Any) -> Iterator[psycopg.Connection]:
        """Yield a client that knows no guard."""
        options = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
        with self.database.connect(options=options, **params) as native:
            yield native

    def wait_for_lock(self, native: psycopg.Connection) -> None:
        """Return once what this connection does waits for somebody else's lock."""
        self.wait_for_backend(native.info.backend_pid)

    def wait_for_backend(self, backend: int) -> None:
        wait_until(lambda: self.database.value("SELECT cardinality(pg_blocking_pids(%s)) > 0", backend))

    def wait_for_anybody(self) -> None:
        """Return once somebody in this database waits for a lock."""
        wait_until(
            lambda: self.database.value(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )


class Step:
    """A call that runs in a thread of its own, because it has to wait for another's next step."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self._call = call
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
