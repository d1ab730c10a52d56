"""A database for simulations: PostgreSQL's own source on a real server, with a clock that the simulator sets.

Promise: the functions are those of `stores/postgres/source/functions_*.sql`, except that the clock is a setting, and
that `begin_history` reads a simulated calendar and a simulated id. Each statement is a transaction; the outcome says
whether it changed anything and whether the change is flushed. A saved state can replace the present one in every way
in which a server can come back. Never uses a database with a source that is in use.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

from fencelock.errors import ConfigError
from fencelock.stores.postgres.connection.url import parse_url
from fencelock.stores.postgres.source.store import FUNCTIONS, PostgresSource
from fencelock.stores.sql.source import Rows
from fencelock.stores.statements import statements

CHANNEL = "fencelock_simulated"
"""The channel on which all simulated processes listen."""
SQL = statements(__package__, "postgres.sql")
_ANEW = {"CREATE FUNCTION": "CREATE OR REPLACE FUNCTION"}
_TOLD = {
    "create_begin_history": {"clock_timestamp()": "simulated.calendar()", "gen_random_uuid()": "simulated.draw_id()"}
}
_CREATED = [name for name in SQL if name.startswith("create_")]


class StatementOutcome(NamedTuple):
    """The rows of a statement, and whether its changes exist and are flushed."""

    rows: Rows
    has_changed: bool
    is_flushed: bool


class SimulatedDatabase:
    """One connection to a database that contains only a source to simulate."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.info = parse_url(url)
        self.native: psycopg.Connection[Any] = psycopg.connect(
            url, autocommit=True, cursor_factory=psycopg.ClientCursor
        )
        self._notified: list[str] = []
        self.native.add_notify_handler(lambda notification: self._notified.append(notification.payload))
        self.native.execute(f"LISTEN {CHANNEL}".encode())
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        self._unused = self.save()

    def _prepare(self) -> None:
        """Create a new source that uses virtual time."""
        [(has_source, is_ours)] = self.native.execute(
            "SELECT to_regnamespace('fencelock') IS NOT NULL, to_regnamespace('simulated') IS NOT NULL"
        )
        if has_source and not is_ours:
            raise ConfigError(f"{self.info.url} has a source already: name a database that is for simulations alone")
        self.native.execute("DROP SCHEMA IF EXISTS simulated, fencelock CASCADE")
        PostgresSource(self.url).install()
        for name in _CREATED:
            self.native.execute(SQL[name].encode())
        self.replace("create_begin_history", {})
        self.native.execute(SQL.draw_first_ids.encode())

    def replace(self, name: str, changes: dict[str, str]) -> None:
        """Redefine one of the source's functions with these changes to its text; each change must match."""
        text = next(file[name] for file in FUNCTIONS if name in file)
        for old, new in {**_ANEW, **_TOLD.get(name, {}), **changes}.items():
            if old not in text:
                raise ConfigError(f"the statement {name!r} no longer contains {old!r}")
            text = text.replace(old, new)
        self.native.execute(text.encode())

    def begin_world(self, now_us: int, calendar_s: int) -> None:
        """Return to an unused source and an unused session."""
        self.native.execute(SQL.begin_session.encode())
        self.native.execute(SQL.begin_world.encode(), (str(now_us), str(now_us), str(calendar_s), self._unused))
        self._notified.clear()

    def run(self, now_us: int, statement: str, parameters: Sequence[Any]) -> StatementOutcome:
        """Run a statement at this virtual time, in one transaction and one round trip; psycopg's errors propagate."""
        together = f"{SQL.tell_time};{statement};{SQL.tell_outcome}"
        cursor = self.native.execute(together.encode(), (str(now_us), *parameters))
        cursor.nextset()
        rows = cursor.fetchall()
        cursor.nextset()
        [(has_changed, is_flushed)] = cursor
        return StatementOutcome(rows, has_changed, is_flushed and has_changed)

    def save(self) -> str:
        """Return the present state."""
        [(state,)] = self.native.execute(SQL.save.encode())
        return state  # type: ignore[no-any-return]

    def load(self, state: str, how: str) -> None:
        """Replace the present state by a saved one; `how` is an argument of `simulated.load`."""
        self.native.execute(SQL.load.encode(), (state, how))

    def take_notified(self) -> list[str]:
        """Return the notifications since the last call."""
        notified, self._notified = self._notified, []
        return notified

    def close(self) -> None:
        """Close the connection."""
        self.native.close()
