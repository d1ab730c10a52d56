"""What in a PostgreSQL source's set-up would break the promise, for `fenceline doctor`."""

from typing import TYPE_CHECKING

from fenceline.model import Finding

if TYPE_CHECKING:
    from fenceline.stores.postgres.source import PostgresSource


def examine(store: "PostgresSource") -> list[Finding]:
    """Return what was found."""
    return []
