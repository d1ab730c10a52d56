"""A connection of Django's as a guard borrows it: the guard's statements go to the driver directly.

Promise: what the guard says appears in no log of queries, since a claim is in it. Never: a transaction begun or ended.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import Error, InterfaceError, OperationalError

from fencelock.errors import FencelockError, GuardError, OutcomeUnknownError, SourceError, SourceUnavailableError
from fencelock.protocol.guard_requests import Unpresent
from fencelock.protocol.stores import SQLGuardStore


class DjangoConnection:
    """A connection lent to a guard for one transaction."""

    def __init__(self, connection: Any, store: SQLGuardStore) -> None:
        self.connection = connection
        self._url = store.url
        driver = connection.connection
        self._driver = driver
        self._borrowed = store.framework_connection(driver, driver, connection.Database.paramstyle)

    def perform(self, request: Any) -> Any:
        """Answer one request."""
        if isinstance(request, Unpresent) and self.connection.needs_rollback:
            if self.connection.closed_in_transaction:
                raise closed_inside()
            # Django undoes the transaction, and what was presented with it.
            return None
        with self._asking():
            return self._borrowed.perform(request)

    def prepare(self) -> None:
        """Make the session ready, before its transaction begins."""
        with self._asking():
            self._borrowed.prepare()

    def restore(self) -> None:
        """Leave nothing in the session; one that cannot be cleaned is closed."""
        if self.connection.connection is not self._driver:
            return
        try:
            with self._asking():
                self._borrowed.restore()
        except FencelockError:
            self.connection.close()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            with self.connection.wrap_database_errors:
                yield
        except Error as error:
            is_broken = isinstance(error, OperationalError | InterfaceError)
            kind = SourceUnavailableError if is_broken else SourceError
            said = str(error).partition("\n")[0] or type(error).__name__
            raise kind(f"{self._url} did not do it ({said}): nothing of this transaction was written") from error

    def meaning(self, error: Exception, *, is_commit: bool) -> FencelockError | None:
        """Return the error of the tree for one that leaves the block; None: it is the user's own."""
        map_error = self._borrowed.map_commit_error if is_commit else self._borrowed.map_error
        cause = error.__cause__ if isinstance(error, Error) else None
        if cause is not None and (said := map_error(cause)) is not None:
            return said
        if is_commit and isinstance(error, Error) and self.connection.connection is None:
            first = str(error).partition("\n")[0]
            return OutcomeUnknownError(
                f"{self._url} broke off at COMMIT ({first}): whether the block was written is unknown"
            )
        return None


def closed_inside() -> GuardError:
    """Return the error for a block that closed its own connection, of which Django itself says nothing at its end."""
    return GuardError(
        "the block closed the connection of its own guarded transaction (connection.close(), connections.close_all()): "
        "nothing of it was written. Leave the connection open until the block has ended"
    )
