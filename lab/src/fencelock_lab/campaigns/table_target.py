"""Resources in tables: for each one a table of counters and one of writes, protected by the guard's triggers.

Promise: the tables carry the run's own name, and no other is touched.
"""

from contextlib import suppress
from typing import Any

import fencelock
from fencelock.testing import unfenced
from fencelock_lab.campaigns.dialects import Dialect, dialect_of
from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.target import ROWS, GuardTarget, Row, TargetState

REASON = "fencelock verify has ended"


class TableTarget(GuardTarget):
    """The resources of one lock in SQLite, PostgreSQL, MySQL or MariaDB."""

    def __init__(self, settings: CampaignSettings, number: int) -> None:
        super().__init__(settings, number)
        self.dialect: Dialect = dialect_of(self.url)

    def rows(self, connection: Any, statement: str, resource: str, *parameters: Any) -> list[Any]:
        """Run a statement about the resource's tables, and return its rows."""
        return self.dialect.rows(connection, statement, self._stems[resource], *parameters)

    def look(self, connection: Any, resource: str) -> TargetState:
        """Read the resource."""
        counters = self.rows(connection, "SELECT id, value FROM {counters}", resource)
        last = self.rows(connection, "SELECT position FROM {list} ORDER BY serial DESC LIMIT 1", resource)
        return TargetState(last[0][0] if last else 0, dict(counters))

    def write(self, connection: Any, resource: str, seen: TargetState, name: str, token: int) -> None:
        """Set the counter whose turn it is, and append to the list."""
        # The counter comes first: its row's lock makes the list's serial numbers grow in the order of the commits.
        statement = "UPDATE {counters} SET value = {} WHERE id = {}"
        self.rows(connection, statement, resource, seen.counters[seen.row] + 1, seen.row)
        statement = "INSERT INTO {list} (name, position, token) VALUES ({}, {}, {})"
        self.rows(connection, statement, resource, name, seen.position + 1, token)

    def write_unfenced(self, resource: str) -> None:
        """Change a counter without a token; UnfencedWriteError if a trigger refuses it."""
        try:
            with unfenced(self.url) as connection:
                self.rows(connection, "UPDATE {counters} SET value = value - 1000 WHERE id = {}", resource, 1)
        except Exception as error:
            # psycopg's text has no SQLSTATE, which is an attribute.
            if self.dialect.refusal in f"{getattr(error, 'sqlstate', '')} {error}":
                raise fencelock.UnfencedWriteError(str(error)) from error
            raise

    def final(self, resource: str) -> tuple[list[Row], int]:
        """Return the writes in the order of their commits, and the sum of the counters."""
        with unfenced(self.url) as connection:
            rows = self.rows(connection, "SELECT name, position, token FROM {list} ORDER BY serial", resource)
            ((total,),) = self.rows(connection, "SELECT SUM(value) FROM {counters}", resource)
        return rows, int(total)

    # --- making and removing ------------------------------------------------------------------------------------------
    def made_for(self, resource: str) -> list[str]:
        """Return the names of the resource's tables."""
        return list(self.dialect.tables(self._stems[resource]))

    def check_unused(self, resource: str) -> None:
        """Raise GuardError if the resource protects tables: those of another run."""
        tables: list[str] = []
        with suppress(fencelock.SchemaError):  # `protect` will make the guard's own schema.
            tables = [one.table for one in fencelock.inspect_resources(self.url, resource).protections]
        if tables:
            raise fencelock.GuardError(
                f"{self.shown_url}: resource {resource!r} protects {', '.join(tables)}, of another run of fencelock "
                f"verify. Wait for its end; if it was killed, run `fencelock unprotect URL --resource {resource} "
                f"--reason …` and drop these tables"
            )

    def make(self, resource: str) -> None:
        """Make the tables, and have the guard protect them."""
        with unfenced(self.url) as connection:
            self.dialect.create(connection, self._stems[resource])
            for row in range(1, ROWS + 1):
                self.rows(connection, "INSERT INTO {counters} (id, value) VALUES ({}, 0)", resource, row)
        self.protect(resource)

    def take_away(self, resource: str) -> None:
        """Have the guard let the tables go, and drop them."""
        self.unprotect(resource)
        with unfenced(self.url) as connection:
            self.dialect.drop(connection, self._stems[resource])

    def is_there(self, resource: str) -> bool:
        """Return whether one of the tables is there."""
        with unfenced(self.url) as connection:
            return self.dialect.has_tables(connection, self._stems[resource])

    def protect(self, resource: str) -> None:
        """Have the guard protect a resource's tables."""
        self.guard_of_one(resource).protect(*self.made_for(resource))

    def unprotect(self, resource: str) -> None:
        """Have the guard let the resource's tables go."""
        with suppress(fencelock.GuardError):  # It was not protected yet.
            self.guard_of_one(resource).unprotect(reason=REASON)
