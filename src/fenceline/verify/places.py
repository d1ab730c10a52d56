"""What a campaign writes to: for each resource a table of counters and a list of writes, protected by the user's guard.

Promise: a write says what it was computed from, so that the list alone tells whether it was computed from everything
below it. The tables carry the run's own name, and `remove` takes them away. What stays is what no guard gives up: the
marks of the resources, and what the audit table says.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, Protocol, runtime_checkable

import fenceline
from fenceline._api.guard import look_at
from fenceline.verify.dialects import Dialect, dialect_of
from fenceline.verify.plan import Settings

ROWS = 4
"""Rows among which the writes take turns: a mark on each row, instead of the resource, must not be enough."""
REASON = "fenceline verify has ended"


class Seen(NamedTuple):
    """What a read saw: how many writes the list has, and each counter."""

    position: int
    counters: dict[int, int]

    def after_write(self) -> "Seen":
        """Return what the resource holds after one write."""
        row = counter_of(self)
        return Seen(self.position + 1, self.counters | {row: self.counters[row] + 1})


@runtime_checkable
class Rewindable(Protocol):
    """A place whose resources can go back in time: nobody else's data is there."""

    def snapshot(self, resource: str) -> Any:
        """Return all that a resource holds, its mark included."""

    def rewind(self, resource: str, snapshot: Any) -> int:
        """Put a resource back to what it held, and return how many writes that were."""


class Place:
    """The resources of one lock, as the workers of a campaign use them."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.url = settings.guard
        self.lock = settings.lock(number)
        self.resources = settings.resources(number)
        self.dialect: Dialect = dialect_of(self.url)
        self._stems = settings.stems(number)
        self._guard = fenceline.guard(self.url, resources=self.resources, lock=self.lock)
        self._made: list[str] = []

    def transaction(self, proof: Any) -> Any:
        """Return a block that yields a connection, and commits at its end if the proof is the newest holder's."""
        return self._guard.transaction(proof)

    def read(self, proof: Any, resource: str) -> Seen:
        """Return what the resource holds, as the holder of the lock sees it."""
        with self.transaction(proof) as connection:
            return self.look(connection, resource)

    @contextmanager
    def writing(self, proof: Any, resource: str, seen: Seen, name: str, token: int) -> Iterator[None]:
        """Write what was computed from `seen`; the block runs between the write and the commit."""
        with self.transaction(proof) as connection:
            self.write(connection, resource, seen, name, token)
            yield

    def write_unfenced(self, resource: str) -> None:
        """Write without a token, as code does that knows no guard; UnfencedWriteError if the store refuses it."""
        try:
            with self.dialect.plain(self.url) as connection:
                self.rows(connection, "UPDATE {counters} SET value = value - 1000 WHERE id = {}", resource, 1)
        except Exception as error:
            if self.dialect.refusal in str(error):
                raise fenceline.UnfencedWriteError(str(error)) from error
            raise

    # --- the tables ---------------------------------------------------------------------------------------------------
    def rows(self, connection: Any, statement: str, resource: str, *parameters: Any) -> list[Any]:
        """Run a statement about the resource's tables, and return its rows."""
        return self.dialect.rows(connection, statement, self._stems[resource], *parameters)

    def look(self, connection: Any, resource: str) -> Seen:
        """Read the resource."""
        counters = self.rows(connection, "SELECT id, value FROM {counters}", resource)
        last = self.rows(connection, "SELECT position FROM {list} ORDER BY serial DESC LIMIT 1", resource)
        return Seen(last[0][0] if last else 0, dict(counters))

    def write(self, connection: Any, resource: str, seen: Seen, name: str, token: int) -> None:
        """Set the counter whose turn it is, and append to the list."""
        row = counter_of(seen)
        # The counter comes first: its row's lock makes the list's serial numbers grow in the order of the commits.
        statement = "UPDATE {counters} SET value = {} WHERE id = {}"
        self.rows(connection, statement, resource, seen.counters[row] + 1, row)
        statement = "INSERT INTO {list} (name, position, token) VALUES ({}, {}, {})"
        self.rows(connection, statement, resource, name, seen.position + 1, token)

    def final(self, resource: str) -> tuple[list[tuple[Any, ...]], int]:
        """Return the writes in the order of their commits, and the sum of the counters."""
        with self.dialect.plain(self.url) as connection:
            rows = self.rows(connection, "SELECT name, position, token FROM {list} ORDER BY serial", resource)
            ((total,),) = self.rows(connection, "SELECT SUM(value) FROM {counters}", resource)
        return rows, int(total)

    # --- making and removing ------------------------------------------------------------------------------------------
    def create(self) -> None:
        """Make the tables, and have the guard protect them."""
        for resource in self.resources:
            self.check_unused(resource)
            self._made.append(resource)
            with self.dialect.plain(self.url) as connection:
                self.dialect.create(connection, self._stems[resource])
                for row in range(1, ROWS + 1):
                    self.rows(connection, "INSERT INTO {counters} (id, value) VALUES ({}, 0)", resource, row)
            self.protect(resource)

    def check_unused(self, resource: str) -> None:
        """Raise GuardError if another run is using the resource, or was killed while it did."""
        tables: list[str] = []
        with suppress(fenceline.SchemaError):  # `protect` will make the guard's own schema.
            tables = [one.table for one in look_at(self.url, resource).protections]
        if tables:
            raise fenceline.GuardError(
                f"{self.url}: resource {resource!r} protects {', '.join(tables)}, of another run of fenceline verify. "
                f"Wait for its end; if it was killed, run `fenceline unprotect URL --resource {resource} --reason …` "
                f"and drop these tables"
            )

    def protect(self, resource: str) -> None:
        """Have the guard protect a resource's tables."""
        guard = fenceline.guard(self.url, resource=resource, lock=self.lock)
        guard.protect(*self.tables(resource))

    def tables(self, resource: str) -> tuple[str, str]:
        """Return the names of the resource's tables."""
        return self.dialect.tables(self._stems[resource])

    def remove(self) -> list[str]:
        """Take away what was made, and return what could not be, with the reason."""
        left = []
        while self._made:
            resource = self._made.pop()
            try:
                self.unprotect(resource)
                with self.dialect.plain(self.url) as connection:
                    self.dialect.drop(connection, self._stems[resource])
            except Exception as error:
                left.append(f"{', '.join(self.tables(resource))}: {type(error).__name__}: {error}")
        return left

    def unprotect(self, resource: str) -> None:
        """Have the guard let the resource's tables go."""
        with suppress(fenceline.GuardError):  # It was not protected yet.
            fenceline.guard(self.url, resource=resource, lock=self.lock).unprotect(reason=REASON)


def counter_of(seen: Seen) -> int:
    """Return the counter whose turn the next write is."""
    return seen.position % ROWS + 1
