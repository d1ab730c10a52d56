"""Broken guards of a SQLite file, as a programmer may well write them at first: negative controls of `verify`.

Promise: they work only on files that `verify --control` has made for them: no user's data is ever behind one. Copy
none.

    no-seal          token >= mark is checked, and the mark raised, with each write; a read raises nothing
    per-row          each row has a mark of its own
    unremembered     the seal is made again when it has gone, as after a restore, instead of ending the tenure
    sound            no rule is broken: this one must pass
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fencelock
from fencelock.testing import unfenced
from fencelock_lab.campaigns.settings import CampaignSettings
from fencelock_lab.campaigns.table_target import TableTarget
from fencelock_lab.campaigns.target import Proof, TargetState, stale_error

_MAKE = (
    "CREATE TABLE IF NOT EXISTS control_mark (resource TEXT, row INTEGER, token INTEGER, PRIMARY KEY (resource, row))"
)
_READ = "SELECT COALESCE(MAX(token), 0) FROM control_mark WHERE resource = ? AND row = ?"
_RAISE = "INSERT OR REPLACE INTO control_mark (resource, row, token) VALUES (?, ?, ?)"
_WHOLE = 0
"""In place of a row's number: the mark of the whole resource."""


class FileGuard(TableTarget):
    """A guard that checks nothing yet: a block of a transaction, and marks for those that do."""

    @contextmanager
    def transaction(self, proof: Proof, resource: str, *, is_writing: bool) -> Iterator[Any]:
        """Check, yield a connection, and commit at the end of the block."""
        with unfenced(self.url) as connection:
            self.prepare(connection, proof.token)
            connection.execute("BEGIN IMMEDIATE")
            try:
                self.admit(connection, proof.token, is_writing=is_writing)
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def prepare(self, connection: Any, token: int) -> None:
        """Do what this guard does before a transaction."""

    def admit(self, connection: Any, token: int, *, is_writing: bool) -> None:
        """Raise StaleTokenError if this guard refuses the token, inside the transaction."""

    # --- the mark -----------------------------------------------------------------------------------------------------
    def refuse_below(self, connection: Any, token: int, resource: str, row: int = _WHOLE) -> None:
        """Raise StaleTokenError if the token is below the mark."""
        mark = self.mark(connection, resource, row)
        if token < mark:
            raise stale_error(token, mark, resource)

    def mark(self, connection: Any, resource: str, row: int = _WHOLE) -> int:
        """Return the mark."""
        ((mark,),) = connection.execute(_READ, (resource, row)).fetchall()
        return int(mark)

    def raise_mark(self, connection: Any, token: int, resource: str, row: int = _WHOLE) -> None:
        """Set the mark to the token."""
        connection.execute(_RAISE, (resource, row, token))

    # --- going back in time -------------------------------------------------------------------------------------------
    def snapshot(self, resource: str) -> tuple[TargetState, int]:
        """Return what the resource holds, and its mark."""
        with unfenced(self.url) as connection:
            connection.execute("BEGIN")
            return self.look(connection, resource), self.mark(connection, resource)

    def rewind(self, resource: str, snapshot: tuple[TargetState, int]) -> int:
        """Put the resource and its mark back, as a restored backup does, and return how many writes it holds."""
        seen, mark = snapshot
        with unfenced(self.url) as connection:
            connection.execute("BEGIN IMMEDIATE")
            self.rows(connection, "DELETE FROM {list} WHERE position > {}", resource, seen.position)
            for row, value in seen.counters.items():
                self.rows(connection, "UPDATE {counters} SET value = {} WHERE id = {}", resource, value, row)
            self.raise_mark(connection, mark, resource)
            connection.execute("COMMIT")
        return seen.position

    # --- making and removing ------------------------------------------------------------------------------------------
    def check_unused(self, resource: str) -> None:
        """The file belongs to this run alone."""

    def protect(self, resource: str) -> None:
        """Make the table of marks; no store enforces them."""
        with unfenced(self.url) as connection:
            connection.execute(_MAKE)

    def unprotect(self, resource: str) -> None:
        """Nothing was protected."""


class NoSeal(FileGuard):
    """Each write checks and raises the mark, atomically; a read leaves it as it is."""

    def admit(self, connection: Any, token: int, *, is_writing: bool) -> None:
        """Refuse a lower token, and remember one that writes."""
        for resource in self.resources:
            self.refuse_below(connection, token, resource)
            if is_writing:
                self.raise_mark(connection, token, resource)


class PerRow(FileGuard):
    """The token is kept beside each row and checked when that row is written, as with optimistic locking."""

    def write(self, connection: Any, resource: str, seen: TargetState, name: str, token: int) -> None:
        """Check and raise the mark of the row, and write."""
        row = seen.row
        self.refuse_below(connection, token, resource, row)
        self.raise_mark(connection, token, resource, row)
        super().write(connection, resource, seen, name, token)


class Sound(FileGuard):
    """Seals in a transaction of its own before anything is read, and knows what it has sealed (G2, G9)."""

    def __init__(self, settings: CampaignSettings, number: int) -> None:
        super().__init__(settings, number)
        self._sealed: set[tuple[str, int]] = set()

    def prepare(self, connection: Any, token: int) -> None:
        """Seal every resource, unless this tenure has before."""
        for resource in self.resources:
            connection.execute("BEGIN IMMEDIATE")
            mark = self.mark(connection, resource)
            if token > mark and self.has_sealed(resource, token):
                raise fencelock.SealLostError(
                    f"resource {resource!r} has the mark {mark}, and {token} was sealed there"
                )
            if token > mark:
                self.raise_mark(connection, token, resource)
            connection.execute("COMMIT")
            self._sealed.add((resource, token))

    def has_sealed(self, resource: str, token: int) -> bool:
        """Return whether the tenure with this token has sealed the resource before."""
        return (resource, token) in self._sealed

    def admit(self, connection: Any, token: int, *, is_writing: bool) -> None:
        """Refuse a token that is no longer the mark."""
        for resource in self.resources:
            self.refuse_below(connection, token, resource)
            if token != self.mark(connection, resource):
                raise fencelock.SealLostError(f"the seal of resource {resource!r} with token {token} is gone")


class Unremembered(Sound):
    """Seals first, and does not know that it has: a seal that is gone is made again."""

    def has_sealed(self, resource: str, token: int) -> bool:
        """Remember nothing."""
        return False


FILE_GUARDS: dict[str, type[FileGuard]] = {
    "no-seal": NoSeal,
    "per-row": PerRow,
    "unremembered": Unremembered,
    "sound": Sound,
}
"""Each guard by its name: broken ones, and one that is not."""
